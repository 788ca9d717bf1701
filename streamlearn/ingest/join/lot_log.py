"""The log of a lot: the state that a runner keeps so that the lot's join can be rebuilt. Pure; it knows no runner.

A join lives in a worker's memory. The runner keeps a head, small and written with every change, and bags of entries,
each with the events of one lot out of one blob. Bags are filled in turn, as a ring, and cleared as a whole once their
entries no longer matter. The bytes of impressions have a ring of their own: they matter for a much shorter time.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

import msgspec
import numpy as np

from streamlearn.errors import BadRecord
from streamlearn.ingest.join.lot_events import LotEvents, decode_lot, encode_lot
from streamlearn.ingest.join.plan import JoinPlan
from streamlearn.ingest.reading.watermark import AFTER_ALL, BEFORE_ALL
from streamlearn.struct_decoder import Decoder, packed_decoder_of

__all__ = [
    "BAGS",
    "Bag",
    "LogSpans",
    "Logged",
    "LotHead",
    "PartitionTime",
    "Ring",
    "decode_head",
    "encode_head",
    "entries_of",
    "logged_of",
    "with_events",
    "without_passed",
]

# Bags of the ring of events, then of the ring of payloads. A runner must know them before it loads an application, so
# they cannot be settings.
_EVENT_BAGS, _PAYLOAD_BAGS = 6, 4
BAGS = _EVENT_BAGS + _PAYLOAD_BAGS
_ENTRY = struct.Struct("<qq")
# Payloads are kept apart if the longest window is at least this multiple of the shortest.
_APART_FROM = 2


class PartitionTime(msgspec.Struct, array_like=True, frozen=True):
    """The times that a lot knows of one partition's reader.

    Attributes:
        before_ms: The reader's watermark before its latest blob; `AFTER_ALL` if it had ended.
        after_ms: Its watermark after that blob.
        closed: Whether that blob was its last.
    """

    before_ms: int
    after_ms: int
    closed: bool


class Bag(msgspec.Struct, array_like=True, frozen=True):
    """One bag of the ring.

    Attributes:
        entries: Number of entries.
        begin_ms: The join's watermark at the first entry.
        latest_ms: The latest event time in it; once `settled`, that of all events that may have met one in it.
        settled: Whether later events can no longer meet an action in it, except on impressions that are in the bag.
    """

    entries: int = 0
    begin_ms: int = AFTER_ALL
    latest_ms: int = BEFORE_ALL
    settled: bool = False


class Ring(msgspec.Struct, array_like=True, frozen=True):
    """Bags that are filled in turn; `current` is the one being filled."""

    current: int
    bags: tuple[Bag, ...]

    def put(self, at_ms: int, latest_ms: int, bag_ms: int) -> Ring:
        """Return the ring after an entry went into its `current` bag.

        The current bag changes once it was filled for `bag_ms` and the next one is empty: a bag that is needed for
        longer is never mixed with newer entries, and the current one grows instead. `at_ms` is the join's watermark,
        `latest_ms` the latest event time of the entry.
        """
        bags, current = list(self.bags), self.current
        following = (current + 1) % len(bags)
        if bags[current].entries and at_ms - bags[current].begin_ms >= bag_ms and not bags[following].entries:
            current = following
        bag = bags[current]
        begin_ms = bag.begin_ms if bag.entries else at_ms
        bags[current] = Bag(bag.entries + 1, begin_ms, max(bag.latest_ms, latest_ms))
        return Ring(current, tuple(bags))

    def pass_to(self, watermark_ms: int, latest_ms: int, spans: tuple[int, int]) -> tuple[Ring, list[int]]:
        """Return the ring after the watermark moved, and the bags to clear.

        `latest_ms` is the latest event time of the lot. `spans` has how long later events may meet those in a bag, and
        how long that matters then.
        """
        bags, cleared = list(self.bags), []
        for at, bag in enumerate(self.bags):
            if bag.entries and not bag.settled and watermark_ms > bag.latest_ms + spans[0]:
                # An action may wait for a later impression, whose windows count.
                until_ms = latest_ms if spans[0] else bag.latest_ms
                bag = bags[at] = Bag(bag.entries, bag.begin_ms, until_ms, settled=True)
            if bag.settled and watermark_ms > bag.latest_ms + spans[1]:
                bags[at] = Bag()
                cleared.append(at)
        return Ring(self.current, tuple(bags)), cleared


class LotHead(msgspec.Struct, array_like=True, frozen=True):
    """The state of a lot, except its events.

    Attributes:
        generation: The unique number of the join in memory.
        count: How often the join was changed.
        entries: Entries so far: the number of the next one.
        given: Entries that the join had added when rows were last emitted. Later ones were waiting.
        watermark_ms: The event time up to which rows were emitted.
        armed_ms: The time of the next look; None: the timer is not set.
        latest_ms: The latest event time so far.
        events: The ring of events.
        payloads: The ring of impressions' bytes, if they are kept apart.
    """

    generation: int = 0
    count: int = 0
    entries: int = 0
    given: int = 0
    watermark_ms: int = BEFORE_ALL
    armed_ms: int | None = None
    latest_ms: int = BEFORE_ALL
    partitions: dict[int, PartitionTime] = {}
    events: Ring = Ring(0, (Bag(),) * _EVENT_BAGS)
    payloads: Ring = Ring(0, (Bag(),) * _PAYLOAD_BAGS)

    @property
    def filled(self) -> list[int]:
        """The bags that have entries."""
        return [at for at, bag in enumerate((*self.events.bags, *self.payloads.bags)) if bag.entries]


class Logged(NamedTuple):
    """One entry of the log.

    Attributes:
        number: Its place in the order of arrival.
        watermark_ms: The join's watermark on arrival.
        events: The events; impressions whose bytes were dropped have none.
        size_bytes: Of the entry.
    """

    number: int
    watermark_ms: int
    events: LotEvents
    size_bytes: int


class LogSpans(msgspec.Struct, frozen=True):
    """How long entries matter.

    Attributes:
        meet_ms: How long an action may wait for its impression.
        window_ms: How long after that an impression matters.
        payload_ms: How long the bytes of an impression matter; None: as long as the impression.
    """

    meet_ms: int
    window_ms: int
    payload_ms: int | None

    @classmethod
    def of(cls, plan: JoinPlan) -> LogSpans:
        """Return the spans of a join, each plus a slice, since a join forgets by slices."""
        is_apart = plan.longest_window_ms >= _APART_FROM * plan.shortest_window_ms
        return cls(
            round(1_000 * plan.settings.orphan_wait_s) + plan.slice_ms,
            plan.longest_window_ms + plan.slice_ms,
            plan.shortest_window_ms + plan.slice_ms if is_apart else None,
        )

    @property
    def event_bag_ms(self) -> int:
        """How long a bag of events is filled. One is being filled and one expires; the others hold the time between."""
        return max(1, (self.meet_ms + self.window_ms) // (_EVENT_BAGS - 2))

    @property
    def payload_bag_ms(self) -> int:
        """How long a bag of payloads is filled."""
        return max(1, (self.payload_ms or 0) // (_PAYLOAD_BAGS - 2))


_ENCODER = msgspec.msgpack.Encoder()
_DECODER: Decoder[LotHead] = packed_decoder_of(LotHead)


def encode_head(head: LotHead) -> bytes:
    """Encode a head."""
    return _ENCODER.encode(head)


def decode_head(data: bytes | None) -> LotHead:
    """Decode a head; None is the head of a lot without events. Raises `BadRecord` for other bytes."""
    if data is None:
        return LotHead()
    try:
        return _DECODER.decode(data)
    except msgspec.DecodeError as error:
        message = f"cannot decode the head of a lot's log ({len(data)} bytes): {error}"
        hint = "the checkpoint is from another release; start without it: the run continues from acknowledged progress"
        raise BadRecord(message, help=hint) from error


def with_events(head: LotHead, events: LotEvents, spans: LogSpans) -> LotHead:
    """Return a head after events came; `entries_of` returns the entries of its bags."""
    old = head.partitions.get(events.partition, PartitionTime(BEFORE_ALL, BEFORE_ALL, False))
    before_ms, after_ms = max(old.before_ms, events.watermark_ms), max(old.after_ms, events.after_ms)
    time = PartitionTime(before_ms, after_ms, old.closed or events.closes)
    head = msgspec.structs.replace(head, partitions={**head.partitions, events.partition: time})
    if not len(events):
        return head
    shown_ms = int(events.impressions.event_time_ms.max(initial=BEFORE_ALL))
    latest_ms = max(shown_ms, int(events.actions.event_time_ms.max(initial=BEFORE_ALL)))
    payloads = head.payloads
    if spans.payload_ms is not None and len(events.impressions.payload):
        payloads = payloads.put(head.watermark_ms, shown_ms, spans.payload_bag_ms)
    return msgspec.structs.replace(
        head,
        entries=head.entries + 1,
        latest_ms=max(head.latest_ms, latest_ms),
        events=head.events.put(head.watermark_ms, latest_ms, spans.event_bag_ms),
        payloads=payloads,
    )


def entries_of(
    before: LotHead, after: LotHead, events: LotEvents, data: bytes, spans: LogSpans
) -> list[tuple[int, bytes]]:
    """Return the entries for new events, each with its bag; `data` are the events, encoded by `encode_lot`."""
    if not len(events):
        return []
    head = _ENTRY.pack(before.entries, before.watermark_ms)
    shown = events.impressions
    if spans.payload_ms is None or not len(shown.payload):
        return [(after.events.current, head + data)]
    bare = replace(shown, payload=shown.payload[:0], payload_at=np.zeros_like(shown.payload_at))
    lengths = np.diff(shown.payload_at).astype("<u4")
    return [
        (after.events.current, head + encode_lot(replace(events, impressions=bare))),
        (_EVENT_BAGS + after.payloads.current, head + lengths.tobytes() + shown.payload.tobytes()),
    ]


def logged_of(bags: Mapping[int, Iterable[bytes]]) -> list[Logged]:
    """Return the entries of all bags in the order of arrival. Raises `BadRecord` if they are from another release."""
    payloads = {
        _ENTRY.unpack_from(data)[0]: data for bag, entries in bags.items() if bag >= _EVENT_BAGS for data in entries
    }
    logged = []
    for bag, entries in bags.items():
        for data in entries if bag < _EVENT_BAGS else ():
            number, watermark_ms = _ENTRY.unpack_from(data)
            events, size_bytes = decode_lot(data[_ENTRY.size :]), len(data)
            if (payload := payloads.get(number)) is not None:
                events, size_bytes = _with_payload(events, payload), size_bytes + len(payload)
            logged.append(Logged(number, watermark_ms, events, size_bytes))
    return sorted(logged, key=lambda entry: entry.number)


def without_passed(head: LotHead, spans: LogSpans) -> tuple[LotHead, list[int]]:
    """Return a head after its watermark moved, and the bags to clear."""
    events, cleared = head.events.pass_to(head.watermark_ms, head.latest_ms, (spans.meet_ms, spans.window_ms))
    payloads, passed = head.payloads.pass_to(head.watermark_ms, head.latest_ms, (0, spans.payload_ms or 0))
    after = msgspec.structs.replace(head, events=events, payloads=payloads)
    return after, [*cleared, *(_EVENT_BAGS + at for at in passed)]


def _with_payload(events: LotEvents, data: bytes) -> LotEvents:
    count = len(events.impressions)
    lengths = np.frombuffer(data, "<u4", count, _ENTRY.size)
    payload_at = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    payload = np.frombuffer(data, np.uint8, offset=_ENTRY.size + 4 * count)
    return replace(events, impressions=replace(events.impressions, payload=payload, payload_at=payload_at))
