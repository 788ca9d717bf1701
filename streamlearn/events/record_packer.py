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
    if not len(order):
        return []
    ends = np.cumsum(np.bincount(partition_of_row, minlength=partitions))
    data, at = native.take_spans(encoded.buffer, encoded.offsets, order)
    items = encoded.items[order]
    cuts = _cuts(at, items, ends, events_max, bytes_max)
    values, bounds = data, at.astype(np.int64)
    if events_max > 1:
        columns: Columns = {"events[]": cuts, "events": data, "events$": at, "items[]": cuts, "items": items}
        values, bounds = PACK_PLAN.encode(columns, len(cuts) - 1, EVENT_PACK.prefix)
    first = order[cuts[:-1]]
    keys = native.take_spans(encoded.request_ids, encoded.request_at.astype(np.int64), first)
    columns_of_record = zip(
        partition_of_row[first].tolist(),
        _texts(values, bounds),
        _texts(*keys),
        np.maximum.reduceat(encoded.event_time_ms[order], cuts[:-1]).tolist(),
        np.diff(cuts).tolist(),
        strict=True,
    )
    return [Packed(*record) for record in columns_of_record]


def _texts(data: npt.NDArray[np.uint8], at: npt.NDArray[np.integer[Any]]) -> list[bytes]:
    whole = data.tobytes()
    return [whole[begin:end] for begin, end in pairwise(at.tolist())]


def _cuts(
    at: npt.NDArray[np.int32],
    items: npt.NDArray[np.int32],
    ends: npt.NDArray[np.int64],
    events_max: int,
    bytes_max: int,
) -> npt.NDArray[np.int32]:
    """Return where each record's events begin, with as many events in a record as its bounds allow.

    Events are in the order of partitions, which end at `ends`; a record is of one partition.
    """
    events, cuts = len(at) - 1, [0]
    if events_max == 1:
        return np.arange(events + 1, dtype=np.int32)
    # An event costs its bytes and the pack's overhead; with the running total, each cut is one search.
    cost = at.astype(np.int64) + np.arange(events + 1) * Pack.EVENT_COST_BYTES
    room, shown = bytes_max - Pack.COST_BYTES, np.concatenate(([0], np.cumsum(items, dtype=np.int64)))
    for end in ends.tolist():
        while (begin := cuts[-1]) < end:
            last = min(begin + events_max, end)
            if cost[last] > cost[begin] + room:
                last = int(np.searchsorted(cost, cost[begin] + room, side="right")) - 1
            if shown[last] > shown[begin] + RECORD_ITEMS_MAX:
                last = int(np.searchsorted(shown, shown[begin] + RECORD_ITEMS_MAX, side="right")) - 1
            cuts.append(max(begin + 1, last))
    return np.asarray(cuts, np.int32)
