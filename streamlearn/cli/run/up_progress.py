"""The state of all processes of an application: a live table on stderr in a terminal, otherwise nothing but logs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from streamlearn.cli.output.units import age_text

if TYPE_CHECKING:
    from rich.table import Table

    from streamlearn.supervision import Seen

__all__ = ["members_table", "show_members"]

_SHOW_S = 0.5
_STYLES = {
    "running": "green",
    "starting": "yellow",
    "waiting": "red",
    "stopping": "yellow",
    "left": "red",
    "given_up": "red",
}


@contextmanager
def show_members() -> Iterator[Callable[[Sequence[Seen]], None]]:
    """Yield a function that shows the processes, at most twice a second; log lines go above the table."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.live import Live

    shown_s = 0.0
    # A stdout that is not a terminal has a reader of its own.
    with Live(console=Console(stderr=True), auto_refresh=False, redirect_stdout=sys.stdout.isatty()) as live:

        def show(seen: Sequence[Seen]) -> None:
            nonlocal shown_s
            if time.monotonic() - shown_s >= _SHOW_S:
                shown_s = time.monotonic()
                with suppress(OSError):  # the terminal was closed; the processes still stop in order
                    live.update(members_table(seen), refresh=True)

        yield show


def members_table(seen: Sequence[Seen]) -> Table:
    """Return one row for each process."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    # In a narrow terminal, addresses and messages are cut.
    for head, width in (("process", 9), ("", 8), ("pid", 7), ("for", 6), ("restarts", 8), ("at", None), ("says", None)):
        table.add_column(head, no_wrap=True, overflow="ellipsis", min_width=width)
    for process in seen:
        state, member = str(process.standing.state), process.standing.member
        style = _STYLES.get(state, "default")
        addresses = " ".join(f"{kind} {address}" for kind, address in member.where.items() if kind != "metrics")
        table.add_row(
            member.name, f"[{style}]{state}[/]", str(process.pid or ""), age_text(round(process.age_s * 1000)),
            str(process.standing.restarts or ""), addresses, escape(process.said),
        )  # fmt: skip
    return table
