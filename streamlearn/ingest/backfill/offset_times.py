"""OffsetTimes: the records of impressions that a backfill by offsets is of, and the event times that are in them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streamlearn.apps import AppFolder
from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import PositionLost, UsageError
from streamlearn.events import EventDecoder
from streamlearn.ingest.backfill.history_range import HistoryRange
from streamlearn.ingest.backfill.stretch_reader import read_records
from streamlearn.ingest.reading.plan import ReadPlan
from streamlearn.topics import Reader, open_topic

__all__ = ["OffsetTimes", "offset_times"]

_NONE = np.empty(0, np.int64)


@dataclass(frozen=True)
class OffsetTimes:
    """What some records of the impressions topic are.

    Attributes:
        records: Partition, first offset, and the offset behind the last.
        first_ms: The earliest time in them: of an event, or of a record's stamp.
        last_ms: The latest.
        impressions: How many impressions are in them.
    """

    records: tuple[tuple[int, int, int], ...]
    first_ms: int
    last_ms: int
    impressions: int


def offset_times(
    folder: AppFolder, plan: ReadPlan, within: HistoryRange, *, clock: Clock = SYSTEM_CLOCK
) -> OffsetTimes:
    """Look records up, and read what times are in them.

    They are read once for it: a stamp is that of the latest event in a record, and says nothing of the earliest.

    Args:
        folder: The application.
        plan: What is read.
        within: Which records.
        clock: For how long a broker has given nothing.

    Raises:
        UsageError: The topic has no such partition.
        PositionLost: An offset is outside of what the topic has.
        TopicUnreachable: The topic gave nothing for too long.
    """
    found: list[tuple[int, int, int]] = []
    times: list[int] = []
    impressions, decoder = 0, EventDecoder.of(folder)
    with open_topic(plan.impressions_url, plan.access) as topic:
        named = sorted(within.from_offsets.keys() | within.to_offsets.keys())
        if named[-1] >= topic.partitions:
            message = f"{topic.url} has no partition {named[-1]}: it has {topic.partitions}, numbered from 0"
            raise UsageError(message, help="name partitions of the impressions topic")
        with topic.reader(named) as reader:
            for partition in named:
                begin, end = _bounds(reader, partition, within, accept_lost=plan.accept_lost)
                if begin < end:
                    found.append((partition, begin, end))
                for records in read_records(plan, reader, (partition, begin, end), clock=clock):
                    shown = decoder.decode(records.values).impressions
                    impressions += len(shown)
                    for one in (records.timestamps_ms, shown.columns["event_time_ms"] if len(shown) else _NONE):
                        times += [int(one.min()), int(one.max())] if len(one) else []
    return OffsetTimes(tuple(found), min(times, default=0), max(times, default=0), impressions)


def _bounds(reader: Reader, partition: int, within: HistoryRange, *, accept_lost: bool) -> tuple[int, int]:
    earliest, last = reader.earliest(partition), reader.end(partition)
    begin, end = within.from_offsets.get(partition, earliest), within.to_offsets.get(partition, last)
    if end > last or (begin < earliest and not accept_lost):
        message = (
            f"{reader.url} partition {partition} has records from offset {earliest} up to {last}; the backfill "
            f"asks for {begin} up to {end}"
        )
        raise PositionLost(
            message, help="name offsets that exist, or use --accept-lost to begin at the earliest record"
        )
    return max(begin, earliest), end
