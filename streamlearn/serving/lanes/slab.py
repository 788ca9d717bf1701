"""Slab: aligned arrays next to each other in the memory of this process. It knows no TensorFlow."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["ALIGNMENT_BYTES", "Slab", "aligned", "places_of"]

ALIGNMENT_BYTES = 64


class Slab:
    """Aligned arrays of zeros in one piece of memory, one for each (shape, dtype).

    Tensors made from them see later writes.
    """

    def __init__(self, *shapes: tuple[tuple[int, ...], npt.DTypeLike]) -> None:
        sizes = [int(np.prod(shape)) * np.dtype(kind).itemsize for shape, kind in shapes]
        offsets = places_of(sizes)
        memory = np.zeros(offsets[-1] + ALIGNMENT_BYTES, np.uint8)
        begin = -memory.ctypes.data % ALIGNMENT_BYTES
        self.arrays: list[npt.NDArray[Any]] = [
            memory[begin + at : begin + at + size].view(kind).reshape(shape)
            for (shape, kind), size, at in zip(shapes, sizes, offsets[:-1], strict=True)
        ]


def places_of(sizes_bytes: list[int]) -> list[int]:
    """Return the aligned offsets of arrays with these sizes, and the offset after the last one.

    Examples:
        >>> places_of([4, 64, 65])
        [0, 64, 128, 256]
    """
    rounded = [-(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for size in sizes_bytes]
    offsets: list[int] = np.cumsum([0, *rounded]).tolist()
    return offsets


def aligned(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an aligned copy."""
    (copy,) = Slab((values.shape, values.dtype)).arrays
    copy[...] = values
    return copy
