"""LabelRows: the windows of one label: which are open, which are closed, and how long closed rows are kept.

It knows no other label, no score and no thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from streamlearn.trainer.validation.journal import Journal
from streamlearn.trainer.validation.open_rows import DueRows, OpenRows, is_sampled
from streamlearn.trainer.validation.prediction_tensors import LabelNote
from streamlearn.trainer.validation.rows import Rows, SettledRows
from streamlearn.trainer.validation.runs import Run
from streamlearn.trainer.validation.score import ClosedWindows, Parts

__all__ = ["LabelRows"]

Int64s = npt.NDArray[np.int64]

_FIRST = -(1 << 62)
_Times = TypeVar("_Times", int, Int64s)


class LabelRows:
    """The rows of one label by window.

    A label is final `wait_ms` of event time after the impression. `widths_ms` holds the window widths, shortest first,
    each a multiple of the one before. At least `summary_ms` of the newest closed windows are kept.

    Attributes:
        open: Rows of windows that are not closed.
        settled: Rows of closed windows that a longer window or the summary needs, by the begin of the window.
        journal: Rows and corrections that no committed version holds.
        closed_ms: Impressions before this time are closed; None before the first watermark.
    """

    def __init__(self, name: str, wait_ms: int, widths_ms: Sequence[int], summary_ms: int, kind: np.dtype[Any]) -> None:
        self.name = name
        self._wait_ms, self._widths_ms, self._summary_ms = wait_ms, tuple(widths_ms), summary_ms
        self._watermark_ms: int | None = None
        self.open = OpenRows(kind)
        self.settled: dict[int, SettledRows] = {}
        self.journal = Journal(kind)
        self._due_halvings: dict[int, int] = {}
        self._lacking_ms: set[int] = set()
        self.closed_ms: int | None = None

    def windows_of(self, event_time_ms: Int64s) -> Int64s:
        """Return the numbers of the shortest windows that hold some times."""
        windows: Int64s = event_time_ms // self._widths_ms[0]
        return windows

    def are_open(self, windows: Int64s) -> npt.NDArray[np.bool_]:
        """Return which windows are not closed."""
        if self.closed_ms is None:
            return np.ones(len(windows), np.bool_)
        return windows >= self.closed_ms // self._widths_ms[0]

    def add(self, rows: Rows, windows: Int64s, *, is_new: bool) -> int:
        """Add rows of open windows; returns how many were kept. New ones are in no version."""
        return self._added(self.open.add(rows, windows), is_new)

    def correct(self, corrected: Rows, windows: Int64s, *, is_new: bool) -> int:
        """Add corrections of rows of open windows, of `correction_type`; returns how many were kept."""
        return self._added(self.open.correct(corrected, windows), is_new)

    def note(self) -> LabelNote:
        """Return what no committed version holds. Nothing is copied but what is known of windows."""
        lots = self.journal.cut()
        runs = tuple([run for lot in lots for run in lot[at].runs] for at in (0, 1))
        lacking = self.open.lacking | {begin // self._widths_ms[0] for begin in self._lacking_ms}
        return LabelNote(self.name, lots, (runs[0], runs[1]), self._halvings, list(lacking), self._newest_ms)

    def thin(self) -> None:
        """Drop rows of the journal that were thinned out, or that no window needs."""
        halvings, first = self._halvings, self.first_needed(self._watermark_ms, self._newest_ms)
        self.journal.keep(lambda run: is_sampled(run, halvings) & np.repeat(run.windows >= first, run.counts))

    def first_needed(self, watermark_ms: int | None, newest_ms: int | None) -> int:
        """Return the first window whose rows are needed once a watermark has closed all windows that it can.

        `newest_ms` is the begin of the newest closed window with rows, which a summary ends with.
        """
        if watermark_ms is None:
            return _FIRST
        shortest_ms, longest_ms = self._widths_ms[0], self._widths_ms[-1]
        closed_ms = self._due_ms(watermark_ms, shortest_ms) if newest_ms is None else newest_ms + shortest_ms
        return min(self._due_ms(watermark_ms, longest_ms), closed_ms - self._summary_ms) // shortest_ms

    def lack(self, windows: Int64s) -> None:
        """Note windows with rows that are not scored; longer windows that hold them are incomplete too."""
        if len(windows):
            is_open = self.are_open(windows)
            self.open.lacking.update(windows[is_open].tolist())
            self._lack(windows[~is_open].tolist())

    def is_due(self, watermark_ms: int) -> bool:
        """Whether a watermark closes a window of any width."""
        return self.closed_ms is None or self._due_ms(watermark_ms, self._widths_ms[0]) > self.closed_ms

    def due(self, watermark_ms: int) -> DueRows:
        """Take the rows of windows that a watermark closes; rows that arrive for them later are late."""
        assert self.is_due(watermark_ms)
        self.closed_ms = self._due_ms(watermark_ms, self._widths_ms[0])
        due = self.open.take(self.closed_ms // self._widths_ms[0])
        self._due_halvings = due.halvings
        self._lack(due.lacking)
        return due

    def settle(self, windows: Mapping[int, SettledRows]) -> None:
        """Store the settled rows of due windows."""
        self.settled |= {window * self._widths_ms[0]: rows for window, rows in windows.items()}

    def closed(self, watermark_ms: int) -> list[ClosedWindows]:
        """Return the windows of each width that a watermark closes, once each, with their rows.

        The rows that `due` returned must have been settled first.
        """
        before, self._watermark_ms = self._watermark_ms, watermark_ms
        begins = np.array(sorted(begin for begin, rows in self.settled.items() if len(rows)), np.int64)
        spans: list[tuple[int, Int64s, int, int]] = []
        for width in self._widths_ms:
            ends = _end_of(begins, width)
            low = 0 if before is None else int(np.searchsorted(ends, self._due_ms(before, width), "right"))
            high = int(np.searchsorted(ends, self._due_ms(watermark_ms, width), "right"))
            if low < high:
                spans.append((width, ends[low:high], low, high))
        if not spans:
            return []
        first, last = min(low for _, _, low, _ in spans), max(high for *_, high in spans)
        parts = Parts.of([self.settled[begin] for begin in begins[first:last].tolist()])
        lacking = {width: [_end_of(begin, width) for begin in self._lacking_ms] for width, *_ in spans}
        return [
            parts.windows(self.name, width, ends, slice(low - first, high - first), lacking[width])
            for width, ends, low, high in spans
        ]

    def forget(self) -> int:
        """Drop closed rows that nothing needs any more; returns how many."""
        over_ms = self._over_ms
        self._lacking_ms = {begin for begin in self._lacking_ms if begin >= over_ms}
        over_ms = min(over_ms, max(self.settled, default=0) + self._widths_ms[0] - self._summary_ms)
        over = [begin for begin in self.settled if begin < over_ms]
        dropped = sum(len(self.settled.pop(begin)) for begin in over)
        for rows in self.settled.values():
            rows.own()
        return dropped

    def newest(self, left_out: Sequence[tuple[int, int]] = ()) -> ClosedWindows | None:
        """Return the newest closed windows that a summary covers as one, without those of some times; None if none."""
        width_ms = self._widths_ms[0]
        begins = [
            begin
            for begin in sorted(self.settled)
            if all(begin + width_ms <= low or begin >= high for low, high in left_out)
        ]
        if not begins:
            return None
        end = begins[-1] + width_ms
        newest = (self.settled[begin] for begin in begins if begin >= end - self._summary_ms)
        if not (parts := [rows for rows in newest if len(rows)]):
            return None
        ends = np.full(len(parts), end)
        return Parts.of(parts).windows(self.name, self._summary_ms, ends, slice(0, len(parts)), [])

    def _added(self, run: Run, is_new: bool) -> int:
        if is_new:
            self.journal.add(run)
        return len(run)

    @property
    def _newest_ms(self) -> int | None:
        return max(self.settled, default=None)

    @property
    def _halvings(self) -> dict[int, int]:
        """How often windows were halved: those that are being settled, open ones and closed ones."""
        closed = {begin // self._widths_ms[0]: rows.halvings for begin, rows in self.settled.items() if rows.halvings}
        return self._due_halvings | self.open.halvings | closed

    def _lack(self, windows: Iterable[int]) -> None:
        begins, over_ms = (window * self._widths_ms[0] for window in windows), self._over_ms
        self._lacking_ms.update(begin for begin in begins if begin >= over_ms)

    @property
    def _over_ms(self) -> int:
        """The end of the newest of the longest windows that is closed; no window needs rows before it."""
        return _FIRST if self._watermark_ms is None else self._due_ms(self._watermark_ms, self._widths_ms[-1])

    def _due_ms(self, watermark_ms: int, width_ms: int) -> int:
        """Return the end of the newest window of a width in which all labels are final."""
        final = watermark_ms - self._wait_ms
        return final - final % width_ms


def _end_of(begin_ms: _Times, width_ms: int) -> _Times:
    """Return the ends of the windows of a width that hold some times."""
    return begin_ms - begin_ms % width_ms + width_ms
