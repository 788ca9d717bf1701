"""Runs: rows in the order of their windows, appended step by step and taken by window. What a row is, others know.

Nothing here is done for one window alone: what a row costs hangs little on how many windows a step is of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.trainer.validation.rows import Rows, joined, taken

__all__ = ["Run", "Runs", "merged", "run_of"]

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

# So many runs that were merged alike become one, but none of more rows than this.
_MERGED, _ROWS_MAX = 16, 1 << 18
# A run whose windows closed in part is copied once this share of its memory is of closed ones.
_GONE_SHARE = 0.25
_SMALL = 1 << 16


@dataclass(frozen=True, eq=False)
class Run:
    """N rows of W windows. Arrays are never written to.

    Attributes:
        rows: N. Window by window; those of one window in the order they came.
        windows: int64[W]. The numbers of the windows, growing; each has rows.
        ends: int64[W]. Where the rows of each end.
        merges: How often they were merged with others.
        gone: Rows of closed windows that are in memory still.
    """

    rows: Rows
    windows: Int64s
    ends: Int64s
    merges: int = 0
    gone: int = 0

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return (len(self) + self.gone) * self.rows.dtype.itemsize + self.windows.nbytes + self.ends.nbytes

    @property
    def counts(self) -> Int64s:
        """How many rows each window has."""
        found = self.ends.copy()
        found[1:] -= self.ends[:-1]
        return found

    def of(self, window: int) -> Rows:
        """The rows of a window."""
        at = int(np.searchsorted(self.windows, window))
        if at == len(self.windows) or self.windows[at] != window:
            return self.rows[:0]
        return self.rows[int(self.ends[at - 1]) if at else 0 : int(self.ends[at])]

    def kept(self, is_kept: Bools) -> Run:
        """Some of the rows."""
        if is_kept.all():
            return self
        counts = np.add.reduceat(is_kept.astype(np.int64), self.ends - self.counts)
        left = counts > 0
        return Run(taken(self.rows, is_kept), self.windows[left], np.cumsum(counts[left]), self.merges)

    def cut(self, before: int) -> tuple[Run, Run]:
        """The rows of windows before one, and the others."""
        at = int(np.searchsorted(self.windows, before))
        end = int(self.ends[at - 1]) if at else 0
        first = Run(self.rows[:end], self.windows[:at], self.ends[:at])
        gone, rest = self.gone + end, self.rows[end:]
        if gone > _GONE_SHARE * (gone + len(rest)):
            gone, rest = 0, rest.copy()
        return first, Run(rest, self.windows[at:].copy(), self.ends[at:] - end, self.merges, gone)


class Runs:
    """Rows that are held.

    Args:
        kind: What a row is.
    """

    __slots__ = ("_count", "_none", "_runs")

    def __init__(self, kind: np.dtype[Any]) -> None:
        self._runs: list[Run] = []
        self._none = Run(np.empty(0, kind), np.empty(0, np.int64), np.empty(0, np.int64))
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return sum(one.nbytes for one in self._runs)

    @property
    def windows(self) -> set[int]:
        """The windows that have rows."""
        return set().union(*(one.windows.tolist() for one in self._runs))

    def append(self, run: Run) -> None:
        """Take rows that came after all others."""
        if not len(run):
            return
        self._runs.append(run)
        self._count += len(run)
        while len(newest := self._runs[-_MERGED:]) == _MERGED and _are_alike(newest):
            del self._runs[-_MERGED:]
            self._runs.append(replace(merged(newest), merges=newest[0].merges + 1))

    def take(self, before: int) -> list[Run]:
        """Take the rows of windows before one; as runs, oldest first, that are to be merged by whoever has the time."""
        found, left = [], []
        for one in self._runs:
            if one.windows[0] >= before:
                left.append(one)
                continue
            first, rest = one.cut(before)
            found.append(first)
            if len(rest):
                left.append(rest)
        self._runs = left
        self._count -= sum(map(len, found))
        return found or [self._none]

    def keep(self, is_kept: Callable[[Run], Bools]) -> None:
        """Let go of rows."""
        kept = (one.kept(is_kept(one)) for one in self._runs)
        self._runs = [one for one in kept if len(one)]
        self._count = sum(map(len, self._runs))


def run_of(rows: Rows, windows: Int64s) -> Run:
    """Rows in the order they came, as a run.

    Args:
        rows: The rows.
        windows: int64[n]. The number of the window of each.

    Examples:
        >>> run = run_of(np.array([10, 11, 12]), np.array([7, 5, 7]))
        >>> run.windows.tolist(), run.of(5).tolist(), run.of(6).tolist(), run.of(7).tolist()
        ([5, 7], [11], [], [10, 12])
    """
    is_next = windows[1:] >= windows[:-1]
    if not is_next.all():
        order = _order(windows)
        rows, windows = taken(rows, order), windows[order]
    last = np.flatnonzero(windows[1:] != windows[:-1])
    ends = np.append(last + 1, len(windows)) if len(windows) else last
    return Run(rows, windows[ends - 1], ends)


def merged(runs: Sequence[Run]) -> Run:
    """Several runs, oldest first, as one."""
    if len(runs) == 1:
        return runs[0]
    rows = joined([one.rows for one in runs])
    windows, counts = (
        np.concatenate(arrays) for arrays in zip(*((one.windows, one.counts) for one in runs), strict=True)
    )
    if (windows[1:] < windows[:-1]).any():
        return run_of(rows, np.repeat(windows, counts))
    is_last = np.append(windows[1:] != windows[:-1], True)
    return Run(rows, windows[is_last], np.cumsum(counts)[is_last])


def _order(windows: Int64s) -> npt.NDArray[np.intp]:
    """The order by window, of one window as they came; small numbers are sorted several times faster."""
    least = windows.min()
    if int(windows.max()) - int(least) < _SMALL:
        return np.argsort((windows - least).astype(np.uint16), kind="stable")
    return np.argsort(windows, kind="stable")


def _are_alike(runs: Sequence[Run]) -> bool:
    merges = runs[-1].merges
    return all(one.merges == merges for one in runs) and sum(map(len, runs)) <= _ROWS_MAX
