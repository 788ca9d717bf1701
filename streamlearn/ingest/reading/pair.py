"""PairReader: partition i of both event topics as one stream of blobs, with its watermark and its mark.

Both are read by one reader because a request and its actions meet there: so neither runs far ahead of the other. It
knows no runner, and not what events are beyond the heartbeats and end marks that move time.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import NamedTuple

import msgspec
import numpy as np

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.ingest.reading.blob import Blob, Section, lengths_of
from streamlearn.ingest.reading.lead import Lead
from streamlearn.ingest.reading.ledger import Ledger
from streamlearn.ingest.reading.mark import PairMark
from streamlearn.ingest.reading.meters import ReadMeter
from streamlearn.ingest.reading.plan import ReadPlan
from streamlearn.ingest.reading.puller import Puller, PullLimits
from streamlearn.ingest.reading.run_watermark import Acknowledged, follow, unfollow
from streamlearn.ingest.reading.sections import EventTimes, section_of
from streamlearn.ingest.reading.start_offset import open_at
from streamlearn.ingest.reading.steady_clock import SteadyClock
from streamlearn.ingest.reading.watermark import AFTER_ALL, BEFORE_ALL, TopicClock, watermark_of
from streamlearn.topics import Position, Records

__all__ = ["PairReader", "Taken"]

_TOPICS = ("impressions", "actions")
# A blob is filled from reads of this share of it, so that it is not much larger than its bound.
_READS_A_BLOB = 4


class Taken(NamedTuple):
    """One element.

    Attributes:
        blob: What was read.
        time_ms: The watermark before it: nothing in it is behind that. Never `AFTER_ALL`.
        size_bytes: Of its records.
    """

    blob: Blob
    time_ms: int
    size_bytes: int


class PairReader:
    """Reads one partition of both topics.

    Guaranteed: `take` returns at once; every record comes once and in the order of its topic; a reader made from a
    mark gives exactly what the one before had not given. Not guaranteed: the same blobs: what is in one depends on
    what had been fetched. For one thread at a time; close it.

    Args:
        plan: What is read.
        partition: Of both topics.
        mark: Where to go on; None: where the run begins.
        clock: The wall, and for how long nothing moved.

    Raises:
        TopicReplaced: A topic, or the mark's, is another one now.
        PositionLost: What is wanted was deleted.
    """

    def __init__(
        self, plan: ReadPlan, partition: int, mark: PairMark | None = None, *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._plan, self._partition, self._clock = plan, partition, SteadyClock(clock)
        self._clocks = mark.clocks if mark else (TopicClock(), TopicClock())
        self._opened, self._closed = bool(mark and mark.opened), bool(mark and mark.closed)
        first_ms = BEFORE_ALL if plan.start_ms is None else plan.start_ms
        self._watermark_ms = mark.watermark_ms if mark else first_ms
        self._moved_s = clock.monotonic_s()
        self._meter = ReadMeter(partition)
        self._event_times = EventTimes.of(plan)
        self._lead = Lead(plan.limits.lead_ms, plan.limits.lead_bytes)
        self._ledger = Ledger(plan.limits.read_ahead_bytes)
        self._pending: list[Records | None] = [None, None]
        self._waited_for = (True, True)
        self._ended = self._stopped = False
        self._opened_topics = ExitStack()
        with ExitStack() as stack:
            starts: tuple[Position | int, ...] = (mark.impressions, mark.actions) if mark else (partition, partition)
            self._pullers, self._positions = self._open(stack, starts)
            self._acknowledged = self._follow(stack)
            self._opened_topics = stack.pop_all()

    @property
    def watermark_ms(self) -> int:
        """Up to which event time everything was given; `AFTER_ALL` once there is nothing more to come."""
        return AFTER_ALL if self._stopped else self._watermark_ms

    @property
    def is_finished(self) -> bool:
        """Whether nothing more comes: both topics have ended and all of them was given, or the run was stopped."""
        return self._ended or self._stopped

    def take(self) -> Taken | None:
        """The next element, None when there is none now.

        Raises:
            IngestOver: A newer run has taken over.
            StreamlearnError: A topic cannot be read.
        """
        if self._is_told_to_stop():
            return self._last()
        if not self._has_room():
            self._meter.read_ahead_waits.inc()
            self._note_standstill()
            return None
        before_ms = self._watermark_ms
        parts: tuple[list[Section], list[Section]] = ([], [])
        size = 0
        while size < self._plan.limits.blob_bytes:
            topic = self._next_topic()
            if topic is None:
                break
            section, used = self._use(topic, self._plan.limits.blob_bytes - size)
            parts[topic].append(section)
            size += used
        self._move()
        ends = (
            not self._opened and self._watermark_ms > BEFORE_ALL,
            not self._closed and self._ended,
        )
        if not any(map(len, parts[0] + parts[1])) and not any(ends):
            return None
        return self._given(parts, size, before_ms, ends)

    def _is_told_to_stop(self) -> bool:
        return not self._ended and self._acknowledged is not None and self._acknowledged.is_stopped

    def _last(self) -> Taken | None:
        """The closing element of a reader that stops before its topics end, once."""
        self._stopped = True
        if self._closed:
            return None
        return self._given(([], []), 0, self._watermark_ms, (not self._opened, True))

    def mark(self) -> PairMark:
        """Where it stands: behind what was given."""
        impressions, actions = self._positions
        return PairMark(impressions, actions, self._clocks, self._watermark_ms, self._opened, self._closed)

    def end(self) -> None:
        """Have its threads end: whoever closes several readers tells all of them first, for each waits for a broker."""
        for puller in self._pullers:
            puller.end()

    def close(self) -> None:
        """Let go of topics and threads."""
        self.end()
        self._opened_topics.close()

    def _open(self, stack: ExitStack, starts: tuple[Position | int, ...]) -> tuple[tuple[Puller, ...], list[Position]]:
        plan, limits = self._plan, self._plan.limits
        urls = (plan.impressions_url, plan.actions_url)
        ids = (plan.lineage.events_topic_id, plan.lineage.actions_topic_id)
        pull = PullLimits(
            held_bytes=limits.prefetch_bytes,
            read_bytes=max(1, min(limits.blob_bytes // _READS_A_BLOB, limits.prefetch_bytes)),
            wait_ms=limits.fetch_wait_ms,
            idle_s=limits.idle_s,
        )
        pullers, positions = [], []
        for url, topic_id, start in zip(urls, ids, starts, strict=True):
            topic, reader, position = open_at(plan, url, start, topic_id)
            stack.callback(topic.close)
            puller = Puller(reader, self._partition, position.offset, limits=pull, clock=self._clock)
            stack.callback(puller.close)
            pullers.append(puller)
            positions.append(position)
        return tuple(pullers), positions

    def _follow(self, stack: ExitStack) -> Acknowledged | None:
        plan = self._plan
        if not plan.progress_url:
            return None
        every_s, lots = plan.limits.acknowledged_every_s, plan.lineage.lots_count
        found = follow(plan.progress_url, plan.access, run=plan.run, lots_count=lots, every_s=every_s)
        stack.callback(unfollow, plan.progress_url, plan.run)
        return found

    def _has_room(self) -> bool:
        reached_ms = AFTER_ALL if self._acknowledged is None else self._acknowledged.reached_ms()
        has_room = self._ledger.has_room(reached_ms)
        held = self._ledger.unacknowledged_bytes
        self._meter.unacknowledged.set(held)
        self._meter.read_ahead.set(held / self._plan.limits.read_ahead_bytes)
        return has_room

    def _next_topic(self) -> int | None:
        """The topic whose records come next; None when those there are have to wait, or there are none."""
        if not all(puller.has_looked() for puller in self._pullers):
            return None  # of which topic is behind nothing is known yet
        proofs = self._proofs()
        is_wall = self._plan.rules.time == "wall"
        waited_for = [
            not clock.ended and not (is_wall and proof is not None)
            for clock, proof in zip(self._clocks, proofs, strict=True)
        ]
        self._waited_for = (waited_for[0], waited_for[1])
        allowed = self._lead.allowed(self._clocks, self._waited_for)
        for topic, name in enumerate(_TOPICS):
            self._meter.lead.labels(str(self._partition), name).set(self._lead.bytes_ahead(topic))
        for topic in allowed:
            if self._has(topic):
                return topic
        if any(self._has(topic) for topic in (0, 1)):
            self._meter.lead_waits.inc()
        return None

    def _has(self, topic: int) -> bool:
        if self._pending[topic] is None:
            self._pending[topic] = self._pullers[topic].take()
        return self._pending[topic] is not None

    def _proofs(self) -> list[int | None]:
        """When each topic was proven empty; what was fetched and not given is no emptiness."""
        found = []
        for puller, pending in zip(self._pullers, self._pending, strict=True):
            proof = puller.empty_ms()
            found.append(None if pending is not None or puller.has_some() else proof)
        return found

    def _use(self, topic: int, room_bytes: int) -> tuple[Section, int]:
        """Give what fits, and what the lead allows, of a topic's fetched records: at least one."""
        records = self._pending[topic]
        assert records is not None
        sizes = np.maximum(lengths_of(records.values), 0)
        count = min(self._near(topic, records), int(np.searchsorted(np.cumsum(sizes), room_bytes, side="right")))
        count = min(len(records), max(1, count))
        given = records.slice(0, count)
        self._pending[topic] = None if count == len(records) else records.slice(count, len(records))
        wall_ms = self._clock.wall_ms()
        section = self._read(topic, given, wall_ms)
        size = int(sizes[:count].sum())
        self._lead.note(topic, self._clocks[topic].now_ms, size)
        old = self._positions[topic]
        self._positions[topic] = Position(old.topic_id, old.partition, given.next_offset, given.leader_epoch)
        return section, size

    def _near(self, topic: int, records: Records) -> int:
        """How many records come before the first that is too far ahead of the other topic."""
        other, other_ms = 1 - topic, self._clocks[1 - topic].now_ms
        if not self._waited_for[other] or (other_ms == BEFORE_ALL and not self._has(other)):
            return len(records)
        if other_ms == BEFORE_ALL and len(records):  # its turn comes once something was given
            other_ms = int(records.timestamps_ms[0])
        far = records.timestamps_ms > other_ms + self._plan.limits.lead_ms
        return int(np.argmax(far)) if far.any() else len(records)

    def _read(self, topic: int, records: Records, wall_ms: int) -> Section:
        """Move the topic's clock over some records; heartbeats and end marks go no further than here."""
        # Only watermarks are held back: an event of today is possible, also while the wall is not believed.
        rules = self._plan.rules
        rules = msgspec.structs.replace(rules, ahead_ms=rules.ahead_ms + self._clock.ahead_ms)
        section, clock = section_of(records, self._clocks[topic], rules, wall_ms, self._event_times)
        self._clocks = (clock, self._clocks[1]) if topic == 0 else (self._clocks[0], clock)
        if impossible := int((section.timestamps_ms > section.limits_ms).sum()):
            self._meter.impossible.inc(impossible)
        return section

    def _move(self) -> None:
        proofs = self._proofs()
        moved_ms = watermark_of(self._clocks, self._plan.rules, proofs, self._watermark_ms)
        if moved_ms == AFTER_ALL:
            drained = not any(self._has(topic) for topic in (0, 1))
            self._ended = drained
            moved_ms = AFTER_ALL if drained else self._watermark_ms
        if moved_ms > self._watermark_ms:
            self._watermark_ms, self._moved_s = moved_ms, self._clock.monotonic_s()
        self._note_standstill()

    def _note_standstill(self) -> None:
        if BEFORE_ALL < self._watermark_ms < AFTER_ALL:
            self._meter.watermark.set(self._watermark_ms / 1000)
        self._meter.still.set(self._clock.monotonic_s() - self._moved_s)

    def _given(
        self, parts: tuple[list[Section], list[Section]], size: int, before_ms: int, ends: tuple[bool, bool]
    ) -> Taken:
        sections, (opens, closes) = [_joined(sections) for sections in parts], ends
        self._opened, self._closed = self._opened or opens, self._closed or closes
        # Of a first blob nothing is known to be before it; it comes no later than what it lets time be.
        time_ms = before_ms if before_ms > BEFORE_ALL or not opens else min(self._watermark_ms, _least(sections))
        blob = Blob(self._partition, opens, closes, time_ms, sections[0], sections[1], self._watermark_ms)
        self._ledger.add(self._watermark_ms, size)
        self._meter.blobs.inc()
        self._meter.records.inc(len(blob))
        # A runner whose sources are at their end fires all timers ahead of what has the time of the end.
        return Taken(blob, time_ms if time_ms < AFTER_ALL else before_ms, size)


def _joined(sections: list[Section]) -> Section:
    if len(sections) == 1:
        return sections[0]
    none = np.empty(0, np.int64)
    return Section(
        np.concatenate([none, *(one.offsets for one in sections)]),
        np.concatenate([none, *(one.timestamps_ms for one in sections)]),
        np.concatenate([none, *(one.limits_ms for one in sections)]),
        [key for one in sections for key in one.keys],
        [value for one in sections for value in one.values],
    )


def _least(sections: list[Section]) -> int:
    return min(int(one.timestamps_ms.min(initial=AFTER_ALL)) for one in sections)
