"""Work: the inputs of one execution, passed from the front, which merges requests, to the lanes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from streamlearn.serving.graphs.tensors import Given

__all__ = ["Work"]


class Work(NamedTuple):
    """A TensorBatch as graphs take it: each block is a DLPack capsule or an array, padded to its bucket.

    For lane processes, a block is a `TensorSpan` of shared memory or an array.

    Attributes:
        dense: The dense weights of its version: `Dense`, or `LaneWeights` for lane processes.
        user: The user side's blocks, (users, ...) float32 in the order of `graphs.json`; empty without a user graph.
        user_index: int32[candidates]. The row in `user` of each candidate's user; 0 for padding.
        item: The item side's blocks, (candidates, ...) float32.
        note: Opaque handle for the source.
    """

    dense: Any
    user: Sequence[Given]
    user_index: Given
    item: Sequence[Given]
    note: Any = None
