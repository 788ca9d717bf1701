"""Settled: what a samples topic says, from its first message to its end, to be held against what was learned."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streamlearn.apps import AppFolder
from streamlearn.samples import SampleBatch, SampleCodec

__all__ = ["Settled", "counted", "read_settled"]

_RECORDS, _BYTES, _WAIT_MS = 10_000, 64 << 20, 50

Key = tuple[str, int, int, int]


@dataclass(frozen=True)
class Settled:
    """What is to be learned of a topic.

    Attributes:
        rows: Distinct identities.
        labels: Distinct identities and labels that some row settles.
        corrected: Of these, how many are first negative, and positive in a later row.
    """

    rows: int
    labels: int
    corrected: int


def read_settled(folder: AppFolder) -> Settled:
    """Read a whole topic, each partition in its order."""
    codec = SampleCodec(folder.app, folder.settings.samples)
    batches: list[SampleBatch] = []
    with folder.open_topic("samples") as topic, topic.reader() as reader:
        offsets = {partition: reader.earliest(partition) for partition in range(topic.partitions)}
        ends = {partition: reader.end(partition) for partition in offsets}
        while any(offsets[one] < ends[one] for one in offsets):
            for records in reader.read_many(offsets, max_records=_RECORDS, max_bytes=_BYTES, wait_ms=_WAIT_MS):
                batches += [codec.decode(value) for value in records.values if value is not None]
                offsets[records.partition] = records.next_offset
    return counted(batches)


def counted(batches: list[SampleBatch]) -> Settled:
    """The same of batches, in their order; all rows of an identity are in one partition."""
    seen: dict[Key, list[int]] = {}
    corrected = labels = 0
    for batch in batches:
        if not len(batch):
            continue
        at, topic = batch.request_index, batch.header.events_topic_id
        partitions, offsets = batch.requests.partition[at].tolist(), batch.requests.offset[at].tolist()
        settles = np.stack([one.settles for one in batch.labels], axis=1).tolist()
        values = np.stack([one.value for one in batch.labels], axis=1).tolist()
        rows = zip(partitions, offsets, batch.item_index.tolist(), settles, values, strict=True)
        for partition, offset, item, does, value in rows:
            state = seen.setdefault((topic, partition, offset, item), [-1] * len(does))
            for label, is_settled in enumerate(does):
                if not is_settled:
                    continue
                labels += state[label] < 0
                corrected += state[label] == 0 and value[label] == 1
                state[label] = max(state[label], value[label])
    return Settled(len(seen), labels, corrected)
