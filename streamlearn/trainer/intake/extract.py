"""Extract: copies rows of a message into a new one, selects golden requests, and joins messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from streamlearn.samples import LabelColumns, RequestColumns, SampleBatch, renumbered
from streamlearn.samples.item_ids import ItemIds
from streamlearn.trainer.columns import join_features
from streamlearn.trainer.step import Piece

__all__ = ["golden_rows", "join_batches", "rows_of"]

GOLDEN_REQUESTS = 32
_GOLDEN_ROWS_MAX = 1_024


def rows_of(batch: SampleBatch, rows: npt.NDArray[np.int64]) -> SampleBatch:
    """Copy some rows and their requests, so that `batch` can be freed; `rows` is int64[n], increasing."""
    index, requests = renumbered(batch.request_index[rows], len(batch.requests))
    return replace(
        batch,
        requests=batch.requests.take(requests),
        user=batch.user.take(requests),
        request_index=index,
        item_index=batch.item_index[rows],
        settle_time_ms=batch.settle_time_ms[rows],
        item=batch.item.take(rows),
        item_ids=None if batch.item_ids is None else batch.item_ids.take(rows),
        labels=tuple(label.take(rows) for label in batch.labels),
        segments=tuple(replace(segment, codes=segment.codes[rows]) for segment in batch.segments),
    )


def golden_rows(pieces: Sequence[Piece]) -> SampleBatch | None:
    """Return the newest requests of the last piece, with the rows that were learned; None without pieces."""
    if not pieces:
        return None
    piece = pieces[-1]
    request_index = piece.batch.request_index[piece.rows]
    newest = np.unique(request_index)[-GOLDEN_REQUESTS:]
    return rows_of(piece.batch, piece.rows[np.isin(request_index, newest)][-_GOLDEN_ROWS_MAX:])


def join_batches(batches: Iterable[SampleBatch], rows_max: int) -> Iterator[SampleBatch]:
    """Join messages into fewer ones of at most `rows_max` rows; only a message that was larger before exceeds it.

    Segments are left out: their codes are specific to a message.
    """
    waiting: list[SampleBatch] = []
    for batch in batches:
        if waiting and sum(map(len, waiting)) + len(batch) > rows_max:
            yield _joined(waiting)
            waiting = []
        waiting.append(batch)
    if waiting:
        yield _joined(waiting)


def _joined(batches: Sequence[SampleBatch]) -> SampleBatch:
    begins = np.cumsum([0, *(len(batch.requests) for batch in batches[:-1])])
    requests = {
        name: np.concatenate([getattr(batch.requests, name) for batch in batches])
        for name in RequestColumns.__dataclass_fields__
    }
    indexes = [batch.request_index + begin for batch, begin in zip(batches, begins, strict=True)]
    return SampleBatch(
        header=batches[-1].header,
        requests=RequestColumns(**requests),
        user=join_features([batch.user for batch in batches]),
        request_index=np.concatenate(indexes).astype(np.int32),
        item_index=np.concatenate([batch.item_index for batch in batches]),
        settle_time_ms=np.concatenate([batch.settle_time_ms for batch in batches]),
        item=join_features([batch.item for batch in batches]),
        item_ids=ItemIds.joined([batch.item_ids for batch in batches if batch.item_ids is not None]),
        labels=tuple(
            _joined_label([batch.labels[number] for batch in batches]) for number in range(len(batches[0].labels))
        ),
        segments=(),
    )


def _joined_label(labels: Sequence[LabelColumns]) -> LabelColumns:
    columns = {name: np.concatenate([label.columns[name] for label in labels]) for name in labels[0].columns}
    return LabelColumns(name=labels[0].name, **columns)
