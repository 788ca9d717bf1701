"""Pjrt: exported graphs on JAX's runtime client: compiled, counted and run. It needs no TensorFlow."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.extend.backend
import numpy as np
import numpy.typing as npt
from jaxlib import _jax, xla_client

from tools.gpu.hlo_module import launches
from tools.gpu.kit import Arrays, Graph, Kit

__all__ = ["Executable", "Pjrt"]


class Executable:
    """A compiled graph.

    Attributes:
        compile_s: How long XLA took.
        launches: The kernels and library calls of one run.
        format: "hlo", or "stablehlo" if this release of JAX refused the other.
    """

    def __init__(self, loaded: Any, compile_s: float, format: str) -> None:
        self._loaded, self.compile_s, self.format = loaded, compile_s, format
        self.launches = launches("\n".join(module.to_string() for module in loaded.hlo_modules()))

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        """Run it on arrays of the device; the outputs may not be there yet."""
        outputs: list[Any] = self._loaded.execute(list(arguments))
        return outputs


class Pjrt:
    """The first device of a platform, "cpu" or "gpu".

    float32 matrices are multiplied in float32; with `has_tf32` as fast as the device likes. Raises RuntimeError if JAX
    has no such device.
    """

    def __init__(self, platform: str, *, has_tf32: bool = False) -> None:
        jax.config.update("jax_enable_x64", True)  # an index has 64 bits
        self._client = jax.extend.backend.get_backend("cuda" if platform == "gpu" else platform)
        self.device, self._has_tf32 = self._client.local_devices()[0], has_tf32
        self._devices = _jax.DeviceList((self.device,))

    @property
    def name(self) -> str:
        """The device and the version of its platform."""
        return f"{self.device.device_kind}, {' '.join(str(self._client.platform_version).split())}"

    def compile(self, kit: Kit, graph: Graph) -> Executable:
        """Compile a graph."""
        hlo, stable = kit.lowered(graph)
        try:
            module = _jax.mlir.xla_computation_to_mlir_module(xla_client.XlaComputation(hlo))
        except Exception:  # a later release reads only StableHLO
            return self._compiled(stable, "stablehlo")
        return self._compiled(module, "hlo")

    def serialized(self, executable: Executable) -> bytes:
        """Return an executable as bytes for another process on such a device."""
        data: bytes = executable._loaded.serialize()
        return data

    def deserialized(self, data: bytes) -> Executable:
        """Load an executable."""
        begin = time.perf_counter()
        loaded = self._client.deserialize_executable(data, self._devices, xla_client.CompileOptions())
        return Executable(loaded, time.perf_counter() - begin, "hlo")

    def put(self, arrays: Arrays) -> list[Any]:
        """Return arrays on the device."""
        return [jax.device_put(array, self.device) for array in arrays]

    def get(self, arrays: Sequence[Any]) -> list[npt.NDArray[Any]]:
        """Return arrays of the device in this process's memory, after waiting for them."""
        return [np.asarray(array) for array in arrays]

    def wait(self, arrays: Sequence[Any]) -> None:
        """Wait for arrays of the device."""
        jax.block_until_ready(list(arrays))

    def _compiled(self, module: str, format: str) -> Executable:
        if not self._has_tf32:
            module = module.replace("precision = [DEFAULT, DEFAULT]", "precision = [HIGHEST, HIGHEST]")
        begin = time.perf_counter()
        loaded = self._client.compile_and_load(module, self._devices, xla_client.CompileOptions())
        return Executable(loaded, time.perf_counter() - begin, format)
