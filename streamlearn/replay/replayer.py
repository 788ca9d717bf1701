"""The replayer: a history through a Producer, at a multiple of real time or as fast as it goes.

It does not know what the events are, nor where the topics live.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import ConfigError
from streamlearn.events import Producer, rows_of
from streamlearn.events.event import Columns
from streamlearn.replay.history import History, HistoryBlock
from streamlearn.settings.events import ReplaySettings

__all__ = ["ReplayProgress", "ReplayReport", "Replayer"]

# Blocks are sent this often at most, a stop is noticed this fast, and a topic that refuses is noticed this
# fast when nothing else asks for a flush.
BLOCK_WALL_MS = 50
SLEEP_S_MAX = 0.1
FLUSH_S = 1.0
SPEED_MAX = 1e9

Scored = Callable[[Columns, int], Columns]


@dataclass(frozen=True)
class ReplayProgress:
    """How far a replay is.

    Attributes:
        events: Events given to the Producer so far.
        event_time_ms: The event time reached.
        seconds: How long it has taken.
    """

    events: int
    event_time_ms: int
    seconds: float

    @property
    def events_per_s(self) -> float:
        """Events a second so far."""
        return self.events / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True)
class ReplayReport:
    """What a replay did; all of it is acknowledged.

    Attributes:
        impressions: How many impressions were written.
        actions: How many actions were written.
        begin_ms: The event time it began at.
        reached_ms: The event time it reached.
        seconds: How long it took.
        events_per_s: Events a second.
        ended: Whether the end mark was written; False: it was stopped before.
    """

    impressions: int
    actions: int
    begin_ms: int
    reached_ms: int
    seconds: float
    events_per_s: float
    ended: bool


class Replayer:
    """Feeds one history through one Producer, once.

    Guaranteed: heartbeats every `heartbeat_s` of event time and an end mark, on every partition of both
    topics; when `run` returns, everything is acknowledged. Not guaranteed: that the pace holds when the
    topics take events more slowly; it then falls behind, and `ReplayReport.seconds` says so.

    Args:
        history: What to feed.
        producer: Where to; it stays open.
        settings: How often a heartbeat is due.
        clock: What the pace is kept by.
        scored: Given columns of impressions and how many they are, before they are produced; answers the columns that
            are, such as the same with what serving says of them. Events wait for it.
    """

    def __init__(
        self,
        history: History,
        producer: Producer,
        settings: ReplaySettings,
        *,
        clock: Clock = SYSTEM_CLOCK,
        scored: Scored | None = None,
    ) -> None:
        self._history, self._scored = history, scored
        self._producer = producer
        self._heartbeat_ms = max(1, round(settings.heartbeat_s * 1000))
        self._clock = clock
        self._impressions = 0
        self._actions = 0
        self._reached_ms = history.begin_ms
        self._heartbeat_due_ms = history.begin_ms + self._heartbeat_ms
        self._flushed_s = 0.0

    def run(
        self,
        *,
        speed: float = 0.0,
        events_max: int | None = None,
        on_progress: Callable[[ReplayProgress], None] | None = None,
        stop: threading.Event | None = None,
    ) -> ReplayReport:
        """Feed the history.

        Args:
            speed: Event time per wall time; 0 is as fast as it goes.
            events_max: End after that many events, with the end mark.
            on_progress: Called after every block.
            stop: Set it to end early; what was given is flushed, and there is no end mark.

        Raises:
            ConfigError: `speed` or `events_max` is out of its bounds.
            NotDelivered: The topics did not take all of it.
        """
        _check(speed, events_max)
        begun_s = self._flushed_s = self._clock.monotonic_s()
        stop = stop or threading.Event()
        span_ms = self._heartbeat_ms
        if speed:
            span_ms = max(1, min(span_ms, round(BLOCK_WALL_MS * speed)))
        ended = True
        for block in self._history.blocks(span_ms):
            if speed:
                self._wait(begun_s + (block.until_ms - self._history.begin_ms) / 1000 / speed, stop)
            if stop.is_set():
                ended = False
                break
            left = None if events_max is None else events_max - self._events
            last = left is not None and block.impressions_rows + block.actions_rows >= left
            self._give(_first(block, left) if last and left is not None else block, at_pace=bool(speed))
            if on_progress is not None:
                seconds = self._clock.monotonic_s() - begun_s
                on_progress(ReplayProgress(self._events, self._reached_ms, seconds))
            if last:
                break
        if ended:
            self._producer.end(self._reached_ms)
        self._producer.flush()
        return self._report(self._clock.monotonic_s() - begun_s, ended)

    @property
    def _events(self) -> int:
        return self._impressions + self._actions

    def _give(self, block: HistoryBlock, *, at_pace: bool) -> None:
        if block.impressions_rows:
            columns = self._stamped(block.impressions, block.impressions_rows)
            if self._scored is not None:
                columns = self._scored(columns, block.impressions_rows)
            self._producer.impressions(columns, block.impressions_rows)
        if block.actions_rows:
            self._producer.actions(block.actions, block.actions_rows)
        self._impressions += block.impressions_rows
        self._actions += block.actions_rows
        self._reached_ms = max(self._reached_ms, block.until_ms)
        if block.watermark_ms >= self._heartbeat_due_ms:
            self._producer.heartbeat(block.watermark_ms)
            beats = (block.watermark_ms - self._history.begin_ms) // self._heartbeat_ms
            self._heartbeat_due_ms = self._history.begin_ms + (beats + 1) * self._heartbeat_ms
        now_s = self._clock.monotonic_s()
        if at_pace or now_s - self._flushed_s >= FLUSH_S:
            self._producer.flush()
            self._flushed_s = now_s

    def _stamped(self, columns: Columns, rows: int) -> Columns:
        if "shown_wall_ms" in columns:
            return columns
        return {**columns, "shown_wall_ms": np.full(rows, self._clock.wall_ms(), np.int64)}

    def _wait(self, due_s: float, stop: threading.Event) -> None:
        while not stop.is_set():
            left_s = due_s - self._clock.monotonic_s()
            if left_s <= 0:
                return
            self._clock.sleep(min(left_s, SLEEP_S_MAX))

    def _report(self, seconds: float, ended: bool) -> ReplayReport:
        rate = self._events / seconds if seconds > 0 else 0.0
        begin_ms = self._history.begin_ms
        return ReplayReport(self._impressions, self._actions, begin_ms, self._reached_ms, seconds, rate, ended)


def _check(speed: float, events_max: int | None) -> None:
    if not 0 <= speed <= SPEED_MAX:
        message = f"speed is {speed}"
        raise ConfigError(message, help=f"use 0 for the highest speed, 1 for real time, at most {SPEED_MAX:g}")
    if events_max is not None and events_max < 1:
        message = f"the limit is {events_max} events"
        raise ConfigError(message, help="set a limit of at least 1 event")


def _first(block: HistoryBlock, events: int) -> HistoryBlock:
    """The block with its first events alone, impressions and actions taken in the order of time."""
    shown, done = (
        # Within a kind the order is that of arrival, so one event never comes before those ahead of it.
        np.maximum.accumulate(columns["event_time_ms"][:rows]) if rows else np.zeros(0, np.int64)
        for columns, rows in (
            (block.impressions, block.impressions_rows),
            (block.actions, block.actions_rows),
        )
    )
    order = np.argsort(np.concatenate((shown, done)), kind="stable")[:events]
    impressions = int((order < len(shown)).sum())
    actions = len(order) - impressions
    reached_ms = max([int(times[count - 1]) for times, count in ((shown, impressions), (done, actions)) if count])
    return HistoryBlock(
        rows_of(block.impressions, 0, impressions) if impressions else {},
        impressions,
        rows_of(block.actions, 0, actions) if actions else {},
        actions,
        min(block.watermark_ms, reached_ms),
        min(block.until_ms, reached_ms),
    )
