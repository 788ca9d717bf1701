"""Sent labels: how many labels the samples topic has, each once, for comparison with how many were learned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from streamlearn.apps import AppFolder
from streamlearn.samples import SampleBatch, SampleCodec
from streamlearn.topics import Records
from streamlearn.trainer.intake.skips import are_skipped
from streamlearn.versions.format.manifest import Skip

__all__ = ["count_sent", "records_of"]

_RECORDS, _BYTES, _WAIT_MS = 10_000, 64 << 20, 50
_MUST, _MAY, _SKIPPED = range(3)


def count_sent(folder: AppFolder, skips: Sequence[Skip], learned: Mapping[int, int]) -> tuple[int, int]:
    """Return how many labels must have been learned, and how many may have been.

    Rows in `skips` are not learned, unless they were before the skips began: then messages were learned up to the
    offsets in `learned`, by partition, and perhaps a part of the message there.
    """
    codec = SampleCodec(folder.app, folder.settings.samples)
    parts = [np.zeros((0, 5), np.int64)]
    for records in records_of(folder, "samples"):
        edge = learned.get(records.partition, 0)
        for offset, value in zip(records.offsets.tolist(), records.values, strict=True):
            if value:
                parts += _labels(codec.decode(value), skips, _SKIPPED if offset > edge else int(offset == edge))
    labels = np.concatenate(parts)
    must, may = (np.unique(labels[labels[:, 0] <= kind, 1:], axis=0) for kind in (_MUST, _MAY))
    return len(must), len(may)


def _labels(batch: SampleBatch, skips: Sequence[Skip], kind: int) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the settled labels of rows: kind, partition, offset, item and label. Rows in `skips` are of this kind."""
    at, requests = batch.request_index, batch.requests
    kinds = np.where(are_skipped(batch, np.arange(len(batch)), skips), kind, _MUST)
    rows = np.stack([kinds, requests.partition[at], requests.offset[at], batch.item_index], axis=1)
    for number, label in enumerate(batch.labels):
        settled = rows[np.flatnonzero(label.settles)]
        yield np.column_stack([settled, np.full(len(settled), number)]).astype(np.int64)


def records_of(folder: AppFolder, name: str) -> Iterator[Records]:
    """Yield the records that a topic has now."""
    with folder.open_topic(name) as topic, topic.reader() as reader:
        offsets = {partition: reader.earliest(partition) for partition in range(topic.partitions)}
        ends = {partition: reader.end(partition) for partition in offsets}
        while any(offset < ends[partition] for partition, offset in offsets.items()):
            for records in reader.read_many(offsets, max_records=_RECORDS, max_bytes=_BYTES, wait_ms=_WAIT_MS):
                yield records
                offsets[records.partition] = records.next_offset
