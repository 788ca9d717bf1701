"""OffsetTimes: the impression records of a backfill by offsets, and their event times."""

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
    """Some records of the impressions topic.

    Attributes:
        records: Partition, first offset, and end offset (exclusive) of each range.
        first_ms: The earliest time of an event or of a record's timestamp.
        last_ms: The latest.
        impressions: The number of impressions in the records.
    """

    records: tuple[tuple[int, int, int], ...]
    first_ms: int
    last_ms: int
    impressions: int


def offset_times(
    folder: AppFolder, plan: ReadPlan, within: HistoryRange, *, clock: Clock = SYSTEM_CLOCK
) -> OffsetTimes:
    """Look up the records of a range, and read their times.

    A record's timestamp is that of its latest event and tells nothing of the earliest, so the records are read.

    Raises:
        UsageError: The topic has no such partition.
        PositionLost: An offset is outside the topic.
        TopicUnreachable: The topic returned nothing for too long.
    """
    ranges: list[tuple[int, int, int]] = []
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
                    ranges.append((partition, begin, end))
                for records in read_records(plan, reader, (partition, begin, end), clock=clock):
                    shown = decoder.decode(records.values).impressions
                    impressions += len(shown)
                    event_times = shown.columns["event_time_ms"] if len(shown) else _NONE
                    for column in (records.timestamps_ms, event_times):
                        times += [int(column.min()), int(column.max())] if len(column) else []
    return OffsetTimes(tuple(ranges), min(times, default=0), max(times, default=0), impressions)


def _bounds(reader: Reader, partition: int, within: HistoryRange, *, accept_lost: bool) -> tuple[int, int]:
    earliest, last = reader.earliest(partition), reader.end(partition)
    begin, end = within.from_offsets.get(partition, earliest), within.to_offsets.get(partition, last)
    if end > last or (begin < earliest and not accept_lost):
        message = (
            f"{reader.url} partition {partition} has records from offset {earliest} up to {last}; the backfill "
            f"asks for {begin} up to {end}"
        )
        hint = "name offsets that exist, or use --accept-lost to begin at the earliest record"
        raise PositionLost(message, help=hint)
    return max(begin, earliest), end
