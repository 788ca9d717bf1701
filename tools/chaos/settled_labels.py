"""Settled labels: the final labels in a samples topic, for comparison with what was learned."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.apps import AppFolder
from streamlearn.events import EventDecoder
from streamlearn.events.columns import ids_of
from streamlearn.samples import SampleBatch, SampleCodec
from tools.demo.sent_labels import records_of

__all__ = ["UNSETTLED", "SettledLabels", "ends_of_rows", "read_settled", "row_id", "settled_of"]

UNSETTLED = -1
"""The value of a label that no row settles."""

Identity = tuple[int, int, int]
"""Partition, offset and index of the item."""


def row_id(request: str, item: Any) -> int:
    """Return 64 bits that identify a shown row within this process."""
    return hash((request, item))


@dataclass(frozen=True, eq=False)
class SettledLabels:
    """The labels that a topic settles: n distinct identities.

    Attributes:
        rows: int64[n]. Row id of each identity; a row under two identities is there twice.
        values: int8[n, labels]. Final value of each label; UNSETTLED where no row settles it.
        corrected: Number of labels that are first negative, and positive in a later row.
        unknown: Identities without an impression.
    """

    rows: npt.NDArray[np.int64]
    values: npt.NDArray[np.int8]
    corrected: int
    unknown: tuple[str, ...] = ()

    @property
    def labels(self) -> int:
        """Number of settled labels."""
        return int((self.values != UNSETTLED).sum())


def read_settled(folder: AppFolder) -> SettledLabels:
    """Read the whole samples topic, each partition in order, and the impressions of its rows."""
    codec = SampleCodec(folder.app, folder.settings.samples)
    batches = (codec.decode(value) for records in records_of(folder, "samples") for value in records.values if value)
    return settled_of(batches, _shown(folder), len(folder.app.labels))


def ends_of_rows(folder: AppFolder) -> list[int]:
    """Return, by partition, the offset after the last message with rows. Later messages need no new version."""
    codec = SampleCodec(folder.app, folder.settings.samples)
    ends: dict[int, int] = {}
    for records in records_of(folder, "samples"):
        ends.setdefault(records.partition, 0)
        for offset, value in zip(records.offsets.tolist(), records.values, strict=True):
            if value and len(codec.decode(value)):
                ends[records.partition] = offset + 1
    return [ends[partition] for partition in sorted(ends)]


def settled_of(batches: Iterable[SampleBatch], shown: Mapping[Identity, int], labels: int) -> SettledLabels:
    """Return the settled labels of batches, which must be in the order of their partitions.

    `shown` has the row id of each identity of the impressions topic; `labels` is the number of labels of a row.
    """
    values_of: dict[Identity, list[int]] = {}
    corrected = 0
    for batch in batches:
        if not len(batch):
            continue
        at = batch.request_index
        partitions, offsets = batch.requests.partition[at].tolist(), batch.requests.offset[at].tolist()
        settles = np.stack([label.settles for label in batch.labels], axis=1).tolist()
        values = np.stack([label.value for label in batch.labels], axis=1).tolist()
        rows = zip(partitions, offsets, batch.item_index.tolist(), settles, values, strict=True)
        for partition, offset, item, row_settles, row_values in rows:
            state = values_of.setdefault((partition, offset, item), [UNSETTLED] * labels)
            for label, is_settled in enumerate(row_settles):
                if is_settled:
                    corrected += state[label] == 0 and row_values[label] == 1
                    state[label] = max(state[label], row_values[label])
    known = {identity: state for identity, state in values_of.items() if identity in shown}
    unknown = tuple(
        f"item {item} of partition {partition} offset {offset}"
        for partition, offset, item in values_of.keys() - known.keys()
    )
    row_ids = np.fromiter((shown[identity] for identity in known), np.int64, len(known))
    return SettledLabels(row_ids, np.array([*known.values()], np.int8).reshape(-1, labels), corrected, unknown)


def _shown(folder: AppFolder) -> dict[Identity, int]:
    """Return the row id of every identity in the impressions topic."""
    decoder, row_ids = EventDecoder.of(folder), {}
    for records in records_of(folder, "impressions"):
        shown = decoder.decode(records.values).impressions
        if not len(shown):
            continue
        requests = ids_of(shown.columns, "request_id")
        items = ids_of(shown.columns, f"items.{folder.app.features.item_id}")
        begins = shown.columns["items[]"].tolist()
        offsets, bases = records.offsets[shown.record_index].tolist(), shown.item_base.tolist()
        for row, request in enumerate(requests):
            for at, item in enumerate(items[begins[row] : begins[row + 1]]):
                row_ids[records.partition, offsets[row], bases[row] + at] = row_id(request, item)
    return row_ids
