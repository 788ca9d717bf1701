"""Ticks: when a lot is looked at next, how far it may go then, and when it is done. Pure; it knows no runner.

A lot has one timer in event time. It is set to the earliest time at which there is something to do, rounded to ticks
so that the rows of an instant go together, and never moved later.
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
        partitions: Of both event topics.
        tick_ms: Event time. Rows that are due are given out at multiples of it.
        progress_ms: Event time. A lot is looked at as often as this when nothing is due, for its progress.
        lag_ms: Event time. So far beyond a timer time has to be for a runner to fire it: where nothing more comes, a
            timer that is set to where readers are would never fire, and all that is due by then would wait with it.
    """

    partitions: int
    tick_ms: int
    progress_ms: int
    lag_ms: int = 0


class Look(msgspec.Struct, frozen=True):
    """What a timer that has fired means.

    Attributes:
        limit_ms: Up to which event time everything has come; `AFTER_ALL` when nothing follows, ever.
        is_last: Whether nothing more comes to the lot in this run.
    """

    limit_ms: int
    is_last: bool


def look_at(partitions: Mapping[int, PartitionTime], at_ms: int, rules: TickRules) -> Look:
    """What a timer says that was set to `at_ms` and has fired.

    Everything of an event time before `at_ms` has come then, but where a reader was stopped: a runner lets all timers
    fire when its sources are at their end, and time has gone on no further than that reader.

    Examples:
        >>> rules = TickRules(partitions=2, tick_ms=500, progress_ms=2_000)
        >>> going, stopped = PartitionTime(9_000, 9_700, False), PartitionTime(7_000, 7_300, True)
        >>> look_at({0: going, 1: stopped}, 7_000, rules)
        Look(limit_ms=7000, is_last=False)
        >>> look_at({0: going, 1: stopped}, 8_000, rules)
        Look(limit_ms=7300, is_last=False)
    """
    closed = [one for one in partitions.values() if one.closed]
    cap_ms = _cap_ms(closed)
    # What was given with the last blobs of its readers has come too.
    if len(closed) == rules.partitions and at_ms > _latest_before(closed):
        return Look(cap_ms, is_last=True)
    return Look(min(at_ms, cap_ms), is_last=False)


def next_look_ms(head: LotHead, deadline_ms: int | None, rules: TickRules, quiet: int = 0) -> int | None:
    """When to look at a lot next, after it was looked at, or after events came.

    Where readers are known to be further than the lot was looked at, that is soon: a history that is replayed goes
    from one blob's time to the next, with no timers in between. Otherwise it is when the first row is due, or
    when progress is to be told again.

    A lot that is as far as a reader that was stopped goes no further before all have stopped, and each says so. Until
    then it is not looked at: a runner whose sources are at their end fires a timer ahead of what is of a later time,
    and one that is set again each time would fire for ever.

    Args:
        head: What is known; its `watermark_ms` is what the lot has reached.
        deadline_ms: When its join has something to do; None: never, as things are.
        rules: How often.
        quiet: How many looks in a row found nothing new; each of them doubles the time to the next.

    Returns:
        Event time; None while no time is known, and while only the stop of other readers is waited for.
    """
    tick_ms, times = rules.tick_ms, list(head.partitions.values())
    is_known = len(times) == rules.partitions
    known_ms = min(one.after_ms for one in times) if is_known else BEFORE_ALL
    if is_known and all(one.closed for one in times):
        # What came before any time was known has the time of its events.
        end_ms = max(head.watermark_ms, _latest_before(times), head.latest_ms)
        return None if end_ms == BEFORE_ALL else _above(end_ms, tick_ms)
    if head.watermark_ms >= _cap_ms(times):
        return None
    floor_ms = (known_ms - rules.lag_ms) // tick_ms * tick_ms
    if known_ms > BEFORE_ALL and floor_ms > head.watermark_ms:
        return floor_ms
    from_ms = head.watermark_ms
    if from_ms == BEFORE_ALL:
        from_ms = min((one.before_ms for one in times if one.before_ms > BEFORE_ALL), default=BEFORE_ALL)
        if from_ms == BEFORE_ALL:
            return None
    latest_ms = _above(from_ms + (rules.progress_ms << min(quiet, 16)), tick_ms)
    if deadline_ms is None:
        return latest_ms
    return min(latest_ms, max(_above(from_ms, tick_ms), _above(deadline_ms - 1, tick_ms)))


def _above(time_ms: int, tick_ms: int) -> int:
    return (time_ms // tick_ms + 1) * tick_ms


def _cap_ms(times: Iterable[PartitionTime]) -> int:
    """How far a lot may go at most: as far as any reader that has ended or was stopped."""
    return min((one.after_ms for one in times if one.closed), default=AFTER_ALL)


def _latest_before(times: Iterable[PartitionTime]) -> int:
    return max((one.before_ms for one in times if one.before_ms < AFTER_ALL), default=BEFORE_ALL)
