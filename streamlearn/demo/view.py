"""View: how the loop stands, on stderr: a panel that changes in a terminal, a line now and then where there is none."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from streamlearn.demo.board import Board
from streamlearn.demo.feed import Feed
from streamlearn.demo.loop import Loop

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

__all__ = ["View", "watched"]

_TERMINAL_S, _LINE_S = 1.0, 10.0
# The AUC shown is of so many of the newest rows whose labels are known.
_ROWS = 5_000
_LINES = 9


class View:
    """Shows what it is told, and how the loop stands.

    Args:
        live: A terminal's; None where there is none.
        title: What is run.
    """

    def __init__(self, live: Live | None, title: str) -> None:
        self._live, self._title, self._begun_s = live, title, time.monotonic()
        self._shown_s, self._lines = 0.0, list[str]()
        self._parts: tuple[Loop, Feed, Board] | None = None
        self._window_ms, self._span = 0, (0, 1)

    def of(self, loop: Loop, feed: Feed, board: Board, window_ms: int, span: tuple[int, int]) -> None:
        """Show these from now on.

        Args:
            loop: The processes.
            feed: What is replayed.
            board: What was served.
            window_ms: How long after it was shown a row's labels are known.
            span: The event times at which the feed begins and ends.
        """
        self._parts, self._window_ms, self._span = (loop, feed, board), window_ms, span

    def tell(self, line: str) -> None:
        """Something happens."""
        seconds = time.monotonic() - self._begun_s
        said = f"{int(seconds) // 60:d}:{int(seconds) % 60:02d}  {line}"
        self._lines.append(said)
        if self._live is None:
            print(said, file=sys.stderr, flush=True)
        else:
            self._live.update(self._table(self._state()), refresh=True)

    def look(self) -> None:
        """Show how it stands, where that is due."""
        every_s = _LINE_S if self._live is None else _TERMINAL_S
        if time.monotonic() - self._shown_s < every_s:
            return
        self._shown_s = time.monotonic()
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
        found = {
            "replayed": f"{min(done, 1.0):.0%}",
            "events/s": f"{feed.events_per_s:,.0f}",
            "samples learned": f"{loop.meter('trainer', 'streamlearn_trainer_rows_total', outcome='learned'):,.0f}",
            "unread messages": f"{loop.meter('trainer', 'streamlearn_trainer_behind_records'):,.0f}",
            "versions that nodes serve": ", ".join(map(str, feed.last)),
        }
        age_s = self._age_s(loop, feed)
        if age_s is not None:
            found["age of the newest event learned, s"] = f"{age_s:.1f}"
        if (auc := newest.auc(0)) is not None:
            found["served AUC"] = f"{auc:.4f}"
        if (auc := newest.auc(0, kept=0)) is not None:
            found[f"AUC of version {feed.kept[0]}, kept for comparison"] = f"{auc:.4f}"
        return found

    @staticmethod
    def _age_s(loop: Loop, feed: Feed) -> float | None:
        """How long ago the newest event happened that the version of all nodes had learned."""
        lowest = min(feed.last)
        event_ms = next((one.watermark_ms for one in loop.known() if one.version == lowest), None)
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
            time_said, _, said = line.partition("  ")
            table.add_row(time_said, escape(said))
        return table


@contextmanager
def watched(title: str) -> Iterator[View]:
    """A view, while the context lasts."""
    if not sys.stderr.isatty():
        yield View(None, title)
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), auto_refresh=False) as live:
        yield View(live, title)
