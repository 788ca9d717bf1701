"""Slab: aligned arrays side by side in memory of this process. It knows no TensorFlow."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["ALIGNMENT_BYTES", "Slab", "aligned", "places_of"]

ALIGNMENT_BYTES = 64


class Slab:
    """Aligned arrays side by side in one piece of memory; what is filled in later is seen by what was handed out.

    Args:
        shapes: The shape and the type of each array.

    Attributes:
        arrays: The arrays, of zeros at first.
    """

    def __init__(self, *shapes: tuple[tuple[int, ...], npt.DTypeLike]) -> None:
        sizes = [int(np.prod(shape)) * np.dtype(kind).itemsize for shape, kind in shapes]
        places = places_of(sizes)
        memory = np.zeros(places[-1] + ALIGNMENT_BYTES, np.uint8)
        begin = -memory.ctypes.data % ALIGNMENT_BYTES
        self.arrays: list[npt.NDArray[Any]] = [
            memory[begin + at : begin + at + size].view(kind).reshape(shape)
            for (shape, kind), size, at in zip(shapes, sizes, places[:-1], strict=True)
        ]


def places_of(sizes_bytes: list[int]) -> list[int]:
    """Where arrays of such sizes begin, each on a boundary, and where the next one would.

    Examples:
        >>> places_of([4, 64, 65])
        [0, 64, 128, 256]
    """
    rounded = [-(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for size in sizes_bytes]
    found: list[int] = np.cumsum([0, *rounded]).tolist()
    return found


def aligned(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A copy on a boundary."""
    (found,) = Slab((values.shape, values.dtype)).arrays
    found[...] = values
    return found
