"""Predicted: the predictions that a step made before it learned, and its labels, as columns. It knows no window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from streamlearn.samples import SegmentColumns

__all__ = ["Predicted"]

Int64s: TypeAlias = npt.NDArray[np.int64]
Uint64s: TypeAlias = npt.NDArray[np.uint64]
Uint32s: TypeAlias = npt.NDArray[np.uint32]
Float32s: TypeAlias = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Predicted:
    """The rows of one step: N rows, L labels in the application's order. Bit l of a mask is label l.

    `ProgressiveValidation.add` keeps none of the arrays.
    """

    identity: Uint64s  # uint64[N]: a hash of (events topic id, partition, offset, item index), equal for repeated rows
    event_time_ms: Int64s  # int64[N]: impression times
    logits: Float32s  # float32[N, L]: predictions from before the step
    learn: Uint32s  # uint32[N]: labels that are learned for the first time
    correct: Uint32s  # uint32[N]: labels that were learned as negative and are positive
    positive: Uint32s  # uint32[N]: the positive labels among `learn`
    rates: Float32s  # float32[N, L]: the share of negatives kept
    weights: Float32s  # float32[N, L]: sample weights
    segments: tuple[SegmentColumns, ...] = ()  # the segments that the application declares

    def __len__(self) -> int:
        return len(self.identity)
