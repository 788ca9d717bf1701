"""Timer: measures the rate of a call, as the median of repeats that fill a given time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["Timer"]


@dataclass(frozen=True)
class Timer:
    """The duration of measurements.

    Attributes:
        seconds: Minimum time, after one call that does not count.
        repeats_min: Minimum number of repeats.
    """

    seconds: float
    repeats_min: int = 5

    def rate(self, work: Callable[[], Any], units: int) -> float:
        """Return the units per second, where each call of `work` does `units` units; the median of repeats."""
        return units / self.duration(work)

    def duration(self, work: Callable[[], Any]) -> float:
        """Return the seconds of a call; the median of repeats."""
        work()
        durations_s: list[float] = []
        until = time.perf_counter() + self.seconds
        while len(durations_s) < self.repeats_min or time.perf_counter() < until:
            begin = time.perf_counter()
            work()
            durations_s.append(time.perf_counter() - begin)
        return statistics.median(durations_s)

    def ratio(self, ours: Callable[[], Any], peer: Callable[[], Any]) -> float:
        """Return how many times faster `ours` is than `peer`: as the median of alternating pairs."""
        ours()
        peer()
        pairs: list[float] = []
        until = time.perf_counter() + self.seconds
        while len(pairs) < self.repeats_min or time.perf_counter() < until:
            begin = time.perf_counter()
            ours()
            middle = time.perf_counter()
            peer()
            pairs.append((time.perf_counter() - middle) / (middle - begin))
        return statistics.median(pairs)
