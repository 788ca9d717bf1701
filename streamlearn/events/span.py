"""Where each event's bytes lie: spans of one buffer, with the record and place each came from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from streamlearn.events.event import Failure, Int32s
from streamlearn.events.pack import PACK_PLAN
from streamlearn.schemas.schema import MARKER, PREFIX_BYTES

__all__ = [
    "Singles",
    "Spans",
    "framed_fingerprints",
    "joined_spans",
    "spans_of_events",
    "spans_of_packs",
    "spans_of_records",
]

Int64s = npt.NDArray[np.int64]

# An item's index within its record is an int32, and packs of ours hold far less.
PACK_ITEMS_MAX = 1 << 24


class Singles(NamedTuple):
    """Records that hold one event each: n of them.

    Attributes:
        record_index: int64[n]. Which of all records.
        fingerprints: uint64[n]. Their writer schemas'.
        body_at: int64[n]. Where their bodies begin.
        lengths: int64[n]. How long they are, framing included.
    """

    record_index: Int64s
    fingerprints: npt.NDArray[np.uint64]
    body_at: Int64s
    lengths: Int64s


@dataclass(frozen=True)
class Spans:
    """Bodies of n events.

    Attributes:
        buffer: uint8. Holds them all.
        begins: int64[n]. Where each event's framing begins.
        starts: int64[n]. Where its body begins.
        ends: int64[n]. Where it ends.
        fingerprints: uint64[n]. Its writer schema's.
        record_index: int32[n]. The record it came from.
        event_index: int32[n]. Which event of its record.
        item_base: int32[n]. The index of its first item within its record.
        items: int32[n]. How many items its pack says it has; -1: it came alone.
    """

    buffer: npt.NDArray[np.uint8]
    begins: Int64s
    starts: Int64s
    ends: Int64s
    fingerprints: npt.NDArray[np.uint64]
    record_index: Int32s
    event_index: Int32s
    item_base: Int32s
    items: Int32s

    def __len__(self) -> int:
        return len(self.starts)

    def take(self, rows: Int64s) -> Spans:
        """The spans of some rows; the buffer is shared."""
        return Spans(
            self.buffer,
            self.begins[rows],
            self.starts[rows],
            self.ends[rows],
            self.fingerprints[rows],
            self.record_index[rows],
            self.event_index[rows],
            self.item_base[rows],
            self.items[rows],
        )

    def places(self, record_index: Int32s, event_index: Int32s) -> Int64s:
        """Where some of these events lie, each named by its record and its place in it."""
        mine, wanted = _numbers(self.record_index, self.event_index), _numbers(record_index, event_index)
        if (mine[1:] >= mine[:-1]).all():
            return np.searchsorted(mine, wanted).astype(np.int64)
        order = np.argsort(mine)
        found: Int64s = order[np.searchsorted(mine, wanted, sorter=order)]
        return found

    def failure(self, row: int, reason: str, detail: str) -> Failure:
        """One row as a failure, with its bytes."""
        alone = bool(self.items[row] < 0)
        event_index = -1 if alone else int(self.event_index[row])
        event = self.buffer[self.begins[row] : self.ends[row]].tobytes()
        return Failure(int(self.record_index[row]), event_index, reason, detail, event)


def joined_spans(parts: Sequence[Spans]) -> Spans:
    """Several spans as those of one buffer."""
    filled = [one for one in parts if len(one)] or parts[:1]
    if len(filled) == 1:
        return filled[0]
    bases = np.concatenate(([0], np.cumsum([len(one.buffer) for one in filled])))
    joined = {field.name: np.concatenate([getattr(one, field.name) for one in filled]) for field in fields(Spans)}
    shift = np.repeat(bases[:-1], [len(one) for one in filled])
    return Spans(**joined | {name: joined[name] + shift for name in ("begins", "starts", "ends")})


def framed_fingerprints(
    records: Sequence[bytes], lengths: Int64s
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.bool_]]:
    """What single-object framing says at the begin of each record, and which records begin so.

    Args:
        records: n records.
        lengths: int64[n]. Their lengths.

    Returns:
        uint64[n], whatever bytes stand there, and bool[n].
    """
    heads = b"".join([record[:PREFIX_BYTES] for record in records])
    if len(heads) != PREFIX_BYTES * len(records):  # some are shorter
        heads = b"".join([record[:PREFIX_BYTES].ljust(PREFIX_BYTES, b"\0") for record in records])
    rows = np.frombuffer(heads, np.uint8).reshape(len(records), PREFIX_BYTES)
    is_framed = (rows[:, 0] == MARKER[0]) & (rows[:, 1] == MARKER[1]) & (lengths >= PREFIX_BYTES)
    return rows[:, len(MARKER) :].reshape(-1).view("<u8").astype(np.uint64), is_framed


def spans_of_records(records: Sequence[bytes], singles: Singles) -> Spans:
    """Spans of records that hold one event each.

    Args:
        records: All records.
        singles: Those that do.
    """
    count = len(singles.record_index)
    chosen = records if count == len(records) else [records[index] for index in singles.record_index.tolist()]
    ends = np.cumsum(singles.lengths)
    begins = ends - singles.lengths
    zeros = np.zeros(count, np.int32)
    return Spans(
        buffer=np.frombuffer(b"".join(chosen), np.uint8),
        begins=begins,
        starts=begins + singles.body_at,
        ends=ends,
        fingerprints=singles.fingerprints,
        record_index=singles.record_index.astype(np.int32),
        event_index=zeros,
        item_base=zeros,
        items=np.full(count, -1, np.int32),
    )


def spans_of_events(buffer: npt.NDArray[np.uint8], at: Int64s) -> Spans:
    """Spans of framed events that lie end to end, each told by its place as its record.

    Args:
        buffer: uint8. All of them.
        at: int64[n+1]. Where each begins.
    """
    begins, ends, zeros = at[:-1], at[1:], np.zeros(len(at) - 1, np.int32)
    return Spans(
        buffer=buffer,
        begins=begins,
        starts=np.minimum(begins + PREFIX_BYTES, ends),
        ends=ends,
        fingerprints=_fingerprints(buffer, begins, ends),
        record_index=np.arange(len(begins), dtype=np.int32),
        event_index=zeros,
        item_base=zeros,
        items=np.full(len(begins), -1, np.int32),
    )


def spans_of_packs(records: Sequence[bytes], packs: Sequence[int], failures: list[Failure]) -> Spans:
    """Spans of the events within packs; packs and events that cannot be told apart join `failures`."""
    chosen = [records[index] for index in packs]
    columns, kept, malformed = PACK_PLAN.decode_list(chosen, PREFIX_BYTES)
    for row, reason in malformed:
        failures.append(Failure(packs[row], -1, "malformed", reason, chosen[row]))
    record_of = np.asarray(packs, np.int32)[kept]
    events_at, items_at = columns["events[]"], columns["items[]"]
    counts = np.diff(events_at)
    before = np.concatenate((np.zeros(1, np.int64), np.cumsum(columns["items"], dtype=np.int64)))
    lying = _lying(counts, items_at, columns["items"], before)
    for row, detail in lying.items():
        failures.append(Failure(int(record_of[row]), -1, "malformed", detail, chosen[int(kept[row])]))
    if lying:
        keep = np.delete(kept, list(lying)).tolist()
        return spans_of_packs(records, [packs[row] for row in keep], failures)
    ends = columns["events$"][1:].astype(np.int64)
    begins = columns["events$"][:-1].astype(np.int64)
    base = before[:-1] - np.repeat(before[events_at[:-1]], counts)
    spans = Spans(
        buffer=columns["events"],
        begins=begins,
        starts=begins + PREFIX_BYTES,
        ends=ends,
        fingerprints=_fingerprints(columns["events"], begins, ends),
        record_index=np.repeat(record_of, counts),
        event_index=(np.arange(len(ends)) - np.repeat(events_at[:-1], counts)).astype(np.int32),
        item_base=base.astype(np.int32),
        items=columns["items"],
    )
    return _framed(spans, failures)


def _numbers(record_index: Int32s, event_index: Int32s) -> Int64s:
    return record_index.astype(np.int64) << 32 | event_index


def _lying(counts: Int64s, items_at: Int32s, items: Int32s, before: Int64s) -> dict[int, str]:
    """Packs whose item counts cannot be true, and what they say."""
    lying: dict[int, str] = {}
    for row in np.flatnonzero(counts != np.diff(items_at)).tolist():
        lying[row] = f"a pack of {counts[row]} events with {items_at[row + 1] - items_at[row]} item counts"
    shown = before[items_at[1:]] - before[items_at[:-1]]
    for row in np.flatnonzero(shown > PACK_ITEMS_MAX).tolist():
        lying.setdefault(row, f"a pack of {shown[row]} items; the limit is {PACK_ITEMS_MAX}")
    negative = np.flatnonzero(items < 0)
    for row in (np.searchsorted(items_at, negative, side="right") - 1).tolist():
        lying.setdefault(row, "a pack with a negative item count")
    return lying


def _framed(spans: Spans, failures: list[Failure]) -> Spans:
    """The spans that begin as a framed event does."""
    short = spans.ends - spans.begins < PREFIX_BYTES
    first = np.minimum(spans.begins, max(len(spans.buffer) - 2, 0))
    marker = np.zeros(len(spans), bool)
    if len(spans.buffer) >= len(MARKER):
        marker = (spans.buffer[first] == MARKER[0]) & (spans.buffer[first + 1] == MARKER[1])
    bad = short | ~marker
    if not bad.any():
        return spans
    detail = "an event in a pack begins with C3 01 and a fingerprint"
    failures.extend(spans.failure(row, "garbage", detail) for row in np.flatnonzero(bad).tolist())
    return spans.take(np.flatnonzero(~bad))


def _fingerprints(buffer: npt.NDArray[np.uint8], begins: Int64s, ends: Int64s) -> npt.NDArray[np.uint64]:
    """The eight bytes after each marker; zero where an event is too short to have them."""
    found = np.zeros((len(begins), 8), np.uint8)
    long = ends - begins >= PREFIX_BYTES
    found[long] = buffer[begins[long, None] + np.arange(2, PREFIX_BYTES)]
    return found.reshape(-1).view("<u8").astype(np.uint64)
