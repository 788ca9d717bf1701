"""LabelRows: the windows of one label: which are open, which are closed, and for how long closed rows stay.

It knows no other label, no score and no thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.trainer.validation.open_rows import DueRows, OpenRows
from streamlearn.trainer.validation.rows import SettledRows
from streamlearn.trainer.validation.score import Window

__all__ = ["LabelRows"]

Int64s = npt.NDArray[np.int64]


class LabelRows:
    """The rows of one label by window.

    Args:
        name: The label.
        wait_ms: Event time after an impression at which its label is final.
        widths_ms: Of the windows, shortest first, each a multiple of the one before.
        summary_ms: How much of the newest closed windows stays at least.
        kind: `row_type`.

    Attributes:
        open: Rows of windows that are not closed.
        settled: Rows of closed windows that a longer window or the summary needs, by when the window begins.
        closed_ms: Impressions before here are closed; None before the first watermark.
    """

    def __init__(self, name: str, wait_ms: int, widths_ms: Sequence[int], summary_ms: int, kind: np.dtype[Any]) -> None:
        self.name = name
        self._wait_ms, self._widths_ms, self._summary_ms = wait_ms, tuple(widths_ms), summary_ms
        self._watermark_ms: int | None = None
        self.open = OpenRows(kind)
        self.settled: dict[int, SettledRows] = {}
        self.closed_ms: int | None = None

    def windows_of(self, event_time_ms: Int64s) -> Int64s:
        """The numbers of the shortest windows that hold some times."""
        found: Int64s = event_time_ms // self._widths_ms[0]
        return found

    def are_open(self, windows: Int64s) -> npt.NDArray[np.bool_]:
        """Whether windows are not closed."""
        if self.closed_ms is None:
            return np.ones(len(windows), np.bool_)
        return windows >= self.closed_ms // self._widths_ms[0]

    def is_due(self, watermark_ms: int) -> bool:
        """Whether a watermark closes any window, of whatever width."""
        return self.closed_ms is None or self._due_ms(watermark_ms, self._widths_ms[0]) > self.closed_ms

    def due(self, watermark_ms: int) -> DueRows:
        """Take the rows of windows that a watermark closes; rows that come for them later are late."""
        assert self.is_due(watermark_ms)
        self.closed_ms = self._due_ms(watermark_ms, self._widths_ms[0])
        return self.open.take(self.closed_ms // self._widths_ms[0])

    def settle(self, window: int, rows: SettledRows) -> None:
        """Have the rows of a window that was due, if any."""
        if len(rows):
            self.settled[window * self._widths_ms[0]] = rows

    def closed(self, watermark_ms: int) -> list[tuple[Window, list[SettledRows]]]:
        """The windows of all widths that close by a watermark and hold rows, once each, with their rows of now.

        What `due` gave has been settled and put into `settled` before.
        """
        before, self._watermark_ms = self._watermark_ms, watermark_ms
        found: list[tuple[Window, list[SettledRows]]] = []
        for width in self._widths_ms:
            told = None if before is None else self._due_ms(before, width)
            due, ends = self._due_ms(watermark_ms, width), self._ends(width)
            for end in sorted({end for end in ends.values() if end <= due and (told is None or end > told)}):
                mine = [replace(self.settled[begin]) for begin in sorted(begin for begin in ends if ends[begin] == end)]
                found.append((Window(self.name, end - width, end), mine))
        return found

    def forget(self) -> None:
        """Let go of closed rows that nothing needs any more."""
        if not self.settled or self._watermark_ms is None:
            return
        summed_ms = max(self.settled) + self._widths_ms[0] - self._summary_ms
        due, ends = self._due_ms(self._watermark_ms, self._widths_ms[-1]), self._ends(self._widths_ms[-1])
        for begin in [begin for begin, end in ends.items() if end <= due and begin < summed_ms]:
            del self.settled[begin]

    def newest(self) -> tuple[Window, list[SettledRows]] | None:
        """The newest closed windows, as many as a summary is of, as they are now; None before there are any."""
        if not self.settled:
            return None
        end = max(self.settled) + self._widths_ms[0]
        begins = [begin for begin in sorted(self.settled) if begin >= end - self._summary_ms]
        return Window(self.name, end - self._summary_ms, end), [replace(self.settled[begin]) for begin in begins]

    @property
    def nbytes(self) -> int:
        """Bytes of memory of everything that is held."""
        return self.open.nbytes + sum(one.nbytes for one in self.settled.values())

    def _due_ms(self, watermark_ms: int, width_ms: int) -> int:
        """The end of the newest window of a width in which all labels are final."""
        final = watermark_ms - self._wait_ms
        return final - final % width_ms

    def _ends(self, width_ms: int) -> dict[int, int]:
        """For each closed window when the window of another width ends that it is in."""
        return {begin: begin - begin % width_ms + width_ms for begin in self.settled}
