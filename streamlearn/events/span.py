"""Spans: where each event's bytes are in one buffer, with its record and its index there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from streamlearn.events.event import Failure, Int32s
from streamlearn.events.pack import PACK_PLAN
from streamlearn.schemas.schema import MARKER, PREFIX_BYTES
from streamlearn.settings.join import RECORD_ITEMS_MAX

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
UInt64s = npt.NDArray[np.uint64]
UInt8s = npt.NDArray[np.uint8]


class Singles(NamedTuple):
    """n records that hold one event each."""

    record_index: Int64s  # [n], the indexes among all records
    fingerprints: UInt64s  # [n], of the writer schemas
    body_at: Int64s  # [n], where the bodies begin
    lengths: Int64s  # [n], with framing


@dataclass(frozen=True)
class Spans:
    """The bytes of n events in one buffer."""

    buffer: UInt8s
    begins: Int64s  # [n], where each event's framing begins
    starts: Int64s  # [n], where its body begins
    ends: Int64s  # [n], where it ends
    fingerprints: UInt64s  # [n], the fingerprint of its writer schema
    record_index: Int32s  # [n], its record
    event_index: Int32s  # [n], its index in the record
    item_base: Int32s  # [n], the index of its first item within the record
    items: Int32s  # [n], the number of items that its pack declares; -1 without a pack

    def __len__(self) -> int:
        return len(self.starts)

    def take(self, rows: Int64s) -> Spans:
        """Return the spans of some rows, with the same buffer."""
        return Spans(self.buffer, *(getattr(self, column.name)[rows] for column in fields(self)[1:]))

    def places(self, record_index: Int32s, event_index: Int32s) -> Int64s:
        """Return the rows of some of these events, each given by its record and its index there."""
        ids, wanted = _ids(self.record_index, self.event_index), _ids(record_index, event_index)
        if (ids[1:] >= ids[:-1]).all():
            return np.searchsorted(ids, wanted).astype(np.int64)
        order = np.argsort(ids)
        rows: Int64s = order[np.searchsorted(ids, wanted, sorter=order)]
        return rows

    def failure(self, row: int, reason: str, detail: str) -> Failure:
        """Return one row as a failure, with its bytes."""
        event_index = -1 if self.items[row] < 0 else int(self.event_index[row])
        event = self.buffer[self.begins[row] : self.ends[row]].tobytes()
        return Failure(int(self.record_index[row]), event_index, reason, detail, event)


def joined_spans(parts: Sequence[Spans]) -> Spans:
    """Join spans into those of one buffer."""
    filled = [part for part in parts if len(part)] or parts[:1]
    if len(filled) == 1:
        return filled[0]
    bases = np.concatenate(([0], np.cumsum([len(part.buffer) for part in filled])))
    joined = {field.name: np.concatenate([getattr(part, field.name) for part in filled]) for field in fields(Spans)}
    shift = np.repeat(bases[:-1], [len(part) for part in filled])
    return Spans(**joined | {name: joined[name] + shift for name in ("begins", "starts", "ends")})


def framed_fingerprints(records: Sequence[bytes], lengths: Int64s) -> tuple[UInt64s, npt.NDArray[np.bool_]]:
    """Return the fingerprint in each of n records (uint64[n]), and whether it has single-object framing (bool[n]).

    A record without that framing gets the number that its bytes happen to form.
    """
    heads = b"".join([record[:PREFIX_BYTES] for record in records])
    if len(heads) != PREFIX_BYTES * len(records):  # some are shorter
        heads = b"".join([record[:PREFIX_BYTES].ljust(PREFIX_BYTES, b"\0") for record in records])
    rows = np.frombuffer(heads, np.uint8).reshape(len(records), PREFIX_BYTES)
    is_framed = (rows[:, 0] == MARKER[0]) & (rows[:, 1] == MARKER[1]) & (lengths >= PREFIX_BYTES)
    return rows[:, len(MARKER) :].reshape(-1).view("<u8").astype(np.uint64), is_framed


def spans_of_records(records: Sequence[bytes], singles: Singles) -> Spans:
    """Return the spans of those records that hold one event each."""
    count = len(singles.record_index)
    chosen = records if count == len(records) else [records[index] for index in singles.record_index.tolist()]
    ends = np.cumsum(singles.lengths)
    begins = ends - singles.lengths
    buffer = np.frombuffer(b"".join(chosen), np.uint8)
    bounds = (begins, begins + singles.body_at, ends)
    return _single_spans(buffer, bounds, singles.fingerprints, singles.record_index.astype(np.int32))


def spans_of_events(buffer: UInt8s, at: Int64s) -> Spans:
    """Return the spans of n framed events, end to end in a buffer, where `at` is int64[n+1]; the row is the record."""
    begins, ends = at[:-1], at[1:]
    bounds = (begins, np.minimum(begins + PREFIX_BYTES, ends), ends)
    return _single_spans(buffer, bounds, _fingerprints(buffer, begins, ends), np.arange(len(begins), dtype=np.int32))


def _single_spans(
    buffer: UInt8s, bounds: tuple[Int64s, Int64s, Int64s], fingerprints: UInt64s, record_index: Int32s
) -> Spans:
    zeros = np.zeros(len(record_index), np.int32)
    return Spans(buffer, *bounds, fingerprints, record_index, event_index=zeros, item_base=zeros, items=zeros - 1)


def spans_of_packs(records: Sequence[bytes], packs: Sequence[int], failures: list[Failure]) -> Spans:
    """Return the spans of the events in packs; invalid packs and events join `failures`."""
    chosen = [records[index] for index in packs]
    columns, kept, malformed = PACK_PLAN.decode_list(chosen, PREFIX_BYTES)
    for row, reason in malformed:
        failures.append(Failure(packs[row], -1, "malformed", reason, chosen[row]))
    record_of = np.asarray(packs, np.int32)[kept]
    events_at, items_at = columns["events[]"], columns["items[]"]
    counts = np.diff(events_at)
    before = np.concatenate((np.zeros(1, np.int64), np.cumsum(columns["items"], dtype=np.int64)))
    invalid = _invalid_packs(counts, items_at, columns["items"], before)
    for row, detail in invalid.items():
        failures.append(Failure(int(record_of[row]), -1, "malformed", detail, chosen[int(kept[row])]))
    if invalid:
        valid = np.delete(kept, list(invalid)).tolist()
        return spans_of_packs(records, [packs[row] for row in valid], failures)
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


def _ids(record_index: Int32s, event_index: Int32s) -> Int64s:
    return record_index.astype(np.int64) << 32 | event_index


def _invalid_packs(counts: Int64s, items_at: Int32s, items: Int32s, before: Int64s) -> dict[int, str]:
    """Return the packs with impossible item counts, and why."""
    invalid: dict[int, str] = {}
    for row in np.flatnonzero(counts != np.diff(items_at)).tolist():
        invalid[row] = f"a pack of {counts[row]} events with {items_at[row + 1] - items_at[row]} item counts"
    totals = before[items_at[1:]] - before[items_at[:-1]]
    for row in np.flatnonzero(totals > RECORD_ITEMS_MAX).tolist():
        invalid.setdefault(row, f"a pack of {totals[row]} items; the limit is {RECORD_ITEMS_MAX}")
    negative = np.flatnonzero(items < 0)
    for row in (np.searchsorted(items_at, negative, side="right") - 1).tolist():
        invalid.setdefault(row, "a pack with a negative item count")
    return invalid


def _framed(spans: Spans, failures: list[Failure]) -> Spans:
    """Return the spans that begin with a framing; the others join `failures`."""
    short = spans.ends - spans.begins < PREFIX_BYTES
    first = np.minimum(spans.begins, max(len(spans.buffer) - 2, 0))
    marker = np.zeros(len(spans), bool)
    if len(spans.buffer) >= len(MARKER):
        marker = (spans.buffer[first] == MARKER[0]) & (spans.buffer[first + 1] == MARKER[1])
    invalid = short | ~marker
    if not invalid.any():
        return spans
    detail = "an event in a pack begins with C3 01 and a fingerprint"
    failures.extend(spans.failure(row, "garbage", detail) for row in np.flatnonzero(invalid).tolist())
    return spans.take(np.flatnonzero(~invalid))


def _fingerprints(buffer: UInt8s, begins: Int64s, ends: Int64s) -> UInt64s:
    """Return the eight bytes after each marker; zero if an event is too short to have them."""
    long = ends - begins >= PREFIX_BYTES
    if not long.any():
        return np.zeros(len(begins), np.uint64)
    # The number that begins at each byte; only those at the places of fingerprints are read.
    numbers = np.ndarray(len(buffer) - 7, "<u8", buffer, strides=(1,))
    return np.where(long, numbers[np.where(long, begins + len(MARKER), 0)], 0).astype(np.uint64, copy=False)
