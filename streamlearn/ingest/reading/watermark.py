"""Watermarks: up to which event time a partition has been read. Pure: it reads no topic and no clock.

A topic's partition has a `TopicClock`; the two topics of one partition together have the least of both. Time is
moved by records, heartbeats and end marks. Where it is the wall's, a partition that was proven empty holds back
nobody, and when all are, it is as late as at that proof; where it is the events' own, only what was read moves it:
a replay writes hours of event time within a second, so that an instant without records proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

__all__ = ["AFTER_ALL", "BEFORE_ALL", "TimeRules", "TopicClock", "end", "heartbeat", "read", "watermark_of"]

# Before any event time, and after any. Far enough from the ends of int64 for bounds to be added.
BEFORE_ALL = -(1 << 55)
AFTER_ALL = 1 << 55

Int64s = npt.NDArray[np.int64]
TimesOf = Callable[[int], Int64s]


class TimeRules(msgspec.Struct, frozen=True):
    """What time is here.

    Attributes:
        time: Whose clock it is, as `topics.time` says.
        out_of_orderness_ms: How much later than a newer record an older one may come.
        ahead_ms: How far ahead of the clock a record may be before it is impossible.
    """

    time: Literal["wall", "event"]
    out_of_orderness_ms: int
    ahead_ms: int


class TopicClock(msgspec.Struct, frozen=True):
    """How far one partition of one topic was read.

    Attributes:
        reached_ms: The latest event time of a record that was possible.
        promised_ms: What the last heartbeat says: nothing older follows.
        ended: Whether its end mark was read.
    """

    reached_ms: int = BEFORE_ALL
    promised_ms: int = BEFORE_ALL
    ended: bool = False

    @property
    def now_ms(self) -> int:
        """What time it is there."""
        return max(self.reached_ms, self.promised_ms)


def read(
    clock: TopicClock, rules: TimeRules, times_ms: Int64s, wall_ms: int, times_of: TimesOf | None = None
) -> tuple[TopicClock, Int64s]:
    """A clock after records were read.

    Args:
        clock: Before.
        rules: What time is here.
        times_ms: int64[n]. Their event times, in the order of their offsets.
        wall_ms: When they were read.
        times_of: Gives the times of the events in one record. It is asked about a record that is too far ahead, in
            event time: one record may hold events of days. None: such a record moves no time.

    Returns:
        The clock, and int64[n]: the event time beyond which what a record holds is impossible.
    """
    if rules.time == "wall":
        limits = np.full(len(times_ms), wall_ms + rules.ahead_ms, np.int64)
        # A producer whose clock is fast must not make all others late.
        reached = np.minimum(times_ms[times_ms <= limits], wall_ms)
        return _reach(clock, int(reached.max(initial=BEFORE_ALL))), limits
    if not len(times_ms):
        return clock, np.empty(0, np.int64)
    # As if all were possible: then each is judged by the latest before it, and so it is where none was too far ahead.
    latest = np.maximum.accumulate(np.concatenate(([clock.now_ms], times_ms)))
    limits = np.where(latest[:-1] == BEFORE_ALL, AFTER_ALL, latest[:-1] + rules.ahead_ms)
    if (times_ms <= limits).all():
        return _reach(clock, max(clock.reached_ms, int(times_ms.max()))), limits
    return _judged(clock, rules, times_ms, times_of)


def heartbeat(clock: TopicClock, rules: TimeRules, time_ms: int, wall_ms: int) -> TopicClock:
    """A clock after a heartbeat; one from the future promises no more than the present."""
    promised_ms = min(time_ms, wall_ms) if rules.time == "wall" else time_ms
    return msgspec.structs.replace(clock, promised_ms=max(clock.promised_ms, promised_ms))


def end(clock: TopicClock) -> TopicClock:
    """A clock after an end mark."""
    return msgspec.structs.replace(clock, ended=True)


def watermark_of(
    clocks: Sequence[TopicClock], rules: TimeRules, empty_ms: Sequence[int | None], floor_ms: int = BEFORE_ALL
) -> int:
    """Up to which event time partitions that belong together have been read.

    Args:
        clocks: One a partition.
        rules: What time is here.
        empty_ms: For each, the wall time at which it was last proven empty: read to its end, with nothing for as long
            as `ingest.idle_s`. None where it was not, or has had records since.
        floor_ms: What was said before; a watermark never goes back.

    Returns:
        Event time in ms; `AFTER_ALL` once all have ended.

    Examples:
        >>> rules = TimeRules("wall", out_of_orderness_ms=10, ahead_ms=1000)
        >>> busy, quiet = TopicClock(reached_ms=500), TopicClock(reached_ms=100)
        >>> watermark_of([busy, quiet], rules, [None, None])
        90
        >>> watermark_of([busy, quiet], rules, [None, 700])
        490
        >>> watermark_of([busy, quiet], rules, [900, 700])
        690
    """
    open_ = [(clock, empty) for clock, empty in zip(clocks, empty_ms, strict=True) if not clock.ended]
    if not open_:
        return AFTER_ALL
    proofs = [empty for _, empty in open_ if empty is not None]
    if rules.time == "wall" and len(proofs) == len(open_):
        return max(floor_ms, min(proofs) - rules.out_of_orderness_ms)
    bounds = [
        max(clock.promised_ms, clock.reached_ms - rules.out_of_orderness_ms)
        for clock, empty in open_
        if rules.time == "event" or empty is None
    ]
    return max(floor_ms, min(bounds))


def _judged(
    clock: TopicClock, rules: TimeRules, times_ms: Int64s, times_of: TimesOf | None
) -> tuple[TopicClock, Int64s]:
    """Record by record: one that is too far ahead moves no time, and so judges none of those that follow."""
    limits = np.empty(len(times_ms), np.int64)
    now_ms, reached_ms = clock.now_ms, clock.reached_ms
    for at, time_ms in enumerate(times_ms.tolist()):
        limits[at] = AFTER_ALL if now_ms == BEFORE_ALL else now_ms + rules.ahead_ms
        if time_ms > limits[at] and times_of is not None:
            now_ms = _stepped(now_ms, rules.ahead_ms, times_of(at))
            reached_ms, limits[at] = max(reached_ms, now_ms), now_ms + rules.ahead_ms
        if time_ms <= limits[at]:
            reached_ms = max(reached_ms, time_ms)
            now_ms = max(now_ms, reached_ms)
    return _reach(clock, reached_ms), limits


def _stepped(now_ms: int, ahead_ms: int, times_ms: Int64s) -> int:
    """How far the events of one record move time: each of them, in the order of time, by no more than the bound."""
    for time_ms in np.sort(times_ms).tolist():
        if time_ms > now_ms + ahead_ms:
            break
        now_ms = max(now_ms, time_ms)
    return now_ms


def _reach(clock: TopicClock, reached_ms: int) -> TopicClock:
    return msgspec.structs.replace(clock, reached_ms=max(clock.reached_ms, reached_ms))
