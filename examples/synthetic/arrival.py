"""Arrival: the order and time in which events arrive; some arrive twice, some late.

It does not know what the events are.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from streamlearn.events import join_rows, take_rows

from .chance import chance_of
from .options import Options
from .pending_rows import Arrived, PendingRows
from .world import Arrays, Int64s

__all__ = ["Arrival"]


class Arrival:
    """Events of one kind that happened and have not arrived.

    Args:
        options: The options of arrival.
        purpose: Number of the kind of events, for independent randomness.
        in_order: Whether `give` gets events in the order of time, all before its `until_ms`.
    """

    def __init__(self, options: Options, purpose: int, *, in_order: bool) -> None:
        self._options = options
        self._purpose = purpose
        self._at_once = in_order and not (options.duplicates or options.disorder_ms or options.stragglers)
        self._chunks = 0
        self._pending = PendingRows()

    @property
    def last_ms(self) -> int | None:
        """Arrival time of the last pending event; None without pending events."""
        return self._pending.last_ms

    def give(self, columns: Arrays, until_ms: int) -> Arrived:
        """Add events that happened, and return those that arrive before a time, in the order of arrival."""
        if self._at_once:
            return columns, columns["event_time_ms"]
        row, arrive_ms = self._arrivals(columns["event_time_ms"])
        later = arrive_ms >= until_ms
        self._pending.put(take_rows(columns, row[later]), arrive_ms[later])
        row, arrive_ms = row[~later], arrive_ms[~later]
        parts = self._pending.take(until_ms)
        earlier_ms = [part_ms for _, part_ms in parts]
        earlier_rows = len(columns["event_time_ms"]) + np.arange(sum(len(part_ms) for part_ms in earlier_ms))
        arrive_ms = np.concatenate((arrive_ms, *earlier_ms))
        order = np.argsort(arrive_ms, kind="stable")
        joined = join_rows([columns, *(part for part, _ in parts)])
        return take_rows(joined, np.concatenate((row, earlier_rows))[order]), arrive_ms[order]

    def rest(self) -> Arrived | None:
        """Return all pending events in the order of arrival; None without pending events."""
        parts = self._pending.take(np.iinfo(np.int64).max)
        if not parts:
            return None
        arrive_ms = np.concatenate([part_ms for _, part_ms in parts])
        order = np.argsort(arrive_ms, kind="stable")
        return take_rows(join_rows([part for part, _ in parts]), order), arrive_ms[order]

    def _arrivals(self, time_ms: Int64s) -> tuple[npt.NDArray[np.int64], Int64s]:
        """Return the rows that arrive and their times: all events, and some of them twice."""
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
