"""StretchReader: one partition of both event topics, from the begin of a stretch to its end, as blobs.

It ends at offsets that follow from event times, not at end marks: history may continue.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace

import numpy as np

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import TopicUnreachable
from streamlearn.ingest.backfill.stretch import Stretch
from streamlearn.ingest.reading.blob import Blob, Section
from streamlearn.ingest.reading.plan import ReadPlan
from streamlearn.ingest.reading.sections import event_times_of, section_of
from streamlearn.ingest.reading.start_offset import open_at
from streamlearn.ingest.reading.watermark import BEFORE_ALL, TopicClock
from streamlearn.topics import Reader, Records, open_topic

__all__ = ["read_records", "read_stretch", "with_events"]

_RECORDS_MAX = 4_096
# Reading ends after this many records in a row with timestamps after a stretch.
_LATE_RECORDS = 1_024
_NONE = np.empty(0, np.int64)
_EMPTY = Section(_NONE, _NONE, _NONE, [], [])


def with_events(plan: ReadPlan, stretches: Sequence[Stretch]) -> list[Stretch]:
    """Return the stretches in which either topic has an event, or a record by its timestamp."""
    times_of = event_times_of(plan)
    with ExitStack() as stack:
        topics = [stack.enter_context(open_topic(url, plan.access)) for url in (plan.impressions_url, plan.actions_url)]
        readers = [stack.enter_context(topic.reader()) for topic in topics]

        def has_events(stretch: Stretch, reader: Reader, partition: int) -> bool:
            is_first = stretch.begin_ms <= 0
            begin = reader.earliest(partition) if is_first else reader.offset_for_time(partition, stretch.begin_ms)
            bounds = (partition, begin, reader.end(partition))
            for records in _until(read_records(plan, reader, bounds), stretch.end_ms + _disorder_ms(plan, stretch)):
                if stretch.is_own(records.timestamps_ms).any():
                    return True
                if times_of and any(stretch.is_own(times_of(value)).any() for value in records.values):
                    return True
            return False

        every = [(reader, partition) for partition in range(plan.partitions) for reader in readers]
        return [stretch for stretch in stretches if any(has_events(stretch, *source) for source in every)]


def _disorder_ms(plan: ReadPlan, stretch: Stretch) -> int:
    """Return how much later than newer records those of a stretch may come."""
    return plan.rules.out_of_orderness_ms + stretch.actions_ms[1] - stretch.end_ms


def read_stretch(plan: ReadPlan, stretch: Stretch, partition: int, *, clock: Clock = SYSTEM_CLOCK) -> Iterator[Blob]:
    """Yield the blobs of one partition: impressions, then actions.

    Records are found by their timestamps. The blobs have every event of the stretch's times, unless it came later than
    newer ones by more than the longest window and `out_of_orderness_s`. They may have events of other times too.

    Raises:
        TopicReplaced: A topic was deleted and created again.
        PositionLost: Records of the stretch may have been deleted.
        TopicUnreachable: A topic returned nothing for too long.
    """
    lineage = plan.lineage
    topics = (
        (plan.impressions_url, lineage.events_topic_id, stretch.impressions_ms),
        (plan.actions_url, lineage.actions_topic_id, stretch.actions_ms),
    )
    disorder_ms = _disorder_ms(plan, stretch)
    for number, (url, topic_id, (first_ms, last_ms)) in enumerate(topics):
        topic, reader, position = open_at(replace(plan, start_ms=first_ms), url, partition, topic_id)
        with topic, reader:
            bounds = (partition, position.offset, reader.end(partition))
            for section in _sections(plan, reader, bounds, clock, last_ms + disorder_ms + 1):
                sections = (section, _EMPTY) if number == 0 else (_EMPTY, section)
                yield Blob(partition, False, False, BEFORE_ALL, *sections, after_ms=BEFORE_ALL)


def _until(batches: Iterator[Records], time_ms: int) -> Iterator[Records]:
    """Yield records until many in a row have timestamps at or after `time_ms`.

    A single late timestamp proves nothing: it may come from a producer whose clock is fast.
    """
    late = 0
    for records in batches:
        yield records
        earlier = np.flatnonzero(records.timestamps_ms < time_ms)
        late = late + len(records) if not len(earlier) else len(records) - 1 - int(earlier[-1])
        if late >= _LATE_RECORDS:
            return


def _sections(
    plan: ReadPlan, reader: Reader, bounds: tuple[int, int, int], clock: Clock, until_ms: int
) -> Iterator[Section]:
    topic_clock, times_of = TopicClock(), event_times_of(plan)
    for records in _until(read_records(plan, reader, bounds, clock=clock), until_ms):
        section, topic_clock = section_of(records, topic_clock, plan.rules, clock.wall_ms(), times_of)
        if len(section):
            yield section


def read_records(
    plan: ReadPlan, reader: Reader, bounds: tuple[int, int, int], *, clock: Clock = SYSTEM_CLOCK
) -> Iterator[Records]:
    """Yield records of a partition from a first to an end offset (exclusive) that the topic has reached.

    Raises `TopicUnreachable` if the topic returns nothing for too long.
    """
    partition, offset, end = bounds
    blob_bytes, moved_s = plan.settings.blob_bytes, clock.monotonic_s()
    while offset < end:
        records = reader.read(
            partition, offset, max_records=_RECORDS_MAX, max_bytes=blob_bytes, wait_ms=plan.fetch_wait_ms
        )
        if records.next_offset > offset:
            offset, moved_s = records.next_offset, clock.monotonic_s()
            yield records.slice(0, int(np.searchsorted(records.offsets, end)))
        elif clock.monotonic_s() - moved_s > plan.access.unreachable_after_ms / 1_000:
            message = f"{reader.url} partition {partition} returns no records from offset {offset} on; it ends at {end}"
            hint = "check the broker, then run the backfill again: nothing is learned twice"
            raise TopicUnreachable(message, help=hint)
