"""PairReader: one partition of both event topics as one stream of blobs, with its watermark and its mark.

One reader takes both, because a request and its actions meet there: so neither runs far ahead of the other. It does not
know the runner, nor which events there are besides the heartbeats and end marks that advance time.
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
from streamlearn.ingest.reading.run_watermark import FOLLOWED, Acknowledged
from streamlearn.ingest.reading.sections import event_times_of, section_of
from streamlearn.ingest.reading.start_offset import open_at
from streamlearn.ingest.reading.steady_clock import SteadyClock
from streamlearn.ingest.reading.watermark import AFTER_ALL, BEFORE_ALL, TopicClock, read_all, watermark_of
from streamlearn.topics import Position, Records

__all__ = ["PairReader", "Taken"]

_TOPICS = ("impressions", "actions")
# Each read fetches this fraction of a blob, so that a blob is not much larger than its bound.
_READS_PER_BLOB = 4
# A lot without events follows the watermark in steps, by timers. After a larger jump it gets an empty blob instead.
_JUMP_MS = 60_000


class Taken(NamedTuple):
    """One element.

    Attributes:
        blob: The records.
        time_ms: The watermark before the blob, so that none of its records is late. Never `AFTER_ALL`.
    """

    blob: Blob
    time_ms: int


class PairReader:
    """Reads one partition of both topics, from a mark, or from where the run begins.

    Guaranteed: `take` returns at once; every record comes once and in the order of its topic; a reader made from a mark
    emits exactly what the one before had not. Not guaranteed: the same blobs: their content depends on what had been
    fetched. For one thread at a time; close it.

    Raises:
        TopicReplaced: A topic, or the mark's topic, was deleted and created again.
        PositionLost: Records that are needed were deleted.
    """

    def __init__(
        self, plan: ReadPlan, partition: int, mark: PairMark | None = None, *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._plan, self._partition, self._clock = plan, partition, SteadyClock(clock)
        self._clocks = mark.clocks if mark else (TopicClock(), TopicClock())
        self._opened, self._closed = bool(mark and mark.opened), bool(mark and mark.closed)
        first_ms = BEFORE_ALL if plan.read_from_ms is None else plan.read_from_ms
        self._watermark_ms = mark.watermark_ms if mark else first_ms
        times_ms = [plan.times_ms(is_actions) for is_actions in (False, True)]
        before_ms = [BEFORE_ALL if times is None else times[1] - 1 for times in times_ms]
        self._latest_ms = list(mark.latest_ms) if mark else before_ms
        self._moved_s = clock.monotonic_s()
        self._meter = ReadMeter(partition)
        self._event_times = event_times_of(plan)
        self._lead = Lead(plan.lead_ms, plan.settings.lead_bytes)
        self._ledger = Ledger(plan.read_ahead_bytes)
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
        """The event time up to which everything was emitted; `AFTER_ALL` once nothing more comes."""
        return AFTER_ALL if self._stopped else self._watermark_ms

    @property
    def is_finished(self) -> bool:
        """Whether nothing more comes: both topics have ended and were emitted, or the run was stopped."""
        return self._ended or self._stopped

    def take(self) -> Taken | None:
        """Return the next element, None when there is none now.

        Raises `IngestOver` if a newer run has taken over, another `StreamlearnError` if a topic cannot be read.
        """
        if not self._ended and self._acknowledged is not None and self._acknowledged.is_stopped:
            return self._closing_element()
        for puller, position, name in zip(self._pullers, self._positions, _TOPICS, strict=True):
            self._meter.behind.labels(str(self._partition), name).set(puller.behind(position.offset))
        if not self._has_room():
            self._meter.read_ahead_waits.inc()
            self._note_standstill()
            return None
        before_ms = self._watermark_ms
        parts: tuple[list[Section], list[Section]] = ([], [])
        size = 0
        while size < self._plan.settings.blob_bytes:
            topic = self._next_topic()
            if topic is None:
                break
            section, used = self._emit_records(topic, self._plan.settings.blob_bytes - size)
            parts[topic].append(section)
            size += used
        self._advance()
        jumps = BEFORE_ALL < before_ms < self._watermark_ms - _JUMP_MS and not self._ended
        opens = jumps or (not self._opened and self._watermark_ms > BEFORE_ALL)
        flags = (opens, not self._closed and self._ended)
        if not any(map(len, parts[0] + parts[1])) and not any(flags):
            return None
        return self._emitted(parts, size, before_ms, flags)

    def _closing_element(self) -> Taken | None:
        """Return the closing element of a reader that stops before its topics end, once."""
        self._stopped = True
        if self._closed:
            return None
        return self._emitted(([], []), 0, self._watermark_ms, (not self._opened, True))

    def mark(self) -> PairMark:
        """Return the position after the records that were emitted."""
        impressions, actions = self._positions
        state = self._clocks, self._watermark_ms, self._opened, self._closed
        return PairMark(impressions, actions, *state, latest_ms=(self._latest_ms[0], self._latest_ms[1]))

    def end(self) -> None:
        """Tell the threads to end. Tell all readers before you close one: closing waits for a broker."""
        for puller in self._pullers:
            puller.end()

    def close(self) -> None:
        """Close topics and threads."""
        self.end()
        self._opened_topics.close()

    def _open(self, stack: ExitStack, starts: tuple[Position | int, ...]) -> tuple[tuple[Puller, ...], list[Position]]:
        plan, settings = self._plan, self._plan.settings
        urls = (plan.impressions_url, plan.actions_url)
        ids = (plan.lineage.events_topic_id, plan.lineage.actions_topic_id)
        pull = PullLimits(
            held_bytes=settings.prefetch_bytes,
            read_bytes=max(1, min(settings.blob_bytes // _READS_PER_BLOB, settings.prefetch_bytes)),
            wait_ms=plan.fetch_wait_ms,
            idle_s=settings.idle_s,
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
        if not self._plan.progress_url:
            return None
        acknowledged = FOLLOWED.acquire(self._plan.run_key, lambda: Acknowledged(self._plan))
        stack.callback(FOLLOWED.release, self._plan.run_key)
        return acknowledged

    def _has_room(self) -> bool:
        reached_ms = AFTER_ALL if self._acknowledged is None else self._acknowledged.reached_ms()
        has_room = self._ledger.has_room(reached_ms)
        held = self._ledger.unacknowledged_bytes
        self._meter.unacknowledged.set(held)
        self._meter.read_ahead.set(held / self._plan.read_ahead_bytes)
        return has_room

    def _next_topic(self) -> int | None:
        """Return the topic whose records come next; None when it has none, or they have to wait."""
        if not all(puller.has_looked() for puller in self._pullers):
            return None  # it is unknown which topic is behind
        is_wall = self._plan.rules.time == "wall"
        impressions, actions = (
            not clock.ended and not (is_wall and proof is not None)
            for clock, proof in zip(self._clocks, self._proofs(), strict=True)
        )
        self._waited_for = (impressions, actions)
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
        """Return when each topic was proven empty. Fetched records that are not emitted disprove it."""
        proofs = []
        for puller, pending in zip(self._pullers, self._pending, strict=True):
            proof = puller.empty_ms()
            proofs.append(None if pending is not None or puller.has_some() else proof)
        return proofs

    def _emit_records(self, topic: int, room_bytes: int) -> tuple[Section, int]:
        """Emit the fetched records of a topic that fit and that the lead allows, at least one."""
        records = self._pending[topic]
        assert records is not None
        sizes = np.maximum(lengths_of(records.values), 0)
        count = min(self._near_count(topic, records), int(np.searchsorted(np.cumsum(sizes), room_bytes, side="right")))
        count = min(len(records), max(1, count))
        emitted = records.slice(0, count)
        self._pending[topic] = None if count == len(records) else records.slice(count, len(records))
        section = self._advance_clock(topic, emitted)
        size = int(sizes[:count].sum())
        self._lead.note(topic, self._clocks[topic].now_ms, size)
        old = self._positions[topic]
        self._positions[topic] = Position(old.topic_id, old.partition, emitted.next_offset, emitted.leader_epoch)
        self._latest_ms[topic] = int(emitted.timestamps_ms.max(initial=self._latest_ms[topic]))
        if self._acknowledged is not None:
            self._acknowledged.read[2 * old.partition + topic] = (emitted.next_offset, self._latest_ms[topic])
        return section, size

    def _near_count(self, topic: int, records: Records) -> int:
        """Return how many records come before the first that is too far ahead of the other topic."""
        other, other_ms = 1 - topic, self._clocks[1 - topic].now_ms
        if self._plan.rules.time == "wall" and self._clocks[topic].now_ms == BEFORE_ALL:
            return len(records)  # its first record alone proves no time: the producer's clock may be fast
        if not self._waited_for[other] or (other_ms == BEFORE_ALL and not self._has(other)):
            return len(records)
        if other_ms == BEFORE_ALL and len(records):  # unknown until its first record is emitted
            other_ms = int(records.timestamps_ms[0])
        far = records.timestamps_ms > other_ms + self._plan.lead_ms
        return int(np.argmax(far)) if far.any() else len(records)

    def _advance_clock(self, topic: int, records: Records) -> Section:
        """Advance the topic's clock over some records, and drop heartbeats and end marks."""
        # Only watermarks are held back: an event of today is possible even while the wall is not trusted.
        wall_ms, rules = self._clock.wall_ms(), self._plan.rules
        rules = msgspec.structs.replace(rules, ahead_ms=rules.ahead_ms + self._clock.ahead_ms)
        section, clock = section_of(records, self._clocks[topic], rules, wall_ms, self._event_times)
        self._clocks = (clock, self._clocks[1]) if topic == 0 else (self._clocks[0], clock)
        if impossible := int((section.timestamps_ms > section.limits_ms).sum()):
            self._meter.impossible.inc(impossible)
        return section

    def _advance(self) -> None:
        wall_ms, rules = self._clock.wall_ms(), self._plan.rules
        impressions, actions = (
            read_all(clock, rules, wall_ms) if pending is None and puller.is_at_end() else clock
            for clock, puller, pending in zip(self._clocks, self._pullers, self._pending, strict=True)
        )
        self._clocks = (impressions, actions)
        moved_ms = watermark_of(self._clocks, rules, self._proofs(), self._watermark_ms)
        if moved_ms == AFTER_ALL:
            self._ended = not any(self._has(topic) for topic in (0, 1))
            moved_ms = AFTER_ALL if self._ended else self._watermark_ms
        if moved_ms > self._watermark_ms:
            self._watermark_ms, self._moved_s = moved_ms, self._clock.monotonic_s()
        self._note_standstill()

    def _note_standstill(self) -> None:
        if BEFORE_ALL < self._watermark_ms < AFTER_ALL:
            self._meter.watermark.set(self._watermark_ms / 1000)
        self._meter.still.set(self._clock.monotonic_s() - self._moved_s)

    def _emitted(
        self, parts: tuple[list[Section], list[Section]], size: int, before_ms: int, flags: tuple[bool, bool]
    ) -> Taken:
        sections, (opens, closes) = [_joined_sections(sections) for sections in parts], flags
        self._opened, self._closed = self._opened or opens, self._closed or closes
        # Before a first blob no watermark is known: its time is that of its earliest record, or its own watermark.
        time_ms = before_ms if before_ms > BEFORE_ALL or not opens else min(self._watermark_ms, _least(sections))
        blob = Blob(self._partition, opens, closes, time_ms, sections[0], sections[1], self._watermark_ms)
        self._ledger.add(self._watermark_ms, size)
        self._meter.blobs.inc()
        self._meter.records.inc(len(blob))
        # A runner fires timers before it processes elements of a later time, so that of a first blob is not its own.
        return Taken(blob, before_ms)


def _joined_sections(sections: list[Section]) -> Section:
    if len(sections) == 1:
        return sections[0]
    none = np.empty(0, np.int64)
    return Section(
        np.concatenate([none, *(section.offsets for section in sections)]),
        np.concatenate([none, *(section.timestamps_ms for section in sections)]),
        np.concatenate([none, *(section.limits_ms for section in sections)]),
        [key for section in sections for key in section.keys],
        [value for section in sections for value in section.values],
    )


def _least(sections: list[Section]) -> int:
    return min(int(section.timestamps_ms.min(initial=AFTER_ALL)) for section in sections)
