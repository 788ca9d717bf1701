"""The packing of event columns into records, by partition and within the bounds of a record."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from streamlearn.events.encoder import EncodedEvents
from streamlearn.events.event import Columns
from streamlearn.events.pack import PACK_PLAN, Pack
from streamlearn.native import native
from streamlearn.schemas import EVENT_PACK
from streamlearn.settings.join import RECORD_ITEMS_MAX

__all__ = ["Packed", "pack_columns"]


class Packed(NamedTuple):
    """One record."""

    partition: int
    value: bytes  # a single event, or a pack of several
    key: bytes  # the request id of the first event
    time_ms: int  # the latest event time
    events: int  # the number of events


def pack_columns(encoded: EncodedEvents, partitions: int, events_max: int, bytes_max: int) -> list[Packed]:
    """Return the records of many events, in their order within each partition; each event must fit a record.

    A record holds at most `events_max` events, `bytes_max` bytes and `RECORD_ITEMS_MAX` items; `events_max=1` packs
    none.
    """
    partition_of_row = native.partitions_of(encoded.request_at, encoded.request_ids, partitions)
    order = np.argsort(partition_of_row, kind="stable")
    bounds = np.searchsorted(partition_of_row[order], np.arange(partitions + 1)).tolist()
    records: list[Packed] = []
    for partition, (begin, end) in enumerate(pairwise(bounds)):
        if end > begin:
            records += _of_partition(encoded, order[begin:end], partition, (events_max, bytes_max))
    return records


def _of_partition(
    encoded: EncodedEvents, rows: npt.NDArray[np.int64], partition: int, limits: tuple[int, int]
) -> list[Packed]:
    data, at = native.take_spans(encoded.buffer, encoded.offsets, rows)
    cuts = _cuts(at, encoded.items[rows], *limits)
    times = np.maximum.reduceat(encoded.event_time_ms[rows], cuts[:-1]).tolist()
    values, bounds = data, at.astype(np.int64)
    if limits[0] > 1:
        items = np.ascontiguousarray(encoded.items[rows])
        columns: Columns = {"events[]": cuts, "events": data, "events$": at, "items[]": cuts, "items": items}
        values, bounds = PACK_PLAN.encode(columns, len(cuts) - 1, EVENT_PACK.prefix)
    first = rows[cuts[:-1]]
    keys = _texts(*native.take_spans(encoded.request_ids, encoded.request_at.astype(np.int64), first))
    counts = np.diff(cuts).tolist()
    columns_of_record = zip(_texts(values, bounds), keys, times, counts, strict=True)
    return [Packed(partition, value, key, time_ms, events) for value, key, time_ms, events in columns_of_record]


def _texts(data: npt.NDArray[np.uint8], at: npt.NDArray[np.integer[Any]]) -> list[bytes]:
    whole = data.tobytes()
    return [whole[begin:end] for begin, end in pairwise(at.tolist())]


def _cuts(
    at: npt.NDArray[np.int32], items: npt.NDArray[np.int32], events_max: int, bytes_max: int
) -> npt.NDArray[np.int32]:
    """Return where each record's events begin, with as many events in a record as its bounds allow."""
    events, cuts = len(at) - 1, [0]
    if events_max == 1:
        return np.arange(events + 1, dtype=np.int32)
    # An event costs its bytes and the pack's overhead; with the running total, each cut is one search.
    cost = at.astype(np.int64) + np.arange(events + 1) * Pack.EVENT_COST_BYTES
    room, shown = bytes_max - Pack.COST_BYTES, np.concatenate(([0], np.cumsum(items, dtype=np.int64)))
    while cuts[-1] < events:
        begin = cuts[-1]
        fit = int(np.searchsorted(cost, cost[begin] + room, side="right")) - 1
        few = int(np.searchsorted(shown, shown[begin] + RECORD_ITEMS_MAX, side="right")) - 1
        cuts.append(max(begin + 1, min(fit, few, begin + events_max)))
    return np.asarray(cuts, np.int32)
