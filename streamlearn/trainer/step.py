"""Step: the rows that are learned together, as pieces of messages. It computes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamlearn.samples import SampleBatch
from streamlearn.trainer.intake.message import Reached

__all__ = ["Piece", "Step"]

Uint32s = npt.NDArray[np.uint32]
_COLUMNS = ("rows", "learn", "correct", "known", "before")


@dataclass(frozen=True, eq=False)
class Piece:
    """Rows of one message. Masks have one bit for each label."""

    batch: SampleBatch
    rows: npt.NDArray[np.int64]  # int64[n]: the indexes of the rows, in their order
    learn: Uint32s  # uint32[n]: the labels to learn
    correct: Uint32s  # uint32[n]: the labels that were learned as negative and are positive, or as another number
    known: Uint32s | None = (
        None  # uint32[n]: the labels known to be positive, by earlier rows too; None: by these alone
    )
    before: npt.NDArray[np.float32] | None = None  # float32[n, labels]: of corrected numbers, what was learned

    def __len__(self) -> int:
        return len(self.rows)

    def followed_by(self, other: Piece) -> Piece:
        """Return one piece with the rows of both, which are of the same message; both know all columns, or neither."""
        both = [
            None if mine is None and theirs is None else np.concatenate((mine, theirs))
            for mine, theirs in ((getattr(self, name), getattr(other, name)) for name in _COLUMNS)
        ]
        return Piece(self.batch, *both)  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class Step:
    """Rows that are learned together."""

    number: int  # from 1, consecutive within one process
    pieces: Sequence[Piece]  # none is empty
    reached: Reached  # the position up to which messages are learned after this step
    read: int  # the number of rows read for it, learned or not

    def __len__(self) -> int:
        return sum(map(len, self.pieces))
