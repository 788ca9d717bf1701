"""Ticks: when a lot is looked at next, how far it may go then, and when it is done. Pure; it knows no runner.

A lot has one timer in event time. It is set to the earliest time with work, rounded to ticks so that the rows of an
instant go together, and never moved later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from streamlearn.ingest.join.lot_log import LotHead, PartitionTime
from streamlearn.ingest.reading.watermark import AFTER_ALL, BEFORE_ALL

__all__ = ["Look", "TickRules", "look_at", "next_look_ms"]


class TickRules(msgspec.Struct, frozen=True):
    """How often lots are looked at.

    Attributes:
        partitions: Of each event topic.
        tick_ms: Event time. Due rows are emitted at multiples of it.
        progress_ms: Event time. The interval of looks while nothing is due, for the lot's progress.
        lag_ms: Event time. A runner fires a timer once its time is this far beyond it: if nothing more came, a timer
            set to the readers' time would never fire, and everything due by then would wait.
    """

    partitions: int
    tick_ms: int
    progress_ms: int
    lag_ms: int = 0


class Look(msgspec.Struct, frozen=True):
    """The meaning of a fired timer.

    Attributes:
        limit_ms: The event time up to which all events have come; `AFTER_ALL` if no more ever come.
        is_last: Whether nothing more comes to the lot in this run.
    """

    limit_ms: int
    is_last: bool


def look_at(partitions: Mapping[int, PartitionTime], at_ms: int, rules: TickRules) -> Look:
    """Return the meaning of a timer that was set to `at_ms` and has fired.

    All events before `at_ms` have come, unless a reader was stopped: at the end of its sources a runner fires all
    timers, but time has advanced no further than that reader.

    Examples:
        >>> rules = TickRules(partitions=2, tick_ms=500, progress_ms=2_000)
        >>> going, stopped = PartitionTime(9_000, 9_700, False), PartitionTime(7_000, 7_300, True)
        >>> look_at({0: going, 1: stopped}, 7_000, rules)
        Look(limit_ms=7000, is_last=False)
        >>> look_at({0: going, 1: stopped}, 8_000, rules)
        Look(limit_ms=7300, is_last=False)
    """
    closed = [time for time in partitions.values() if time.closed]
    cap_ms = _cap_ms(closed)
    # The events of the readers' last blobs have come too.
    if len(closed) == rules.partitions and at_ms > _latest_before(closed):
        return Look(cap_ms, is_last=True)
    return Look(min(at_ms, cap_ms), is_last=False)


def next_look_ms(head: LotHead, deadline_ms: int | None, rules: TickRules, quiet: int = 0) -> int | None:
    """Return the event time of a lot's next look; None without a known time, or while it waits for readers to stop.

    If the readers are further than the lot, that is soon: a replayed history goes from one blob's time to the next,
    without timers in between. Otherwise it is when the first row is due (`deadline_ms`), or the next progress. Each of
    `quiet` looks in a row that came too soon doubles the time to the next.

    A lot that is as far as a stopped reader goes no further until all have stopped, and each reports that. Until then
    it is not looked at: at the end of its sources a runner fires timers before later elements, and would fire a
    repeated timer forever.
    """
    tick_ms, times = rules.tick_ms, list(head.partitions.values())
    is_known = len(times) == rules.partitions
    known_ms = min(time.after_ms for time in times) if is_known else BEFORE_ALL
    if is_known and all(time.closed for time in times):
        # Elements that came before any watermark have the time of their events.
        end_ms = max(head.watermark_ms, _latest_before(times), head.latest_ms)
        return None if end_ms == BEFORE_ALL else _above(end_ms, tick_ms)
    if head.watermark_ms >= _cap_ms(times):
        return None
    floor_ms = (known_ms - rules.lag_ms) // tick_ms * tick_ms
    if known_ms > BEFORE_ALL and floor_ms > head.watermark_ms:
        return floor_ms
    from_ms = head.watermark_ms
    if from_ms == BEFORE_ALL:
        from_ms = min((time.before_ms for time in times if time.before_ms > BEFORE_ALL), default=BEFORE_ALL)
        if from_ms == BEFORE_ALL:
            return None
    latest_ms = _above(from_ms + (rules.progress_ms << min(quiet, 16)), tick_ms)
    if deadline_ms is None:
        return latest_ms
    return min(latest_ms, max(_above(from_ms, tick_ms), _above(deadline_ms - 1, tick_ms)))


def _above(time_ms: int, tick_ms: int) -> int:
    return (time_ms // tick_ms + 1) * tick_ms


def _cap_ms(times: Iterable[PartitionTime]) -> int:
    """Return how far a lot may go at most: as far as any reader that has ended or was stopped."""
    return min((time.after_ms for time in times if time.closed), default=AFTER_ALL)


def _latest_before(times: Iterable[PartitionTime]) -> int:
    return max((time.before_ms for time in times if time.before_ms < AFTER_ALL), default=BEFORE_ALL)
