"""The replayer: it feeds a history through a Producer, at a multiple of real time or at full speed.

It does not know the contents of the events, or where the topics are.
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

BLOCK_WALL_MS = 50  # the wall time that a block spans
SLEEP_S_MAX = 0.1  # how soon it notices a stop
FLUSH_S = 1.0  # how soon it notices a topic that refuses, at full speed
SPEED_MAX = 1e9

Scored = Callable[[Columns, int], Columns]


@dataclass(frozen=True)
class ReplayProgress:
    """The progress of a replay."""

    events: int  # given to the Producer so far
    event_time_ms: int  # the event time reached
    seconds: float  # of wall time

    @property
    def events_per_s(self) -> float:
        """Events per second so far."""
        return _rate(self.events, self.seconds)


@dataclass(frozen=True)
class ReplayReport:
    """The result of a replay; all its events are acknowledged."""

    impressions: int  # written impressions
    actions: int  # written actions
    begin_ms: int  # event time of the begin
    reached_ms: int  # event time of the end
    seconds: float
    events_per_s: float
    ended: bool  # whether the end mark was written; False if the replay was stopped before


def _rate(events: int, seconds: float) -> float:
    return events / seconds if seconds > 0 else 0.0


class Replayer:
    """Feeds one history through one Producer, once.

    Guaranteed: heartbeats every `heartbeat_s` of event time and an end mark, on every partition of both
    topics; when `run` returns, everything is acknowledged. Not guaranteed: that the pace holds if the
    topics take events more slowly; it then falls behind, and `ReplayReport.seconds` shows it.

    `scored` receives the columns of impressions and their number, and returns the columns to write, for example with
    the scores of serving. `acted` receives the columns of actions that are written. Events wait for both. Each
    `every_ms` of event time, once all before is acknowledged, `waited` is called with the event time reached and with
    `stop`. The producer stays open.
    """

    def __init__(
        self,
        history: History,
        producer: Producer,
        settings: ReplaySettings,
        *,
        clock: Clock = SYSTEM_CLOCK,
        scored: Scored | None = None,
        acted: Callable[[Columns], None] = lambda actions: None,
        every_ms: int | None = None,
        waited: Callable[[int, threading.Event], None] = lambda time_ms, stop: None,
    ) -> None:
        self._history, self._scored, self._acted = history, scored, acted
        self._every_ms, self._waited = every_ms, waited
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
            speed: Event time per wall time; 0 is full speed.
            events_max: End after this number of events, with the end mark.
            on_progress: Called after every block.
            stop: Set it to end early: the replay then flushes and writes no end mark.

        Raises:
            ConfigError: `speed` or `events_max` is out of bounds.
            NotDelivered: The topics did not take all events.
        """
        _check(speed, events_max)
        begun_s = self._flushed_s = self._clock.monotonic_s()
        stop = stop or threading.Event()
        span_ms = self._heartbeat_ms
        if speed:
            span_ms = max(1, min(span_ms, round(BLOCK_WALL_MS * speed)))
        if self._every_ms:  # blocks end where it waits
            span_ms = max(1, self._every_ms // -(-self._every_ms // span_ms))
        ended, due_ms = True, self._history.begin_ms + (self._every_ms or 0)
        for block in self._history.blocks(span_ms):
            if speed:
                self._wait(begun_s + (block.until_ms - self._history.begin_ms) / 1000 / speed, stop)
            if stop.is_set():
                ended = False
                break
            last = False
            if events_max is not None and block.impressions_rows + block.actions_rows >= events_max - self._events:
                block, last = _first(block, events_max - self._events), True
            is_due = bool(self._every_ms) and block.watermark_ms >= due_ms
            if is_due:
                self._heartbeat_due_ms = min(self._heartbeat_due_ms, block.watermark_ms)
            self._produce(block, at_pace=bool(speed))
            if on_progress is not None:
                seconds = self._clock.monotonic_s() - begun_s
                on_progress(ReplayProgress(self._events, self._reached_ms, seconds))
            if last:
                break
            if self._every_ms and is_due:
                due_ms += self._every_ms * (1 + (block.watermark_ms - due_ms) // self._every_ms)
                self._producer.flush()
                self._waited(block.watermark_ms, stop)
        if ended:
            self._producer.end(self._reached_ms)
        self._producer.flush()
        seconds = self._clock.monotonic_s() - begun_s
        begin_ms = self._history.begin_ms
        rate = _rate(self._events, seconds)
        return ReplayReport(self._impressions, self._actions, begin_ms, self._reached_ms, seconds, rate, ended)

    @property
    def _events(self) -> int:
        return self._impressions + self._actions

    def _produce(self, block: HistoryBlock, *, at_pace: bool) -> None:
        if block.impressions_rows:
            columns = block.impressions
            if "shown_wall_ms" not in columns:
                now_ms = np.full(block.impressions_rows, self._clock.wall_ms(), np.int64)
                columns = {**columns, "shown_wall_ms": now_ms}
            if self._scored is not None:
                columns = self._scored(columns, block.impressions_rows)
            self._producer.impressions(columns, block.impressions_rows)
        if block.actions_rows:
            self._producer.actions(block.actions, block.actions_rows)
            self._acted(block.actions)
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

    def _wait(self, due_s: float, stop: threading.Event) -> None:
        while not stop.is_set():
            left_s = due_s - self._clock.monotonic_s()
            if left_s <= 0:
                return
            self._clock.sleep(min(left_s, SLEEP_S_MAX))


def _check(speed: float, events_max: int | None) -> None:
    if not 0 <= speed <= SPEED_MAX:
        message = f"speed is {speed}"
        raise ConfigError(message, help=f"use 0 for the highest speed, 1 for real time, at most {SPEED_MAX:g}")
    if events_max is not None and events_max < 1:
        message = f"the limit is {events_max} events"
        raise ConfigError(message, help="set a limit of at least 1 event")


def _first(block: HistoryBlock, events: int) -> HistoryBlock:
    """Return the block with only its first events, impressions and actions together in the order of time."""
    impression_times, action_times = (
        # Within a kind the order of arrival counts, so no event may come before an earlier one.
        np.maximum.accumulate(columns["event_time_ms"][:rows]) if rows else np.zeros(0, np.int64)
        for columns, rows in ((block.impressions, block.impressions_rows), (block.actions, block.actions_rows))
    )
    order = np.argsort(np.concatenate((impression_times, action_times)), kind="stable")[:events]
    impressions = int((order < len(impression_times)).sum())
    actions = len(order) - impressions
    counted = ((impression_times, impressions), (action_times, actions))
    reached_ms = max(int(times[count - 1]) for times, count in counted if count)
    return HistoryBlock(
        rows_of(block.impressions, 0, impressions) if impressions else {},
        impressions,
        rows_of(block.actions, 0, actions) if actions else {},
        actions,
        min(block.watermark_ms, reached_ms),
        min(block.until_ms, reached_ms),
    )
