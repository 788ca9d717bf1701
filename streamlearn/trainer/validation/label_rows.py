"""LabelRows: the windows of one label: which are open, which are closed, and for how long closed rows stay.

It knows no other label, no score and no thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
        self._lacking_ms: set[int] = set()
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

    def lack(self, windows: Int64s) -> None:
        """Note windows, open or closed, with rows that are not scored; longer windows that hold them lack them too."""
        if len(windows):
            is_open = self.are_open(windows)
            self.open.lack(windows[is_open])
            self._lack(windows[~is_open].tolist())

    def is_due(self, watermark_ms: int) -> bool:
        """Whether a watermark closes any window, of whatever width."""
        return self.closed_ms is None or self._due_ms(watermark_ms, self._widths_ms[0]) > self.closed_ms

    def due(self, watermark_ms: int) -> DueRows:
        """Take the rows of windows that a watermark closes; rows that come for them later are late."""
        assert self.is_due(watermark_ms)
        self.closed_ms = self._due_ms(watermark_ms, self._widths_ms[0])
        found = self.open.take(self.closed_ms // self._widths_ms[0])
        self._lack(found.lacking)
        return found

    def settle(self, window: int, rows: SettledRows) -> None:
        """Have the rows of a window that was due, if any."""
        if len(rows):
            self.settled[window * self._widths_ms[0]] = rows

    def closed(self, watermark_ms: int) -> list[tuple[Window, list[SettledRows]]]:
        """The windows of all widths that close by a watermark and hold rows, once each, with their rows of now.

        What `due` gave has been settled and put into `settled` before.
        """
        before, self._watermark_ms = self._watermark_ms, watermark_ms
        begins = sorted(self.settled)
        found: list[tuple[Window, list[SettledRows]]] = []
        for width in self._widths_ms:
            told = None if before is None else self._due_ms(before, width)
            due, lacking = self._due_ms(watermark_ms, width), {_end_of(begin, width) for begin in self._lacking_ms}
            windows: dict[int, list[SettledRows]] = {}
            for begin in begins:
                end = _end_of(begin, width)
                if end <= due and (told is None or end > told):
                    rows = self.settled[begin]
                    mine = windows.setdefault(end, [])
                    mine.append(replace(rows, is_whole=rows.is_whole and end not in lacking))
            found += [(Window(self.name, end - width, end), mine) for end, mine in windows.items()]
        return found

    def forget(self) -> None:
        """Let go of closed rows that nothing needs any more."""
        self._lacking_ms = {begin for begin in self._lacking_ms if not self._is_over(begin)}
        summed_ms = max(self.settled, default=0) + self._widths_ms[0] - self._summary_ms
        for begin in [one for one in self.settled if one < summed_ms and self._is_over(one)]:
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

    def _lack(self, windows: Iterable[int]) -> None:
        begins = (window * self._widths_ms[0] for window in windows)
        self._lacking_ms.update(begin for begin in begins if not self._is_over(begin))

    def _is_over(self, begin_ms: int) -> bool:
        """Whether the longest window that holds a shorter one was closed before."""
        longest_ms, before = self._widths_ms[-1], self._watermark_ms
        return before is not None and _end_of(begin_ms, longest_ms) <= self._due_ms(before, longest_ms)

    def _due_ms(self, watermark_ms: int, width_ms: int) -> int:
        """The end of the newest window of a width in which all labels are final."""
        final = watermark_ms - self._wait_ms
        return final - final % width_ms


def _end_of(begin_ms: int, width_ms: int) -> int:
    """When the window of a width ends that a time is in."""
    return begin_ms - begin_ms % width_ms + width_ms
