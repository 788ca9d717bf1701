"""Pinned memory: pages that a GPU reads directly, without a copy to a buffer of the driver. It knows no TensorFlow."""

from __future__ import annotations

import ctypes
import re
from contextlib import suppress
from pathlib import Path

__all__ = ["pin", "unpin"]

_MAPS = Path("/proc/self/maps")
_NAMES = ("libcudart.so.13", "libcudart.so.12", "libcudart.so")
_PORTABLE, _READ_ONLY = 1, 8


def pin(address: int, size_bytes: int, *, is_read_only: bool = False) -> str:
    """Pin the pages of this memory for all GPUs, and return why that failed; an empty text if it did not.

    The memory must stay until `unpin`, or until the process ends. `is_read_only` is for memory that this process maps
    for reading.
    """
    runtime = _runtime()
    if runtime is None:
        return f"none of {', '.join(_NAMES)} is loaded or installed"
    flags = _PORTABLE | (_READ_ONLY if is_read_only else 0)
    return _reason(runtime, runtime.cudaHostRegister(ctypes.c_void_p(address), ctypes.c_size_t(size_bytes), flags))


def unpin(address: int) -> str:
    """Unpin memory that was pinned from this address, and return why that failed."""
    runtime = _runtime()
    return "" if runtime is None else _reason(runtime, runtime.cudaHostUnregister(ctypes.c_void_p(address)))


def _runtime() -> ctypes.CDLL | None:
    """Return the CUDA runtime: the one that this process uses, or one that is installed."""
    for name in [*re.findall(r"/\S*/libcudart\.so\S*", _MAPS.read_text()), *_NAMES]:
        with suppress(OSError):
            return ctypes.CDLL(name)
    return None


def _reason(runtime: ctypes.CDLL, status: int) -> str:
    if not status:
        return ""
    runtime.cudaGetErrorString.restype = ctypes.c_char_p
    runtime.cudaGetLastError()  # else the next call of anyone fails with it
    return f"CUDA error {status}: {(runtime.cudaGetErrorString(status) or b'').decode()}"
