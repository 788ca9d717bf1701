"""Extract: some rows of a message, or those of several, as a message of their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from streamlearn.samples import LabelColumns, RequestColumns, SampleBatch
from streamlearn.trainer.columns import join_features, requests_of, take_features

__all__ = ["joined_to", "rows_of"]


def rows_of(batch: SampleBatch, rows: npt.NDArray[np.int64]) -> SampleBatch:
    """Samples of some rows of others, with the requests that these are of; a copy, so that the others can go.

    Args:
        batch: All of them.
        rows: int64[n], growing.
    """
    requests, index = requests_of(batch, rows)
    columns = {name: getattr(batch.requests, name)[requests] for name in RequestColumns.__dataclass_fields__}
    return replace(
        batch,
        requests=RequestColumns(**columns),
        user=take_features(batch.user, requests),
        request_index=index,
        item_index=batch.item_index[rows],
        settle_time_ms=batch.settle_time_ms[rows],
        item=take_features(batch.item, rows),
        labels=tuple(_label(one, rows) for one in batch.labels),
        segments=tuple(replace(one, codes=one.codes[rows]) for one in batch.segments),
    )


def _label(label: LabelColumns, rows: npt.NDArray[np.int64]) -> LabelColumns:
    columns = {name: getattr(label, name)[rows] for name in LabelColumns.__dataclass_fields__ if name != "name"}
    return LabelColumns(name=label.name, **columns)


def joined_to(batches: Iterable[SampleBatch], rows_max: int) -> Iterator[SampleBatch]:
    """The same rows in fewer messages, none of them of more than `rows_max` rows unless it was before.

    Segments are left out: their codes are a message's own.
    """
    held: list[SampleBatch] = []
    for batch in batches:
        if held and sum(map(len, held)) + len(batch) > rows_max:
            yield _joined(held)
            held = []
        held.append(batch)
    if held:
        yield _joined(held)


def _joined(batches: Sequence[SampleBatch]) -> SampleBatch:
    begins = np.cumsum([0, *(len(one.requests) for one in batches[:-1])])
    requests = {
        name: np.concatenate([getattr(one.requests, name) for one in batches])
        for name in RequestColumns.__dataclass_fields__
    }
    indexes = [one.request_index + begin for one, begin in zip(batches, begins, strict=True)]
    return SampleBatch(
        header=batches[-1].header,
        requests=RequestColumns(**requests),
        user=join_features([one.user for one in batches]),
        request_index=np.concatenate(indexes).astype(np.int32),
        item_index=np.concatenate([one.item_index for one in batches]),
        settle_time_ms=np.concatenate([one.settle_time_ms for one in batches]),
        item=join_features([one.item for one in batches]),
        labels=tuple(_joined_label([one.labels[at] for one in batches]) for at in range(len(batches[0].labels))),
        segments=(),
    )


def _joined_label(labels: Sequence[LabelColumns]) -> LabelColumns:
    names = [name for name in LabelColumns.__dataclass_fields__ if name != "name"]
    columns = {name: np.concatenate([getattr(one, name) for one in labels]) for name in names}
    return LabelColumns(name=labels[0].name, **columns)
