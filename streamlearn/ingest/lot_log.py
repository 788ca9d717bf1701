"""The log of a lot: what a runner keeps of it, so that its join can be made again. Pure; it knows no runner.

A join lives in a worker's memory. What a runner keeps is a head, small and written with every change, and bags of
entries, each the events of one lot out of one blob as they came. Bags are filled one after another, as a ring, and
cleared whole once nothing in them can matter any more.
"""

from __future__ import annotations

import struct

import msgspec

from streamlearn.errors import BadRecord
from streamlearn.ingest.join_plan import JoinPlan
from streamlearn.ingest.lot_events import LotEvents
from streamlearn.ingest.watermark import AFTER_ALL, BEFORE_ALL

__all__ = [
    "LOG_BAGS",
    "Bag",
    "Entry",
    "LogSpans",
    "LotHead",
    "PartitionTime",
    "decode_head",
    "encode_head",
    "pack_entry",
    "unpack_entry",
    "with_entry",
    "without_passed",
]

# Bags of the ring. They are declared to a runner before anything is known of an application, so this is no setting.
LOG_BAGS = 6
_ENTRY = struct.Struct("<qq")


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
        current: The bag that is being filled.
        bags: All of them.
    """

    generation: int = 0
    count: int = 0
    entries: int = 0
    given: int = 0
    watermark_ms: int = BEFORE_ALL
    armed_ms: int | None = None
    latest_ms: int = BEFORE_ALL
    partitions: dict[int, PartitionTime] = {}
    current: int = 0
    bags: tuple[Bag, ...] = (Bag(),) * LOG_BAGS


class Entry(msgspec.Struct, frozen=True):
    """One entry of the log.

    Attributes:
        number: In the order in which they came.
        watermark_ms: What the join had reached when it came.
        data: The events, as bytes.
    """

    number: int
    watermark_ms: int
    data: bytes


class LogSpans(msgspec.Struct, frozen=True):
    """How long entries matter.

    Attributes:
        meet_ms: Beyond its time, how long an action may wait for its impression.
        window_ms: Beyond that, how long an impression matters.
        bag_ms: What one bag is filled for.
    """

    meet_ms: int
    window_ms: int
    bag_ms: int

    @classmethod
    def of(cls, plan: JoinPlan) -> LogSpans:
        """Those of a join: what it forgets by is slices, so a slice goes on top of each."""
        meet_ms = round(1_000 * plan.settings.orphan_wait_s) + plan.slice_ms
        window_ms = plan.longest_window_ms + plan.slice_ms
        # One bag is being filled and one is passing; the others hold the time in between.
        return cls(meet_ms, window_ms, max(1, (meet_ms + window_ms) // (LOG_BAGS - 2)))


_ENCODER, _DECODER = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(LotHead)


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
    except msgspec.MsgspecError as error:
        message = f"{len(data)} bytes are no head of a lot's log: {error}"
        raise BadRecord(
            message, help="the checkpoint is of another release; start anew, from what is acknowledged"
        ) from error


def pack_entry(entry: Entry) -> bytes:
    """An entry as bytes."""
    return _ENTRY.pack(entry.number, entry.watermark_ms) + entry.data


def unpack_entry(data: bytes) -> Entry:
    """An entry from bytes.

    Examples:
        >>> unpack_entry(pack_entry(Entry(7, 1_000, b"events")))
        Entry(number=7, watermark_ms=1000, data=b'events')
    """
    number, watermark_ms = _ENTRY.unpack_from(data)
    return Entry(number, watermark_ms, data[_ENTRY.size :])


def with_entry(head: LotHead, events: LotEvents, spans: LogSpans) -> LotHead:
    """A head after events came: its `current` is the bag they go to, if there are any.

    The next bag is taken once the current one is filled for as long as it is to be, if the next one is empty: a bag
    that is needed for longer is never mixed with newer entries, and the current one grows instead.
    """
    known = head.partitions.get(events.partition, PartitionTime(BEFORE_ALL, BEFORE_ALL, False))
    told = PartitionTime(
        max(known.before_ms, events.watermark_ms),
        max(known.after_ms, events.after_ms),
        known.closed or events.closes,
    )
    head = msgspec.structs.replace(head, partitions={**head.partitions, events.partition: told})
    if not len(events):
        return head
    latest_ms = max(
        int(events.impressions.event_time_ms.max(initial=BEFORE_ALL)),
        int(events.actions.event_time_ms.max(initial=BEFORE_ALL)),
    )
    bags, current = list(head.bags), head.current
    following = (current + 1) % LOG_BAGS
    filled_ms = head.watermark_ms - bags[current].begin_ms
    if bags[current].entries and filled_ms >= spans.bag_ms and not bags[following].entries:
        current = following
    bag = bags[current]
    bags[current] = Bag(
        bag.entries + 1,
        bag.begin_ms if bag.entries else head.watermark_ms,
        max(bag.latest_ms, latest_ms),
    )
    return msgspec.structs.replace(
        head,
        entries=head.entries + 1,
        latest_ms=max(head.latest_ms, latest_ms),
        current=current,
        bags=tuple(bags),
    )


def without_passed(head: LotHead, spans: LogSpans) -> tuple[LotHead, list[int]]:
    """A head once its watermark has moved, and the bags to be cleared.

    An action may wait for an impression that is later than it; so a bag matters until the windows are over of the
    latest impression that came while its actions waited.
    """
    bags, cleared = list(head.bags), []
    for at, bag in enumerate(head.bags):
        if bag.entries and not bag.settled and head.watermark_ms > bag.latest_ms + spans.meet_ms:
            bag = bags[at] = Bag(bag.entries, bag.begin_ms, head.latest_ms, settled=True)
        if bag.settled and head.watermark_ms > bag.latest_ms + spans.window_ms:
            bags[at] = Bag()
            cleared.append(at)
    return msgspec.structs.replace(head, bags=tuple(bags)), cleared
