"""OpenRows: the predictions of one label in open windows. DueRows: those that are ready to be settled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
    settled,
)
from streamlearn.trainer.validation.runs import Run, Runs, merged, run_of
from streamlearn.versions.format.predictions import stands_for

__all__ = ["DueRows", "OpenRows", "is_sampled"]

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

    def settled(self) -> Iterator[tuple[int, SettledRows, int, int]]:
        """Settle the windows that have rows or corrections, oldest first.

        Yields each window's number, its rows, how many rows and corrections it had before, and how many corrections
        without a row.
        """
        rows, corrected = merged(self.rows), merged(self.corrected)
        for window in np.union1d(rows.windows, corrected.windows).tolist():
            predictions, corrections = rows.of(window), corrected.of(window)
            halvings, lacks = self.halvings.get(window, 0), window in self.lacking
            settled_rows, unmatched = settled(predictions, corrections, halvings, lacks=lacks)
            yield window, settled_rows, len(predictions) + len(corrections), unmatched


def is_sampled(run: Run, halvings: Mapping[int, int]) -> npt.NDArray[np.bool_]:
    """Return which rows are in the sample of their window; `halvings` says how often a window was halved."""
    counts = np.array([halvings.get(window, 0) for window in run.windows.tolist()], np.uint64)
    return stands_for(_identity(run.rows), np.repeat(counts, run.counts))


def _identity(rows: Rows) -> Uint64s:
    """Return the identities of predictions or corrections."""
    identity: Uint64s = rows if rows.dtype.names is None else rows["identity"]
    return identity
