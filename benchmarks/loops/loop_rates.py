"""Rates of the loop: how many samples a second are learned for as long as anybody looks, with no growing delay."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.loops.loop_part import LoopPart
from benchmarks.loops.loop_whole import Whole

__all__ = ["Held", "Search", "hold", "sustained"]

Note = Callable[[str], None]
_LEARNED = 'streamlearn_trainer_rows_total{outcome="learned"}'
_CLOCK = "streamlearn_trainer_clock_seconds"
_LOOK_S, _BEGIN_S_MAX, _DRAIN_S_MAX = 0.5, 60.0, 180.0
# A delay that grows by less than this share of the time that passed is noise of looking.
_GROWTH_MAX, _DELAY_S_MAX, _SHARE_MIN = 0.1, 15.0, 0.95
_HOLDING_S = 3.0


@dataclass(frozen=True)
class Search:
    """How a rate is searched for.

    Attributes:
        begin: Samples a second to begin with.
        step: By how much the rate is multiplied while it holds.
        fine: And from the highest that held, with what is between.
        most: Beyond this it is not searched.
        seconds: How long one rate is held, after it has begun.
        warm_s: How long it runs before.
    """

    begin: float
    step: float = 1.5
    fine: float = 1.2
    most: float = 60_000.0
    seconds: float = 20.0
    warm_s: float = 6.0


@dataclass(frozen=True)
class Held:
    """What was seen at a rate.

    Attributes:
        rate: Samples a second that were to be due.
        learned_per_s: Samples a second that were learned.
        delays_s: How far behind the wall training was, look by look.
        seconds: How long it was looked at.
    """

    rate: float
    learned_per_s: float
    delays_s: Sequence[float]
    seconds: float

    @property
    def holds(self) -> bool:
        """Whether nearly all that was to be due was learned, and what is behind did not grow."""
        if len(self.delays_s) < 2 or self.learned_per_s < _SHARE_MIN * self.rate:
            return False
        at = np.linspace(0, self.seconds, len(self.delays_s))
        growth = float(np.polyfit(at, self.delays_s, 1)[0])
        return growth <= _GROWTH_MAX and max(self.delays_s[-2:]) <= _DELAY_S_MAX


def sustained(search: Search, held: Callable[[float], Held]) -> Held | None:
    """The highest rate that held; None where not even the first did.

    Args:
        search: How it is searched for.
        held: Holds a rate, and says what was seen.
    """
    best: Held | None = None
    for step in (search.step, search.fine):
        rate = search.begin if best is None else best.rate * step
        while rate <= search.most and (found := held(rate)).holds:
            best, rate = found, rate * step
        if best is None:
            return None
    return best


def hold(whole: Whole, search: Search, rate: float, events_of: Callable[[float], float], note: Note) -> Held:
    """Produce at a rate and look how training keeps up; returns when what is left of it is learned.

    Args:
        whole: The loop.
        search: How long.
        rate: Samples a second.
        events_of: Events a second that give so many samples a second.
        note: Told what was seen.
    """
    _until(lambda: _delay_s(whole) < _HOLDING_S or not _rows(whole.trainer), _DRAIN_S_MAX)
    wait_s = float(whole.folder.app.groups[0].wait_s)
    delays_s: list[float] = []
    with whole.producing(events_of(rate), wait_s + search.warm_s + search.seconds + 2.0) as producer:
        before = _rows(whole.trainer)
        _until(lambda: _rows(whole.trainer) > before or not producer.process.is_alive(), _BEGIN_S_MAX)
        time.sleep(search.warm_s)
        begin_s, begin = time.monotonic(), _rows(whole.trainer)
        while time.monotonic() < begin_s + search.seconds and producer.process.is_alive():
            time.sleep(_LOOK_S)
            delays_s.append(_delay_s(whole))
        seconds, learned = time.monotonic() - begin_s, _rows(whole.trainer) - begin
        if producer.process.exit_status:
            producer.process.fail("the producer failed")
    found = Held(rate, learned / seconds, delays_s, seconds)
    last_s = delays_s[-1] if delays_s else float("nan")
    held = "held" if found.holds else "not held"
    note(f"{rate:,.0f} samples/s: {found.learned_per_s:,.0f} learned, {last_s:.1f} s behind at the end: {held}")
    return found


def _rows(trainer: LoopPart) -> float:
    return trainer.meter(_LEARNED) or 0.0


def _delay_s(whole: Whole) -> float:
    """How far behind the wall the event time is that training has reached."""
    clock_s = whole.trainer.meter(_CLOCK)
    return time.time() - clock_s if clock_s else float("inf")


def _until(is_so: Callable[[], bool], wait_s: float) -> None:
    until_s = time.monotonic() + wait_s
    while not is_so() and time.monotonic() < until_s:
        time.sleep(_LOOK_S)
