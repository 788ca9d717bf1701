"""OpenRows: the predictions of one label in open windows. DueRows: those that are ready to be settled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.trainer.validation.rows import (
    HALVINGS_MAX,
    Rows,
    SettledRows,
    Uint64s,
    correction_type,
    taken,
)
from streamlearn.trainer.validation.runs import Run, Runs, merged, run_of
from streamlearn.versions.format.predictions import stands_for

__all__ = ["DueRows", "OpenRows", "Settlement", "is_sampled"]

Int64s = npt.NDArray[np.int64]


class OpenRows:
    """Rows by window number. Corrections are stored beside the rows and applied when these are settled.

    Attributes:
        halvings: How often windows were halved; 0 for windows not listed.
        lacking: Windows with rows that could not be taken.
    """

    __slots__ = ("_corrected", "_rows", "halvings", "lacking")

    def __init__(self, kind: np.dtype[Any]) -> None:
        self._rows, self._corrected = Runs(kind), Runs(correction_type(kind))
        self.halvings: dict[int, int] = {}
        self.lacking: set[int] = set()

    def __len__(self) -> int:
        return len(self._rows) + len(self._corrected)

    def add(self, rows: Rows, windows: Int64s) -> Run:
        """Add rows; returns those that were kept."""
        return self._append(self._rows, run_of(rows, windows))

    def correct(self, corrected: Rows, windows: Int64s) -> Run:
        """Add corrections, of `correction_type`; returns those that were kept."""
        return self._append(self._corrected, run_of(corrected, windows))

    def take(self, before: int) -> DueRows:
        """Take all windows before a number."""
        halvings = {window: count for window, count in self.halvings.items() if window < before}
        lacking = {window for window in self.lacking if window < before}
        for window in halvings:
            del self.halvings[window]
        self.lacking -= lacking
        return DueRows(self._rows.take(before), self._corrected.take(before), halvings, lacking)

    @property
    def halvings_least(self) -> int | None:
        """The smallest number of times a window was halved; None if no window can be halved again."""
        halvings = [self.halvings.get(window, 0) for window in self._rows.windows | self._corrected.windows]
        return min((count for count in halvings if count < HALVINGS_MAX), default=None)

    def halve(self, halvings: int) -> None:
        """Drop half the rows of windows that were halved `halvings` times, and the corrections of those rows."""
        for window in self._rows.windows | self._corrected.windows:
            if self.halvings.get(window, 0) == halvings:
                self.halvings[window] = halvings + 1
        for runs in (self._rows, self._corrected):
            runs.keep(lambda run: is_sampled(run, self.halvings))

    def _append(self, runs: Runs, run: Run) -> Run:
        if self.halvings:
            run = run.kept(is_sampled(run, self.halvings))
        runs.append(run)
        return run


@dataclass(frozen=True, eq=False)
class DueRows:
    """The rows of windows that have closed, oldest first."""

    rows: Sequence[Run]
    corrected: Sequence[Run]  # corrections of rows
    halvings: dict[int, int]  # how often each window was halved; 0 for windows not listed
    lacking: set[int]  # windows with rows that could not be taken

    def settled(self) -> Settlement:
        """Settle all windows: each identity once, with its first prediction, positive if any row or correction is.

        A number is that of the last correction. Nothing here loops over windows but the last step, which slices.
        """
        runs = merged(self.rows), merged(self.corrected)
        (rows, windows), (corrected, of_corrected) = (_sorted(run) for run in runs)
        last = ~_repeats(_identity(corrected), of_corrected)
        corrected, of_corrected = taken(corrected, last), of_corrected[last]
        begins = np.flatnonzero(~np.append(False, _repeats(rows["identity"], windows))[:-1])
        first = rows
        if len(begins) < len(rows):
            first, windows = taken(rows, begins), windows[begins]
            first["positive"] = np.logical_or.reduceat(rows["positive"], begins)
        row, correction = _matches((first["identity"], windows), (_identity(corrected), of_corrected))
        first["positive"][row] = True
        if corrected.dtype.names:
            first["number"][row] = corrected["number"][correction]
        without_row = np.delete(of_corrected, correction)
        unscored = set(without_row.tolist()) | self.lacking
        found = {}
        ends = np.flatnonzero(np.append(windows[1:] != windows[:-1], True)[: len(windows)]) + 1
        for window, begin, end in zip(windows[ends - 1].tolist(), [0, *ends.tolist()], ends.tolist(), strict=False):
            halvings = self.halvings.get(window, 0)
            found[window] = SettledRows(first[begin:end], halvings, not halvings and window not in unscored)
        return Settlement(found, sum(map(len, runs)) - len(first), len(without_row))


@dataclass(frozen=True, eq=False)
class Settlement:
    """Settled windows, oldest first.

    Attributes:
        windows: The rows of each window that has any.
        dropped: How many rows and corrections are not held any more.
        unmatched: The number of corrections without a row.
    """

    windows: dict[int, SettledRows]
    dropped: int
    unmatched: int


def _sorted(run: Run) -> tuple[Rows, Int64s]:
    """Return rows or corrections by window and identity, otherwise in order of arrival, and the window of each."""
    windows = np.repeat(run.windows, run.counts)
    order = np.lexsort((_identity(run.rows), windows))
    return taken(run.rows, order), windows[order]


def _repeats(identity: Uint64s, windows: Int64s) -> npt.NDArray[np.bool_]:
    """Return which of sorted entries have the same identity and window as the next one."""
    same = (identity[1:] == identity[:-1]) & (windows[1:] == windows[:-1])
    return np.append(same, False)[: len(identity)]


def _matches(rows: tuple[Uint64s, Int64s], corrections: tuple[Uint64s, Int64s]) -> tuple[Int64s, Int64s]:
    """Return the positions of rows and of the corrections of them; both are unique identities with their windows."""
    identity, windows = (np.concatenate(both) for both in zip(rows, corrections, strict=True))
    order = np.lexsort((identity, windows))  # stable, so a row comes right before its correction
    at = np.flatnonzero(_repeats(identity[order], windows[order]))
    return order[at], order[at + 1] - len(rows[0])


def is_sampled(run: Run, halvings: Mapping[int, int]) -> npt.NDArray[np.bool_]:
    """Return which rows are in the sample of their window; `halvings` says how often a window was halved."""
    counts = np.array([halvings.get(window, 0) for window in run.windows.tolist()], np.uint64)
    return stands_for(_identity(run.rows), np.repeat(counts, run.counts))


def _identity(rows: Rows) -> Uint64s:
    """Return the identities of predictions or corrections."""
    identity: Uint64s = rows if rows.dtype.names is None else rows["identity"]
    return identity
