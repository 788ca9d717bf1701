"""Tensors over existing memory. XLA reads it in place only if it is aligned to 64 bytes."""

from __future__ import annotations

import ctypes
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from streamlearn.errors import UsageError
from streamlearn.models.protocol import Tensor
from streamlearn.serving.lanes.slab import ALIGNMENT_BYTES, aligned

__all__ = ["Given", "address_of", "tensor_of"]

# A DLPack capsule, or a NumPy array.
Given: TypeAlias = Any


class _DLTensor(ctypes.Structure):
    """The beginning of DLPack's `DLTensor`, with its address."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("dimensions", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


_POINTER = ctypes.pythonapi.PyCapsule_GetPointer
_POINTER.restype, _POINTER.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def tensor_of(given: Given) -> Tensor:
    """Return a CPU tensor over the memory of a DLPack capsule, which is used up, or of an array.

    The memory must not change until the tensor and all outputs made from it are freed. An array that is not aligned,
    contiguous and writeable is copied.
    """
    if isinstance(given, np.ndarray):
        fit = given.ctypes.data % ALIGNMENT_BYTES == 0 and given.flags.c_contiguous and given.flags.writeable
        given = (given if fit else aligned(given)).__dlpack__()
    else:
        address_of(given)
    return tf.experimental.dlpack.from_dlpack(given)


def address_of(capsule: Given) -> int:
    """Return the address of the memory of a DLPack capsule that was not used yet.

    Raises:
        UsageError: It is another object, or XLA cannot use its memory.
    """
    try:
        tensor = _DLTensor.from_address(_POINTER(capsule, b"dltensor"))
    except ValueError:
        message = f"{capsule!r} is not a DLPack capsule, or was already used"
        raise UsageError(message, help="pass the result of `__dlpack__()`, once") from None
    address = int((tensor.data or 0) + tensor.byte_offset)
    if address % ALIGNMENT_BYTES or tensor.device_type != 1:
        message = f"a tensor is at address {address:#x} on device type {tensor.device_type}"
        raise UsageError(message, help=f"XLA only reads CPU memory aligned to {ALIGNMENT_BYTES} bytes")
    return address
