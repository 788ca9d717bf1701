"""How a rate is measured: enough repeats to fill a stated time, and the median of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["Timing"]


@dataclass(frozen=True)
class Timing:
    """How long each figure is measured.

    Attributes:
        seconds: At least this long, after one call that is not counted.
        repeats_min: At least this often.
    """

    seconds: float
    repeats_min: int = 5

    def rate(self, work: Callable[[], Any], units: int) -> float:
        """Units a second, the median over repeats.

        Args:
            work: What is timed; each call does the same.
            units: How many units one call does.
        """
        return units / self.duration(work)

    def duration(self, work: Callable[[], Any]) -> float:
        """Seconds a call takes, the median over repeats."""
        work()
        taken: list[float] = []
        until = time.perf_counter() + self.seconds
        while len(taken) < self.repeats_min or time.perf_counter() < until:
            begin = time.perf_counter()
            work()
            taken.append(time.perf_counter() - begin)
        return statistics.median(taken)

    def ratio(self, ours: Callable[[], Any], theirs: Callable[[], Any]) -> float:
        """How many times faster ours is: median of pairs run in turn, so that drift cancels."""
        ours()
        theirs()
        pairs: list[float] = []
        until = time.perf_counter() + self.seconds
        while len(pairs) < self.repeats_min or time.perf_counter() < until:
            begin = time.perf_counter()
            ours()
            middle = time.perf_counter()
            theirs()
            pairs.append((time.perf_counter() - middle) / (middle - begin))
        return statistics.median(pairs)
