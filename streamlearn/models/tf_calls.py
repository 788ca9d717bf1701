"""TensorFlow's private calls, all that nodes and trainers make; a contract test fails if TensorFlow changes one.

The public calls look up functions and check and sort arguments every time. These take a function by its name and
tensors in a list.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

import numpy.typing as npt
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context
from tensorflow.python.framework.ops import EagerTensor

from streamlearn.errors import ExecutionFailed
from streamlearn.models.canonical import Proto
from streamlearn.models.protocol import Tensor

__all__ = ["Kind", "Place", "TracedFunction", "definitions_of", "kind_of", "register"]

# TensorFlow's number of a type, and a shape.
Kind: TypeAlias = tuple[int, tuple[int, ...]]
# The process's own config holds its devices and threads. The config is part of the cache's keys, so use a fixed one.
_CONFIG: bytes = config_pb2.ConfigProto(allow_soft_placement=True).SerializeToString(deterministic=True)


class Place:
    """A device on which functions run, such as "/CPU:0"; `name` is its full name."""

    def __init__(self, device: str) -> None:
        eager = context.context()
        eager.ensure_initialized()
        with tf.device(device):
            self.name: str = eager.device_name
        self._handle = eager._handle
        self._is_cpu = ":CPU:" in self.name
        self._attributes = ("executor_type", "", "config_proto", _CONFIG)

    def run(self, function: bytes, inputs: list[Tensor], outputs: int) -> list[Tensor]:
        """Run a registered function that returns `outputs` tensors here; any thread may call.

        Raises:
            ExecutionFailed: TensorFlow or XLA failed; the message has its reason.
        """
        try:
            tensors: list[Tensor] = pywrap_tfe.TFE_Py_Execute(
                self._handle, self.name, function, inputs, self._attributes, outputs
            )
        except tf.errors.OpError as error:
            message = f"{function.decode()} failed on {self.name}: {error.message}"
            raise ExecutionFailed(message) from None
        return tensors

    def entered(self) -> AbstractContextManager[object]:
        """Return a context in which TensorFlow places tensors here by default, not on the first device."""
        device: AbstractContextManager[object] = tf.device(self.name)
        return device

    def tensors(self, arrays: Iterable[npt.NDArray[Any]]) -> list[Tensor]:
        """Return arrays as tensors here; they may share their memory, so do not change the arrays any more."""
        return [EagerTensor(array, self.name, None) for array in arrays]

    def wait(self) -> None:
        """Wait for all devices to finish; only a GPU may still have something to do."""
        if not self._is_cpu:
            tf.test.experimental.sync_devices()


class TracedFunction:
    """A function that was traced, with the variables and constants that it uses besides its inputs."""

    def __init__(self, concrete: Any) -> None:
        self._concrete = concrete  # TensorFlow forgets the function with its last user
        self._name: bytes = concrete.function_def.signature.name.encode()
        self._captured, self._outputs = [*concrete.captured_inputs], len(concrete.outputs)

    def run(self, place: Place, inputs: list[Tensor]) -> list[Tensor]:
        """Run it with its inputs in order, nested ones flat, as `Place.run` does."""
        return place.run(self._name, inputs + self._captured, self._outputs)


def definitions_of(concrete: Any) -> list[Proto]:
    """Return the definitions of a traced function and of all functions that it calls."""
    return [concrete.function_def, *concrete.graph.as_graph_def().library.function]


def register(definitions: Iterable[Proto]) -> None:
    """Register functions under their names; those that are registered already stay as they are."""
    eager = context.context()
    eager.ensure_initialized()
    for definition in definitions:
        if not eager.has_function(definition.signature.name):
            eager.add_function_def(definition)


def kind_of(tensor: Tensor) -> Kind:
    """Return a tensor's type and shape without creating TensorFlow's objects for them."""
    return tensor._datatype_enum(), tensor._shape_tuple()
