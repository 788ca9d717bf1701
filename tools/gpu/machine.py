"""Machine: what this machine is, and how fast it copies and multiplies at best."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from streamlearn.serving.lanes.pinned_memory import pin, unpin
from tools.gpu.pjrt import Pjrt
from tools.gpu.report import Report, taken_s

__all__ = ["inventory"]

_COPY_BYTES, _QUICK_COPY_BYTES = 256 << 20, 16 << 20
_MATRIX, _QUICK_MATRIX = 8_192, 512
_SMI_S_MAX = 30


def inventory(pjrt: Pjrt, report: Report, *, is_small: bool) -> None:
    """Note the machine, and measure its ceilings: copies in and out of the device, and the product of matrices."""
    report.note(f"device: {pjrt.name}")
    report.note(f"jax {jax.__version__}, Python {platform.python_version()}, {platform.platform()}")
    report.note(f"processor: {_processor()}; XLA_FLAGS={os.environ.get('XLA_FLAGS', '')!r}")
    if smi := shutil.which("nvidia-smi"):
        done = subprocess.run([smi], capture_output=True, text=True, timeout=_SMI_S_MAX, check=False)
        report.note(done.stdout + done.stderr)
    report.figures["cores"] = len(os.sched_getaffinity(0))
    report.figures["memory_gib"] = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    _copies(pjrt, report, _QUICK_COPY_BYTES if is_small else _COPY_BYTES)
    size = _QUICK_MATRIX if is_small else _MATRIX
    for kind in ("float32", "bfloat16"):
        matrix = jax.device_put(jnp.ones((size, size), kind), pjrt.device)
        product = jax.jit(lambda one: jnp.matmul(one, one, precision="highest"))
        took_s = taken_s(lambda: product(matrix).block_until_ready(), 0.5)  # noqa: B023
        report.figures[f"matmul_{kind}_tflop_per_s"] = 2 * size**3 / took_s / 1e12


def _copies(pjrt: Pjrt, report: Report, size_bytes: int) -> None:
    host = np.ones(size_bytes // 4, np.float32)
    there = pjrt.put([host])[0]
    copies = {
        "copy_in_gb_per_s": lambda: pjrt.wait(pjrt.put([host])),
        # A copy on the device, because an array that was read once is kept in this process's memory.
        "copy_out_gb_per_s": lambda: np.array(there + 0),
    }
    for name, copy in copies.items():
        report.figures[name] = size_bytes / taken_s(copy, 0.5) / 1e9
    reason = pin(host.ctypes.data, host.nbytes)
    if reason:
        report.unmeasured["copy_in_pinned_gb_per_s"] = reason
        return
    report.figures["copy_in_pinned_gb_per_s"] = size_bytes / taken_s(copies["copy_in_gb_per_s"], 0.5) / 1e9
    unpin(host.ctypes.data)


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(models)} of {models[0]}" if models else platform.machine()
