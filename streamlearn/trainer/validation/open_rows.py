"""OpenRows: the predictions of one label in windows that are not closed, and DueRows: those to be settled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.trainer.validation.rows import HALVINGS_MAX, Rows, SettledRows, Uint64s, settled, stands_for
from streamlearn.trainer.validation.runs import Run, Runs, merged, run_of

__all__ = ["DueRows", "OpenRows", "SettledWindow"]

Int64s = npt.NDArray[np.int64]


class OpenRows:
    """Rows by the number of their window. Corrections are noted, and laid over the rows when these are settled.

    Args:
        kind: `row_type`.
    """

    __slots__ = ("_corrected", "_halvings", "_lacking", "_rows")

    def __init__(self, kind: np.dtype[Any]) -> None:
        self._rows, self._corrected = Runs(kind), Runs(np.dtype(np.uint64))
        self._halvings: dict[int, int] = {}  # of windows that were halved
        self._lacking: set[int] = set()

    def __len__(self) -> int:
        return len(self._rows) + len(self._corrected)

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self._rows.nbytes + self._corrected.nbytes

    def add(self, rows: Rows, windows: Int64s) -> int:
        """Take rows; gives how many were kept."""
        return self._append(self._rows, run_of(rows, windows))

    def correct(self, identity: Uint64s, windows: Int64s) -> int:
        """Take the identities of rows that are positive after all; gives how many were kept."""
        return self._append(self._corrected, run_of(identity, windows))

    def lack(self, windows: Int64s) -> None:
        """Note windows that have rows which could not be taken."""
        self._lacking.update(windows.tolist())

    def take(self, before: int) -> DueRows:
        """Take all windows before one."""
        halvings = {window: count for window, count in self._halvings.items() if window < before}
        lacking = {window for window in self._lacking if window < before}
        for window in halvings:
            del self._halvings[window]
        self._lacking -= lacking
        return DueRows(self._rows.take(before), self._corrected.take(before), halvings, lacking)

    @property
    def halvings_least(self) -> int | None:
        """How often the windows were halved that were halved least; None where no more can be let go of."""
        halvings = [self._halvings.get(window, 0) for window in self._rows.windows | self._corrected.windows]
        return min((one for one in halvings if one < HALVINGS_MAX), default=None)

    def halve(self, halvings: int) -> None:
        """Let go of half the rows of windows that were halved so often, and of the corrections of the same rows."""
        for window in self._rows.windows | self._corrected.windows:
            if self._halvings.get(window, 0) == halvings:
                self._halvings[window] = halvings + 1
        for runs in (self._rows, self._corrected):
            runs.keep(self._stand)

    def _append(self, runs: Runs, run: Run) -> int:
        if self._halvings:
            run = run.kept(self._stand(run))
        runs.append(run)
        return len(run)

    def _stand(self, run: Run) -> npt.NDArray[np.bool_]:
        """Whether rows are among those that stand for all of their window."""
        halvings = np.array([self._halvings.get(window, 0) for window in run.windows.tolist()], np.uint64)
        return stands_for(_identity(run.rows), np.repeat(halvings, run.counts))


@dataclass(frozen=True, eq=False)
class SettledWindow:
    """A window that was settled.

    Attributes:
        window: Its number.
        held: How many rows and corrections it had.
        rows: What it has now.
        unmatched: Corrections of rows that it does not have.
    """

    window: int
    held: int
    rows: SettledRows
    unmatched: int


@dataclass(frozen=True, eq=False)
class DueRows:
    """What was held of windows that are closed now.

    Attributes:
        rows: Oldest first.
        corrected: The identities of rows that are positive after all.
        halvings: How often windows were halved; of others, never.
        lacking: Windows with rows that could not be taken.
    """

    rows: Sequence[Run]
    corrected: Sequence[Run]
    halvings: dict[int, int]
    lacking: set[int]

    def settled(self) -> Iterator[SettledWindow]:
        """The windows that have rows or corrections, oldest first."""
        rows, corrected = merged(self.rows), merged(self.corrected)
        for window in np.union1d(rows.windows, corrected.windows).tolist():
            mine, theirs = rows.of(window), corrected.of(window)
            found, unmatched = settled(mine, theirs, self.halvings.get(window, 0), lacks=window in self.lacking)
            yield SettledWindow(window, len(mine) + len(theirs), found, unmatched)


def _identity(rows: Rows) -> Uint64s:
    """Of predictions, or of corrections, which are identities and nothing else."""
    found: Uint64s = rows if rows.dtype.names is None else rows["identity"]
    return found
