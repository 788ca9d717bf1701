"""Rates of the loop: the highest rate of samples that training sustains without a growing delay."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.loops.loop_part import LoopPart
from benchmarks.loops.loop_whole import Whole

__all__ = ["RateMeasurement", "Search", "hold", "sustained"]

Note = Callable[[str], None]
_LEARNED = 'streamlearn_trainer_rows_total{outcome="learned"}'
_CLOCK = "streamlearn_trainer_clock_seconds"
_LOOK_S, _BEGIN_S_MAX, _DRAIN_S_MAX = 0.5, 60.0, 180.0
# A delay that grows by less than this share of the elapsed time is noise.
_GROWTH_MAX, _DELAY_S_MAX, _SHARE_MIN = 0.1, 15.0, 0.95
_HOLDING_S = 3.0


@dataclass(frozen=True)
class Search:
    """The search for a rate.

    Attributes:
        begin: The first rate, in samples per second.
        step: Factor between rates while they are sustained.
        fine: Factor of the second search, from the highest sustained rate.
        most: The highest rate.
        seconds: Duration of a measurement.
        warm_s: Duration of the warm-up before it.
    """

    begin: float
    step: float = 1.5
    fine: float = 1.2
    most: float = 60_000.0
    seconds: float = 20.0
    warm_s: float = 6.0


@dataclass(frozen=True)
class RateMeasurement:
    """The measurement of a rate.

    Attributes:
        rate: Samples per second that the load should make due.
        learned_per_s: Learned samples per second.
        delays_s: Delays of training behind wall time, by observation.
        seconds: Duration.
    """

    rate: float
    learned_per_s: float
    delays_s: Sequence[float]
    seconds: float

    @property
    def holds(self) -> bool:
        """Whether nearly all samples were learned, and the delay did not grow."""
        if len(self.delays_s) < 2 or self.learned_per_s < _SHARE_MIN * self.rate:
            return False
        at = np.linspace(0, self.seconds, len(self.delays_s))
        growth = float(np.polyfit(at, self.delays_s, 1)[0])
        return growth <= _GROWTH_MAX and max(self.delays_s[-2:]) <= _DELAY_S_MAX


def sustained(search: Search, held: Callable[[float], RateMeasurement]) -> RateMeasurement | None:
    """Return the highest sustained rate, or None if the first was not; `held` measures a rate."""
    best: RateMeasurement | None = None
    for step in (search.step, search.fine):
        rate = search.begin if best is None else best.rate * step
        while rate <= search.most and (measured := held(rate)).holds:
            best, rate = measured, rate * step
        if best is None:
            return None
    return best


def hold(whole: Whole, search: Search, rate: float, events_of: Callable[[float], float], note: Note) -> RateMeasurement:
    """Produce at a rate and measure how training keeps up. Before it, wait until training has caught up.

    Args:
        whole: The loop.
        search: Duration of warm-up and measurement.
        rate: Samples per second.
        events_of: Returns the rate of events for a rate of samples.
        note: Called with the result.
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
    measured = RateMeasurement(rate, learned / seconds, delays_s, seconds)
    last_s = delays_s[-1] if delays_s else float("nan")
    verdict = "sustained" if measured.holds else "not sustained"
    note(f"{rate:,.0f} samples/s: {measured.learned_per_s:,.0f} learned, {last_s:.1f} s behind at the end: {verdict}")
    return measured


def _rows(trainer: LoopPart) -> float:
    return trainer.meter(_LEARNED) or 0.0


def _delay_s(whole: Whole) -> float:
    """Return the delay of the event time that training has reached behind wall time."""
    clock_s = whole.trainer.meter(_CLOCK)
    return time.time() - clock_s if clock_s else float("inf")


def _until(is_so: Callable[[], bool], wait_s: float) -> None:
    until_s = time.monotonic() + wait_s
    while not is_so() and time.monotonic() < until_s:
        time.sleep(_LOOK_S)
