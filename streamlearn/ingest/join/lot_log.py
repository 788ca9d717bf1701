"""The log of a lot: what a runner keeps of it, so that its join can be made again. Pure; it knows no runner.

A join lives in a worker's memory. What a runner keeps is a head, small and written with every change, and bags of
entries, each the events of one lot out of one blob as they came. Bags are filled one after another, as a ring, and
cleared whole once nothing in them can matter any more. The bytes of impressions have a ring of their own, where they
matter for much less long than the rest.
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

# Bags of the ring of events, then of that of payloads. They are declared to a runner before anything is known of an
# application, so they are no settings.
_EVENT_BAGS, _PAYLOAD_BAGS = 6, 4
BAGS = _EVENT_BAGS + _PAYLOAD_BAGS
_ENTRY = struct.Struct("<qq")
# From how many times the shortest window on the longest has payloads kept apart.
_APART_FROM = 2


class PartitionTime(msgspec.Struct, array_like=True, frozen=True):
    """What a lot knows of the reader of one partition.

    Attributes:
        before_ms: The reader's watermark before the latest blob that came; `AFTER_ALL` where it had none.
        after_ms: And behind it.
        closed: Whether that was its last.
    """

    before_ms: int
    after_ms: int
    closed: bool


class Bag(msgspec.Struct, array_like=True, frozen=True):
    """One bag of the ring.

    Attributes:
        entries: How many are in it.
        begin_ms: What the join had reached when the first went in.
        latest_ms: The latest event time in it; once `settled`, that of all events which may have met one in it.
        settled: Whether nothing that comes can meet an action in it any more, but on impressions that are there.
    """

    entries: int = 0
    begin_ms: int = AFTER_ALL
    latest_ms: int = BEFORE_ALL
    settled: bool = False


class Ring(msgspec.Struct, array_like=True, frozen=True):
    """Bags that are filled one after another.

    Attributes:
        current: The bag that is being filled.
        bags: All of them.
    """

    current: int
    bags: tuple[Bag, ...]

    @classmethod
    def empty(cls, bags: int) -> Ring:
        """One of so many empty bags."""
        return cls(0, (Bag(),) * bags)

    def put(self, at_ms: int, latest_ms: int, bag_ms: int) -> Ring:
        """After an entry went into its `current` bag.

        The next bag is taken once the current one was filled for as long as it is to be, if the next one is empty: a
        bag that is needed for longer is never mixed with newer entries, and the current one grows instead.

        Args:
            at_ms: What the join has reached.
            latest_ms: The latest event time of the entry.
            bag_ms: What one bag is filled for.
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
        """After its watermark has moved, and the bags to be cleared.

        Args:
            watermark_ms: Where it is.
            latest_ms: The latest event time that ever came.
            spans: For how long something that comes may meet what is in a bag; and for how long that matters then.
        """
        bags, cleared = list(self.bags), []
        for at, bag in enumerate(self.bags):
            if bag.entries and not bag.settled and watermark_ms > bag.latest_ms + spans[0]:
                # An action may wait for an impression that is later than it: the windows of that one count.
                until_ms = latest_ms if spans[0] else bag.latest_ms
                bag = bags[at] = Bag(bag.entries, bag.begin_ms, until_ms, settled=True)
            if bag.settled and watermark_ms > bag.latest_ms + spans[1]:
                bags[at] = Bag()
                cleared.append(at)
        return Ring(self.current, tuple(bags)), cleared


class LotHead(msgspec.Struct, array_like=True, frozen=True):
    """What is kept of a lot beside its events.

    Attributes:
        generation: A number that the join in memory was given when it was made, and no other has.
        count: How often it was changed since.
        entries: Entries there ever were: the number of the next.
        given: Entries the join had taken in when rows were last given out. Those behind it had come and waited.
        watermark_ms: Up to where rows were given out.
        armed_ms: When the lot is looked at next; None: its timer is not set.
        latest_ms: The latest event time that ever came.
        partitions: By partition.
        events: The ring of events.
        payloads: The ring of impressions' bytes, where they are kept apart.
    """

    generation: int = 0
    count: int = 0
    entries: int = 0
    given: int = 0
    watermark_ms: int = BEFORE_ALL
    armed_ms: int | None = None
    latest_ms: int = BEFORE_ALL
    partitions: dict[int, PartitionTime] = {}
    events: Ring = Ring.empty(_EVENT_BAGS)
    payloads: Ring = Ring.empty(_PAYLOAD_BAGS)

    @property
    def filled(self) -> list[int]:
        """The bags that have entries."""
        return [at for at, bag in enumerate((*self.events.bags, *self.payloads.bags)) if bag.entries]


class Logged(NamedTuple):
    """One entry of the log.

    Attributes:
        number: In the order in which they came.
        watermark_ms: What the join had reached when it came.
        events: The events; impressions without bytes where those were let go of.
        size_bytes: Of the entry.
    """

    number: int
    watermark_ms: int
    events: LotEvents
    size_bytes: int


class LogSpans(msgspec.Struct, frozen=True):
    """How long entries matter.

    Attributes:
        meet_ms: Beyond its time, how long an action may wait for its impression.
        window_ms: Beyond that, how long an impression matters.
        payload_ms: How long the bytes of an impression matter; None: as long as it does.
    """

    meet_ms: int
    window_ms: int
    payload_ms: int | None

    @classmethod
    def of(cls, plan: JoinPlan) -> LogSpans:
        """Those of a join: what it forgets by is slices, so a slice goes on top of each."""
        is_apart = plan.longest_window_ms >= _APART_FROM * plan.shortest_window_ms
        return cls(
            round(1_000 * plan.settings.orphan_wait_s) + plan.slice_ms,
            plan.longest_window_ms + plan.slice_ms,
            plan.shortest_window_ms + plan.slice_ms if is_apart else None,
        )

    # One bag is being filled and one is passing; the others hold the time in between.
    @property
    def event_bag_ms(self) -> int:
        """What a bag of events is filled for."""
        return max(1, (self.meet_ms + self.window_ms) // (_EVENT_BAGS - 2))

    @property
    def payload_bag_ms(self) -> int:
        """What a bag of payloads is filled for."""
        return max(1, (self.payload_ms or 0) // (_PAYLOAD_BAGS - 2))


_ENCODER = msgspec.msgpack.Encoder()
_DECODER: Decoder[LotHead] = packed_decoder_of(LotHead)


def encode_head(head: LotHead) -> bytes:
    """A head as bytes."""
    return _ENCODER.encode(head)


def decode_head(data: bytes | None) -> LotHead:
    """A head from bytes; of none, that of a lot nothing came to.

    Raises:
        BadRecord: They are no head.
    """
    if data is None:
        return LotHead()
    try:
        return _DECODER.decode(data)
    except msgspec.DecodeError as error:
        message = f"cannot decode the head of a lot's log ({len(data)} bytes): {error}"
        raise BadRecord(
            message, help="the checkpoint is from another release; start without it, from what is acknowledged"
        ) from error


def with_events(head: LotHead, events: LotEvents, spans: LogSpans) -> LotHead:
    """A head after events came; `entries_of` are what its bags were given."""
    known = head.partitions.get(events.partition, PartitionTime(BEFORE_ALL, BEFORE_ALL, False))
    told = PartitionTime(
        max(known.before_ms, events.watermark_ms),
        max(known.after_ms, events.after_ms),
        known.closed or events.closes,
    )
    head = msgspec.structs.replace(head, partitions={**head.partitions, events.partition: told})
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
    """What goes into which bag when events come.

    Args:
        before: The head before they came.
        after: And after it.
        events: The events.
        data: They as they came, of `encode_lot`.
        spans: How long they matter.
    """
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
    """Entries in the order in which they came.

    Args:
        bags: What is in bags, in any order.

    Raises:
        BadRecord: It is of another release.
    """
    payloads = {
        _ENTRY.unpack_from(data)[0]: data for bag, found in bags.items() if bag >= _EVENT_BAGS for data in found
    }
    logged = []
    for bag, found in bags.items():
        for data in found if bag < _EVENT_BAGS else ():
            number, watermark_ms = _ENTRY.unpack_from(data)
            events, size_bytes = decode_lot(data[_ENTRY.size :]), len(data)
            if (payload := payloads.get(number)) is not None:
                events, size_bytes = _with_payload(events, payload), size_bytes + len(payload)
            logged.append(Logged(number, watermark_ms, events, size_bytes))
    return sorted(logged, key=lambda one: one.number)


def without_passed(head: LotHead, spans: LogSpans) -> tuple[LotHead, list[int]]:
    """A head once its watermark has moved, and the bags to be cleared."""
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
