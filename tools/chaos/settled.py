"""Settled: what a samples topic says, from its first message to its end, to be held against what was learned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.apps import AppFolder
from streamlearn.events import EventDecoder
from streamlearn.samples import SampleBatch, SampleCodec
from streamlearn.topics import Records
from tools.demo.board import ids_of

__all__ = ["UNSETTLED", "Settled", "counted", "ends_of_rows", "mark_of", "read_settled"]

UNSETTLED = -1
"""Stands for the value of a label that no row settles."""
_RECORDS, _BYTES, _WAIT_MS = 10_000, 64 << 20, 50

Place = tuple[int, int, int]


def mark_of(request: str, item: Any) -> int:
    """64 bits that stand for a row that was shown, within this process."""
    return hash((request, item))


@dataclass(frozen=True, eq=False)
class Settled:
    """What is to be learned of a topic: n distinct identities.

    Attributes:
        rows: int64[n]. The mark of the request and the item that each stands for; one that is there twice is doubled.
        values: int8[n, labels]. What each label is in the end; UNSETTLED where no row settles it.
        corrected: How many of these are first negative, and positive in a later row.
        strange: Identities that no impression accounts for.
    """

    rows: npt.NDArray[np.int64]
    values: npt.NDArray[np.int8]
    corrected: int
    strange: tuple[str, ...] = ()

    @property
    def labels(self) -> int:
        """How many labels some row settles."""
        return int((self.values != UNSETTLED).sum())


def read_settled(folder: AppFolder) -> Settled:
    """Read a whole topic, each partition in its order, and the impressions that its rows are of."""
    codec = SampleCodec(folder.app, folder.settings.samples)
    batches = (codec.decode(value) for records in _read(folder, "samples") for value in records.values if value)
    return counted(batches, _shown(folder), len(folder.app.labels))


def ends_of_rows(folder: AppFolder) -> list[int]:
    """By partition, the offset behind the last message that has rows; after others no version need be published."""
    codec = SampleCodec(folder.app, folder.settings.samples)
    ends: dict[int, int] = {}
    for records in _read(folder, "samples"):
        ends.setdefault(records.partition, 0)
        for offset, value in zip(records.offsets.tolist(), records.values, strict=True):
            if value and len(codec.decode(value)):
                ends[records.partition] = offset + 1
    return [ends[partition] for partition in sorted(ends)]


def counted(batches: Iterator[SampleBatch] | list[SampleBatch], shown: Mapping[Place, int], labels: int) -> Settled:
    """The same of batches, in their order; all rows of an identity are in one partition.

    Args:
        batches: What was sent to be learned.
        shown: The mark of what stands at a partition, an offset and an item's index.
        labels: How many labels a row has.
    """
    seen: dict[Place, list[int]] = {}
    corrected = 0
    for batch in batches:
        if not len(batch):
            continue
        at = batch.request_index
        partitions, offsets = batch.requests.partition[at].tolist(), batch.requests.offset[at].tolist()
        settles = np.stack([one.settles for one in batch.labels], axis=1).tolist()
        values = np.stack([one.value for one in batch.labels], axis=1).tolist()
        rows = zip(partitions, offsets, batch.item_index.tolist(), settles, values, strict=True)
        for partition, offset, item, does, value in rows:
            state = seen.setdefault((partition, offset, item), [UNSETTLED] * labels)
            for label, is_settled in enumerate(does):
                if is_settled:
                    corrected += state[label] == 0 and value[label] == 1
                    state[label] = max(state[label], value[label])
    known = {place: state for place, state in seen.items() if place in shown}
    strange = tuple(f"item {item} of partition {at} offset {offset}" for at, offset, item in seen.keys() - known.keys())
    rows_of = np.fromiter((shown[place] for place in known), np.int64, len(known))
    return Settled(rows_of, np.array([*known.values()], np.int8).reshape(-1, labels), corrected, strange)


def _shown(folder: AppFolder) -> dict[Place, int]:
    """The mark of every row of the impressions topic, by its place there."""
    decoder, found = EventDecoder.of(folder), {}
    for records in _read(folder, "impressions"):
        shown = decoder.decode(records.values).impressions
        if not len(shown):
            continue
        requests = ids_of(shown.columns, "request_id")
        items = ids_of(shown.columns, f"items.{folder.app.features.item_id}")
        begins = shown.columns["items[]"].tolist()
        offsets, bases = records.offsets[shown.record_index].tolist(), shown.item_base.tolist()
        for row, request in enumerate(requests):
            for at, item in enumerate(items[begins[row] : begins[row + 1]]):
                found[records.partition, offsets[row], bases[row] + at] = mark_of(request, item)
    return found


def _read(folder: AppFolder, name: str) -> Iterator[Records]:
    with folder.open_topic(name) as topic, topic.reader() as reader:
        offsets = {partition: reader.earliest(partition) for partition in range(topic.partitions)}
        ends = {partition: reader.end(partition) for partition in offsets}
        while any(offsets[one] < ends[one] for one in offsets):
            for records in reader.read_many(offsets, max_records=_RECORDS, max_bytes=_BYTES, wait_ms=_WAIT_MS):
                yield records
                offsets[records.partition] = records.next_offset
