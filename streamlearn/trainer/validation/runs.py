"""Runs: rows in the order of their windows, appended step by step and taken by window. They know no fields of a row.

Nothing here loops over windows: the cost of a row hardly depends on how many windows a step has.
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

# This number of runs with equally many merges becomes one run, of at most `_ROWS_MAX` rows.
_MERGED, _ROWS_MAX = 16, 1 << 18
# A run with closed windows is copied once they take this share of its memory.
_GONE_SHARE = 0.25
_SMALL = 1 << 16


@dataclass(frozen=True, eq=False)
class Run:
    """N rows of W windows. The arrays are never written to."""

    rows: Rows  # N rows, window by window; those of one window in order of arrival
    windows: Int64s  # int64[W]: the window numbers, increasing; each window has rows
    ends: Int64s  # int64[W]: the end of each window's rows
    merges: int = 0  # how often the rows were merged with others
    gone: int = 0  # rows of closed windows that are still in memory

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def counts(self) -> Int64s:
        """The number of rows of each window."""
        return np.diff(self.ends, prepend=np.int64(0))

    def of(self, window: int) -> Rows:
        """Return the rows of a window."""
        at = int(np.searchsorted(self.windows, window))
        if at == len(self.windows) or self.windows[at] != window:
            return self.rows[:0]
        return self.rows[int(self.ends[at - 1]) if at else 0 : int(self.ends[at])]

    def kept(self, is_kept: Bools) -> Run:
        """Return the run with some of its rows."""
        if is_kept.all():
            return self
        counts = np.add.reduceat(is_kept.astype(np.int64), self.ends - self.counts)
        has_rows = counts > 0
        return Run(taken(self.rows, is_kept), self.windows[has_rows], np.cumsum(counts[has_rows]), self.merges)

    def cut(self, before: int) -> tuple[Run, Run]:
        """Split into the windows before a number and the others."""
        at = int(np.searchsorted(self.windows, before))
        end = int(self.ends[at - 1]) if at else 0
        first = Run(self.rows[:end], self.windows[:at], self.ends[:at])
        gone, remaining = self.gone + end, self.rows[end:]
        if gone > _GONE_SHARE * (gone + len(remaining)):
            gone, remaining = 0, remaining.copy()
        return first, Run(remaining, self.windows[at:].copy(), self.ends[at:] - end, self.merges, gone)


class Runs:
    """All held rows, as runs; `kind` is the type of a row."""

    __slots__ = ("_count", "_none", "_runs")

    def __init__(self, kind: np.dtype[Any]) -> None:
        self._runs: list[Run] = []
        self._none = Run(np.empty(0, kind), np.empty(0, np.int64), np.empty(0, np.int64))
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def runs(self) -> tuple[Run, ...]:
        """All runs, oldest first."""
        return tuple(self._runs)

    @property
    def windows(self) -> set[int]:
        """The windows that have rows."""
        return set().union(*(run.windows.tolist() for run in self._runs))

    def append(self, run: Run) -> None:
        """Add rows that arrived after all others."""
        if not len(run):
            return
        self._runs.append(run)
        self._count += len(run)
        while len(newest := self._runs[-_MERGED:]) == _MERGED and _are_alike(newest):
            del self._runs[-_MERGED:]
            self._runs.append(replace(merged(newest), merges=newest[0].merges + 1))

    def take(self, before: int) -> list[Run]:
        """Take the rows of windows before a number, as unmerged runs, oldest first."""
        taken_runs, remaining = [], []
        for run in self._runs:
            if run.windows[0] >= before:
                remaining.append(run)
                continue
            first, rest = run.cut(before)
            taken_runs.append(first)
            if len(rest):
                remaining.append(rest)
        self._runs = remaining
        self._count -= sum(map(len, taken_runs))
        return taken_runs or [self._none]

    def keep(self, is_kept: Callable[[Run], Bools]) -> None:
        """Keep only the rows that `is_kept` selects."""
        kept = (run.kept(is_kept(run)) for run in self._runs)
        self._runs = [run for run in kept if len(run)]
        self._count = sum(map(len, self._runs))


def run_of(rows: Rows, windows: Int64s) -> Run:
    """Build a run from rows in order of arrival; `windows` is int64[n], the window number of each row.

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
    """Merge runs, oldest first, into one."""
    if len(runs) == 1:
        return runs[0]
    rows = joined([run.rows for run in runs])
    windows = np.concatenate([run.windows for run in runs])
    counts = np.concatenate([run.counts for run in runs])
    if (windows[1:] < windows[:-1]).any():
        return run_of(rows, np.repeat(windows, counts))
    is_last = np.append(windows[1:] != windows[:-1], True)
    return Run(rows, windows[is_last], np.cumsum(counts)[is_last])


def _order(windows: Int64s) -> npt.NDArray[np.intp]:
    """Return a stable order by window; a small range of numbers is sorted several times faster."""
    least = windows.min()
    if int(windows.max()) - int(least) < _SMALL:
        return np.argsort((windows - least).astype(np.uint16), kind="stable")
    return np.argsort(windows, kind="stable")


def _are_alike(runs: Sequence[Run]) -> bool:
    merges = runs[-1].merges
    return all(run.merges == merges for run in runs) and sum(map(len, runs)) <= _ROWS_MAX
