"""Example inputs: zeros of a shape, to compile and to measure with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from streamlearn.models.description import Description, TensorNote
from streamlearn.serving.lanes.slab import Slab

__all__ = ["item_example", "user_example"]


def user_example(described: Description, rows: int, length: int) -> list[npt.NDArray[Any]]:
    """Return inputs of the user graph for `rows` users with histories of this length; none without a user graph."""
    return _slab(() if described.user is None else described.user.inputs, rows, length)


def item_example(described: Description, rows: int) -> list[npt.NDArray[Any]]:
    """Return inputs of the score graph besides the users: `user_index`, all 0, and the candidates' blocks."""
    notes = described.score.inputs
    first = [note.name for note in notes].index("user_index")
    return _slab(notes[first:], rows, int(described.pack["item"]["sequence_length"]))


def _slab(notes: Sequence[TensorNote], rows: int, length: int) -> list[npt.NDArray[Any]]:
    sizes = (rows, length)
    shapes = (tuple(sizes[at] if size is None else size for at, size in enumerate(note.shape)) for note in notes)
    return Slab(*((shape, note.dtype) for shape, note in zip(shapes, notes, strict=True))).arrays
