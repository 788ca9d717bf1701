"""Work: what one execution scores. A plain object between whoever merges requests and the lanes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from streamlearn.serving.graphs.tensors import Given

__all__ = ["Work"]


class Work(NamedTuple):
    """A TensorBatch as graphs take it: each block a DLPack capsule or an array, padded to its bucket.

    Of lanes that are processes, a block is where it lies in memory they have too (`Lying`), or an array.

    Attributes:
        dense: The dense weights of its version: `Dense`, or `LaneWeights` where lanes are processes.
        user: The user side's blocks, (users, ...) float32 in the order of `graphs.json`; empty without a user graph.
        user_index: int32[candidates]. The row in `user` of each candidate's user; of padding, 0.
        item: The item side's blocks, (candidates, ...) float32.
        note: Whatever its source wants to know it by.
    """

    dense: Any
    user: Sequence[Given]
    user_index: Given
    item: Sequence[Given]
    note: Any = None
