"""Step: the rows that are learned at once, as pieces of messages. It computes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamlearn.samples import SampleBatch
from streamlearn.trainer.intake.message import Reached

__all__ = ["Piece", "Step"]

Uint32s = npt.NDArray[np.uint32]


@dataclass(frozen=True, eq=False)
class Piece:
    """Rows of one message.

    Attributes:
        batch: The message's samples.
        rows: int64[n]. Which of its rows, in their order.
        learn: uint32[n]. A bit for every label that is learned.
        correct: uint32[n]. A bit for every label that was learned as negative and is positive.
    """

    batch: SampleBatch
    rows: npt.NDArray[np.int64]
    learn: Uint32s
    correct: Uint32s

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, eq=False)
class Step:
    """What is learned at once.

    Attributes:
        number: From 1, one after the other, in a life of the trainer.
        pieces: What is learned; none of them is empty.
        reached: Up to where messages are learned once this step is.
        read: Rows that were read for it, learned or not.
    """

    number: int
    pieces: Sequence[Piece]
    reached: Reached
    read: int

    def __len__(self) -> int:
        return sum(map(len, self.pieces))
