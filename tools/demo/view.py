"""View: the state of the loop on stderr, as a live panel in a terminal and as lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tools.demo.board import Board
from tools.demo.feed import Feed
from tools.demo.loop import Loop

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

__all__ = ["View", "open_view"]

_TERMINAL_S, _LINE_S = 1.0, 10.0
# The AUC covers this many of the newest rows whose labels are known.
_ROWS = 5_000
_LINES = 9


class View:
    """Shows events and the state of the loop; `live` is None outside a terminal."""

    def __init__(self, live: Live | None, title: str) -> None:
        self._live, self._title, self._begun_s = live, title, time.monotonic()
        self._refreshed_s, self._lines = 0.0, list[str]()
        self._parts: tuple[Loop, Feed, Board] | None = None
        self._window_ms, self._span = 0, (0, 1)

    def show(self, loop: Loop, feed: Feed, board: Board, window_ms: int, span: tuple[int, int]) -> None:
        """Show the state of a loop from now on.

        Args:
            loop: The processes.
            feed: The replay.
            board: Served scores and users' actions.
            window_ms: Event time after which the labels of a shown row are known.
            span: The event times at which the feed begins and ends.
        """
        self._parts, self._window_ms, self._span = (loop, feed, board), window_ms, span

    def tell(self, line: str) -> None:
        """Show a line with the time since the start."""
        seconds = time.monotonic() - self._begun_s
        entry = f"{int(seconds) // 60:d}:{int(seconds) % 60:02d}  {line}"
        self._lines.append(entry)
        if self._live is None:
            print(entry, file=sys.stderr, flush=True)
        else:
            self._live.update(self._table(self._state()), refresh=True)

    def refresh(self) -> None:
        """Show the state again, if that is due."""
        every_s = _LINE_S if self._live is None else _TERMINAL_S
        if time.monotonic() - self._refreshed_s < every_s:
            return
        self._refreshed_s = time.monotonic()
        state = self._state()
        if self._live is not None:
            self._live.update(self._table(state), refresh=True)
        elif state:
            print("      " + ", ".join(f"{name} {value}" for name, value in state.items()), file=sys.stderr, flush=True)

    def _state(self) -> dict[str, Any]:
        if self._parts is None:
            return {}
        loop, feed, board = self._parts
        begin_ms, end_ms = self._span
        done = (feed.event_ms - begin_ms) / max(1, end_ms - begin_ms)
        rows = board.rows()
        known = rows.where(rows.event_ms <= feed.event_ms - self._window_ms)
        newest = known.where(slice(-_ROWS, None))
        state = {
            "replayed": f"{min(done, 1.0):.0%}",
            "events/s": f"{feed.events_per_s:,.0f}",
            "samples learned": f"{loop.metric('trainer', 'streamlearn_trainer_rows_total', outcome='learned'):,.0f}",
            "unread messages": f"{loop.metric('trainer', 'streamlearn_trainer_behind_records'):,.0f}",
            "versions that nodes serve": ", ".join(map(str, feed.last)),
        }
        age_s = self._age_s(loop, feed)
        if age_s is not None:
            state["age of the newest event learned, s"] = f"{age_s:.1f}"
        if (auc := newest.auc(0)) is not None:
            state["served AUC"] = f"{auc:.4f}"
        if (auc := newest.auc(0, kept=0)) is not None:
            state[f"AUC of version {feed.kept[0]}, kept for comparison"] = f"{auc:.4f}"
        return state

    @staticmethod
    def _age_s(loop: Loop, feed: Feed) -> float | None:
        """Return the age of the newest event that the versions of all nodes have learned."""
        lowest = min(feed.last)
        event_ms = next((one.watermark_ms for one in loop.versions() if one.version == lowest), None)
        reached_s = None if event_ms is None else feed.wall_s(event_ms)
        return None if reached_s is None else time.monotonic() - reached_s

    def _table(self, state: dict[str, Any]) -> Table:
        from rich.markup import escape
        from rich.table import Table

        table = Table(title=self._title, box=None, show_header=False, title_justify="left", padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True)
        for name, value in state.items():
            table.add_row(name, f"[bold]{escape(str(value))}[/]")
        table.add_row("", "")
        for line in self._lines[-_LINES:]:
            seconds, _, text = line.partition("  ")
            table.add_row(seconds, escape(text))
        return table


@contextmanager
def open_view(title: str) -> Iterator[View]:
    """Open a view for the time of the context."""
    if not sys.stderr.isatty():
        yield View(None, title)
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), auto_refresh=False) as live:
        yield View(live, title)
