"""Golden requests: some that were learned from lately."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from streamlearn.samples import SampleBatch
from streamlearn.trainer.intake.extract import rows_of
from streamlearn.trainer.step import Piece

__all__ = ["golden_rows"]

REQUESTS = 32
_ROWS_MAX = 1_024


def golden_rows(pieces: Sequence[Piece]) -> SampleBatch | None:
    """The last requests of what was learned, with the rows of them that were; None without any."""
    if not pieces:
        return None
    piece = pieces[-1]
    of = piece.batch.request_index[piece.rows]
    last = np.unique(of)[-REQUESTS:]
    return rows_of(piece.batch, piece.rows[np.isin(of, last)][-_ROWS_MAX:])
