"""Watermarks: up to which event time a partition has been read. Pure: it reads no topic and no clock.

Each topic's partition has a `TopicClock`; two topics of one partition have the least of both. Records, heartbeats and
end marks advance it. In wall time, a partition that is proven empty holds nothing back, and once all are, the watermark
is the time of the proof. In event time, only records advance the clock: a replay writes hours of event time within a
second, so a moment without records proves nothing.

In wall time, a record that is further ahead of most records around it than `out_of_orderness_ms` does not advance the
clock: in a backlog, one producer whose clock is fast would make all later records late. At the end of a partition it
counts if it is at most `out_of_orderness_ms` old: the next records are as new as the wall then. In a topic that lags
behind the wall, such as a mirror, they are not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

__all__ = ["AFTER_ALL", "BEFORE_ALL", "TimeRules", "TopicClock", "end", "heartbeat", "read", "read_all", "watermark_of"]

# Before and after every event time, far enough from the ends of int64 that adding bounds does not overflow.
BEFORE_ALL = -(1 << 55)
AFTER_ALL = 1 << 55

# Records of earlier reads that a small read is compared with. A larger read is compared with itself.
_RECENT = 31
# Of fewer records, most do not outweigh one whose producer's clock is fast.
_FEW = 3

Int64s = npt.NDArray[np.int64]
TimesOf = Callable[[int], Int64s]


class TimeRules(msgspec.Struct, frozen=True):
    """How time advances.

    Attributes:
        time: The setting `topics.time`.
        out_of_orderness_ms: How much later than a newer record an older one may come.
        ahead_ms: How far ahead of the clock a record may be before it is impossible.
    """

    time: Literal["wall", "event"]
    out_of_orderness_ms: int
    ahead_ms: int


class TopicClock(msgspec.Struct, frozen=True):
    """How far one partition of one topic was read.

    Attributes:
        reached_ms: The latest event time of a possible record.
        promised_ms: The time of the last heartbeat: nothing older follows.
        ended: Whether its end mark was read.
        recent_ms: In wall time, the event times of the last records.
    """

    reached_ms: int = BEFORE_ALL
    promised_ms: int = BEFORE_ALL
    ended: bool = False
    recent_ms: tuple[int, ...] = ()

    @property
    def now_ms(self) -> int:
        """The event time that the partition has reached."""
        return max(self.reached_ms, self.promised_ms)


def read(
    clock: TopicClock, rules: TimeRules, times_ms: Int64s, wall_ms: int, times_of: TimesOf | None = None
) -> tuple[TopicClock, Int64s]:
    """Return a clock after records were read, and for each the limit beyond which its events are impossible.

    `times_ms` are the records' event times, in the order of their offsets. `times_of` returns the times of the events
    in a record, for one that is too far ahead in event time: it may hold events of days. Without it, such a record does
    not advance the clock.
    """
    if rules.time == "wall":
        limits = np.full(len(times_ms), wall_ms + rules.ahead_ms, np.int64)
        return _read_in_wall_time(clock, rules, np.minimum(times_ms[times_ms <= limits], wall_ms)), limits
    if not len(times_ms):
        return clock, np.empty(0, np.int64)
    # Assume that all are possible: each limit follows from the latest time before. This holds if none is too far ahead.
    latest = np.maximum.accumulate(np.concatenate(([clock.now_ms], times_ms)))
    limits = np.where(latest[:-1] == BEFORE_ALL, AFTER_ALL, latest[:-1] + rules.ahead_ms)
    if (times_ms <= limits).all():
        return _reached(clock, max(clock.reached_ms, int(times_ms.max()))), limits
    return _read_each(clock, rules, times_ms, times_of)


def read_all(clock: TopicClock, rules: TimeRules, wall_ms: int) -> TopicClock:
    """Return a clock after all records of the partition were read: those that are as new as the wall count now."""
    new_ms = wall_ms - rules.out_of_orderness_ms
    return _reached(clock, max((time_ms for time_ms in clock.recent_ms if time_ms >= new_ms), default=BEFORE_ALL))


def heartbeat(clock: TopicClock, rules: TimeRules, time_ms: int, wall_ms: int) -> TopicClock:
    """Return a clock after a heartbeat; one from the future promises no more than the present."""
    promised_ms = min(time_ms, wall_ms) if rules.time == "wall" else time_ms
    return msgspec.structs.replace(clock, promised_ms=max(clock.promised_ms, promised_ms))


def end(clock: TopicClock) -> TopicClock:
    """Return a clock after an end mark."""
    return msgspec.structs.replace(clock, ended=True)


def watermark_of(
    clocks: Sequence[TopicClock], rules: TimeRules, empty_ms: Sequence[int | None], floor_ms: int = BEFORE_ALL
) -> int:
    """Return the event time up to which all of some partitions have been read; `AFTER_ALL` once all have ended.

    `empty_ms` has for each partition the wall time at which it was last proven empty (read to its end, without records
    for `ingest.idle_s`), or None. `floor_ms` is the watermark before; a watermark never goes back.

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


def _read_in_wall_time(clock: TopicClock, rules: TimeRules, times_ms: Int64s) -> TopicClock:
    """Advance to the latest of the newest times that is not too far ahead of their median."""
    if not len(times_ms):
        return clock
    newest = np.concatenate((np.array(clock.recent_ms, np.int64), times_ms))[-max(len(times_ms), _RECENT) :]
    middle = (len(newest) - 1) // 2
    limit_ms = np.partition(newest, middle)[middle] + rules.out_of_orderness_ms
    if len(newest) >= _FEW:
        clock = _reached(clock, int(newest[newest <= limit_ms].max()))
    return msgspec.structs.replace(clock, recent_ms=tuple(newest[-_RECENT:].tolist()))


def _read_each(
    clock: TopicClock, rules: TimeRules, times_ms: Int64s, times_of: TimesOf | None
) -> tuple[TopicClock, Int64s]:
    """Go record by record: one that is too far ahead does not advance the clock, nor limit those after it."""
    limits = np.empty(len(times_ms), np.int64)
    now_ms, reached_ms = clock.now_ms, clock.reached_ms
    for at, time_ms in enumerate(times_ms.tolist()):
        limits[at] = AFTER_ALL if now_ms == BEFORE_ALL else now_ms + rules.ahead_ms
        if time_ms > limits[at] and times_of is not None:
            now_ms = _advanced(now_ms, rules.ahead_ms, times_of(at))
            reached_ms, limits[at] = max(reached_ms, now_ms), now_ms + rules.ahead_ms
        if time_ms <= limits[at]:
            reached_ms = max(reached_ms, time_ms)
            now_ms = max(now_ms, reached_ms)
    return _reached(clock, reached_ms), limits


def _advanced(now_ms: int, ahead_ms: int, times_ms: Int64s) -> int:
    """Advance by the events of one record in time order, each by at most the bound."""
    for time_ms in np.sort(times_ms).tolist():
        if time_ms > now_ms + ahead_ms:
            break
        now_ms = max(now_ms, time_ms)
    return now_ms


def _reached(clock: TopicClock, reached_ms: int) -> TopicClock:
    return msgspec.structs.replace(clock, reached_ms=max(clock.reached_ms, reached_ms))
