"""The arrival: in which order and when events come to be known; some twice, some late.

It knows nothing of what the events are.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from streamlearn.replay import join_rows, take_rows

from .chance import chance_of
from .options import Options
from .world import Arrays, Int64s

__all__ = ["Arrival", "Arrived"]

# (columns of the events that have arrived, in the order they did; when each did)
Arrived = tuple[Arrays, Int64s]


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
        self._waiting: Arrived | None = None

    @property
    def last_ms(self) -> int | None:
        """When the last of those under way arrives; None: none are."""
        return None if self._waiting is None else int(self._waiting[1].max())

    def give(self, columns: Arrays, until_ms: int) -> Arrived:
        """Give events that have happened; get those that arrive before a time."""
        if self._at_once:
            return columns, columns["event_time_ms"]
        row, arrive_ms = self._arrivals(columns["event_time_ms"])
        if self._waiting is not None:
            before, before_ms = self._waiting
            columns = join_rows([before, columns])
            row = np.concatenate((np.arange(len(before_ms)), len(before_ms) + row))
            arrive_ms = np.concatenate((before_ms, arrive_ms))
        return self._part(columns, row, arrive_ms, until_ms)

    def rest(self) -> Arrived | None:
        """All those under way; None: none are."""
        if self._waiting is None:
            return None
        columns, arrive_ms = self._waiting
        row = np.arange(len(arrive_ms))
        return self._part(columns, row, arrive_ms, int(arrive_ms.max()) + 1)

    def _part(self, columns: Arrays, row: Int64s, arrive_ms: Int64s, until_ms: int) -> Arrived:
        order = np.argsort(arrive_ms, kind="stable")
        row, arrive_ms = row[order], arrive_ms[order]
        due = int(np.searchsorted(arrive_ms, until_ms))
        self._waiting = None
        if due < len(row):
            self._waiting = take_rows(columns, row[due:]), arrive_ms[due:]
        return take_rows(columns, row[:due]), arrive_ms[:due]

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
