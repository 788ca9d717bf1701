"""Examples: inputs of a shape, to compile and to measure with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from streamlearn.models.description import Description, TensorNote
from streamlearn.serving.lanes.slab import Slab

__all__ = ["item_example", "user_example"]


def user_example(described: Description, rows: int, length: int) -> list[npt.NDArray[Any]]:
    """What the user graph takes: so many users with histories of so many places; nothing without a user graph."""
    return _slab(() if described.user is None else described.user.inputs, rows, length)


def item_example(described: Description, rows: int) -> list[npt.NDArray[Any]]:
    """What the score graph takes beside the users: each candidate's user, the first one, and the candidates' blocks."""
    notes = described.score.inputs
    at = [one.name for one in notes].index("user_index")
    return _slab(notes[at:], rows, int(described.pack["item"]["sequence_length"]))


def _slab(notes: Sequence[TensorNote], rows: int, length: int) -> list[npt.NDArray[Any]]:
    sizes = (rows, length)
    shapes = (tuple(sizes[at] if size is None else size for at, size in enumerate(one.shape)) for one in notes)
    return Slab(*((shape, one.dtype) for shape, one in zip(shapes, notes, strict=True))).arrays
