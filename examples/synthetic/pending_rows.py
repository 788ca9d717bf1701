"""PendingRows: rows that are added at any time, and removed when they arrive.

It does not know what the rows are.
"""

from __future__ import annotations

import numpy as np

from streamlearn.events import join_rows, rows_of, take_rows

from .world import Arrays, Int64s

__all__ = ["Arrived", "PendingRows"]

# Columns of rows, and the time at which each row arrives.
Arrived = tuple[Arrays, Int64s]


class PendingRows:
    """Rows by the time of arrival.

    They are in a few sorted runs, each at least twice as long as the next, so a row is moved only a few times, however
    long it is pending and however many rows are.
    """

    def __init__(self) -> None:
        self._runs: list[Arrived] = []

    @property
    def last_ms(self) -> int | None:
        """Arrival time of the last row; None without rows."""
        return max((int(arrive_ms[-1]) for _, arrive_ms in self._runs), default=None)

    def put(self, columns: Arrays, arrive_ms: Int64s) -> None:
        """Add rows, in any order."""
        if not len(arrive_ms):
            return
        run = _sorted(columns, arrive_ms)
        while self._runs and len(self._runs[-1][1]) < 2 * len(run[1]):
            before = self._runs.pop()
            run = _sorted(join_rows([before[0], run[0]]), np.concatenate((before[1], run[1])))
        self._runs.append(run)

    def take(self, until_ms: int) -> list[Arrived]:
        """Remove and return the rows that arrive before a time, in sorted parts."""
        taken: list[Arrived] = []
        remaining: list[Arrived] = []
        for columns, arrive_ms in self._runs:
            due, rows = int(np.searchsorted(arrive_ms, until_ms)), len(arrive_ms)
            if due:
                taken.append((rows_of(columns, 0, due), arrive_ms[:due]))
            if due < rows:
                remaining.append((rows_of(columns, due, rows), arrive_ms[due:]) if due else (columns, arrive_ms))
        self._runs = remaining
        return taken


def _sorted(columns: Arrays, arrive_ms: Int64s) -> Arrived:
    order = np.argsort(arrive_ms, kind="stable")
    return take_rows(columns, order), arrive_ms[order]
