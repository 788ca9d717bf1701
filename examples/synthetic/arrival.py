"""The arrival: in which order and when events come to be known; some twice, some late.

It knows nothing of what the events are.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from streamlearn.events import join_rows, take_rows

from .chance import chance_of
from .options import Options
from .waiting import Arrived, Waiting
from .world import Arrays, Int64s

__all__ = ["Arrival"]


class Arrival:
    """One kind of events between their happening and their arrival.

    Args:
        options: How they arrive.
        purpose: Tells the chance of one kind from that of another.
        in_order: Whether events are given in the order they happen and before the time they are asked for.
    """

    def __init__(self, options: Options, purpose: int, *, in_order: bool) -> None:
        self._options = options
        self._purpose = purpose
        self._at_once = in_order and not (options.duplicates or options.disorder_ms or options.stragglers)
        self._chunks = 0
        self._waiting = Waiting()

    @property
    def last_ms(self) -> int | None:
        """When the last of those under way arrives; None: none are."""
        return self._waiting.last_ms

    def give(self, columns: Arrays, until_ms: int) -> Arrived:
        """Give events that have happened; get those that arrive before a time, in the order they do."""
        if self._at_once:
            return columns, columns["event_time_ms"]
        row, arrive_ms = self._arrivals(columns["event_time_ms"])
        later = arrive_ms >= until_ms
        self._waiting.put(take_rows(columns, row[later]), arrive_ms[later])
        row, arrive_ms = row[~later], arrive_ms[~later]
        parts = self._waiting.take(until_ms)
        before_ms = [part_ms for _, part_ms in parts]
        waited = len(columns["event_time_ms"]) + np.arange(sum(len(part_ms) for part_ms in before_ms))
        arrive_ms = np.concatenate((arrive_ms, *before_ms))
        order = np.argsort(arrive_ms, kind="stable")
        joined = join_rows([columns, *(part for part, _ in parts)])
        return take_rows(joined, np.concatenate((row, waited))[order]), arrive_ms[order]

    def rest(self) -> Arrived | None:
        """All those under way, in the order they arrive; None: none are."""
        parts = self._waiting.take(np.iinfo(np.int64).max)
        if not parts:
            return None
        arrive_ms = np.concatenate([part_ms for _, part_ms in parts])
        order = np.argsort(arrive_ms, kind="stable")
        return take_rows(join_rows([part for part, _ in parts]), order), arrive_ms[order]

    def _arrivals(self, time_ms: Int64s) -> tuple[npt.NDArray[np.int64], Int64s]:
        """Which event arrives, and when: all of them, and some once more."""
        rng = chance_of(self._options.seed, self._purpose, self._chunks)
        self._chunks += 1
        again = np.flatnonzero(rng.random(len(time_ms)) < self._options.duplicates)
        row = np.concatenate((np.arange(len(time_ms)), again))
        disorder_ms = self._options.disorder_ms
        arrive_ms = time_ms[row] + rng.integers(0, disorder_ms, len(row), endpoint=True)
        straggles = np.flatnonzero(rng.random(len(row)) < self._options.stragglers)
        late_ms = rng.integers(1, self._options.straggler_ms, len(straggles), endpoint=True)
        arrive_ms[straggles] = time_ms[row[straggles]] + disorder_ms + late_ms
        return row, arrive_ms
