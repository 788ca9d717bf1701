"""What has happened and is still under way: rows put in at any time, taken out once they have arrived.

It knows nothing of what the rows are.
"""

from __future__ import annotations

import numpy as np

from streamlearn.events import join_rows, rows_of, take_rows

from .world import Arrays, Int64s

__all__ = ["Arrived", "Waiting"]

# (columns of some rows; when each row arrives)
Arrived = tuple[Arrays, Int64s]


class Waiting:
    """Rows by the time they arrive.

    They are kept as few sorted runs, each at least twice as long as the next, so a row is moved a handful
    of times however long it waits and however many wait with it.
    """

    def __init__(self) -> None:
        self._runs: list[Arrived] = []

    @property
    def last_ms(self) -> int | None:
        """When the last row arrives; None: none is under way."""
        return max((int(arrive_ms[-1]) for _, arrive_ms in self._runs), default=None)

    def put(self, columns: Arrays, arrive_ms: Int64s) -> None:
        """Take in rows, in any order."""
        if not len(arrive_ms):
            return
        run = _sorted(columns, arrive_ms)
        while self._runs and len(self._runs[-1][1]) < 2 * len(run[1]):
            before = self._runs.pop()
            run = _sorted(join_rows([before[0], run[0]]), np.concatenate((before[1], run[1])))
        self._runs.append(run)

    def take(self, until_ms: int) -> list[Arrived]:
        """Let go of the rows that arrive before a time, in as many sorted parts as they are kept in."""
        taken: list[Arrived] = []
        left: list[Arrived] = []
        for columns, arrive_ms in self._runs:
            due, rows = int(np.searchsorted(arrive_ms, until_ms)), len(arrive_ms)
            if due:
                taken.append((rows_of(columns, 0, due), arrive_ms[:due]))
            if due < rows:
                left.append((rows_of(columns, due, rows), arrive_ms[due:]) if due else (columns, arrive_ms))
        self._runs = left
        return taken


def _sorted(columns: Arrays, arrive_ms: Int64s) -> Arrived:
    order = np.argsort(arrive_ms, kind="stable")
    return take_rows(columns, order), arrive_ms[order]
