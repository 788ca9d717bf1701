"""Predicted: what one step predicted before it learned, and what it learned then, as columns. It knows no window."""

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
    """The rows of one step; N rows, L labels as the application declares them. Bit l of a mask is label l.

    Arrays are read before `ProgressiveValidation.add` returns, and none is kept.

    Attributes:
        identity: uint64[N]. A hash of (events topic id, partition, offset, item index); equal for what comes again.
        event_time_ms: int64[N]. When the impression was shown, event time.
        logits: float32[N, L]. What the model said before this step learned.
        learn: uint32[N]. The labels that are learned now for the first time.
        correct: uint32[N]. The labels that were learned earlier as negative, and are positive.
        positive: uint32[N]. Of `learn`, the labels that are positive.
        rates: float32[N, L]. The share of negatives kept.
        weights: float32[N, L]. How much a row weighs.
        segments: As samples have them; those the application declares.
    """

    identity: Uint64s
    event_time_ms: Int64s
    logits: Float32s
    learn: Uint32s
    correct: Uint32s
    positive: Uint32s
    rates: Float32s
    weights: Float32s
    segments: tuple[SegmentColumns, ...] = ()

    def __len__(self) -> int:
        return len(self.identity)
