"""Golden requests: some that were learned from lately, and how the graphs of a version score them."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from streamlearn.samples import SampleBatch, SampleCodec
from streamlearn.trainer.extract import rows_of
from streamlearn.trainer.step import Piece

__all__ = ["golden_bytes", "golden_rows", "read_golden"]

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


def golden_bytes(codec: SampleCodec, batch: SampleBatch, logits: npt.NDArray[np.float32]) -> dict[str, bytes]:
    """As a version keeps them: `samples`, one message; `logits`, float32[rows, labels] as NumPy writes it."""
    written = io.BytesIO()
    np.save(written, np.ascontiguousarray(logits, np.float32), allow_pickle=False)
    return {"samples": codec.encode(batch), "logits": written.getvalue()}


def read_golden(
    codec: SampleCodec, entries: Mapping[str, bytes | memoryview]
) -> tuple[SampleBatch, npt.NDArray[np.float32]]:
    """What `golden_bytes` wrote.

    Raises:
        BadRecord: The samples are damaged.
    """
    logits: npt.NDArray[np.float32] = np.load(io.BytesIO(bytes(entries["logits"])), allow_pickle=False)
    return codec.decode(bytes(entries["samples"])), logits
