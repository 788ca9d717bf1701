"""How all processes of an application stand: a table on stderr in a terminal; elsewhere what is logged says it."""

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
_STYLES = {"running": "green", "starting": "yellow", "waiting": "red", "stopping": "yellow", "left": "red"}


@contextmanager
def show_members() -> Iterator[Callable[[Sequence[Seen]], None]]:
    """Shows the progress that it receives while the context lasts, at the pace of readers; logs go above it."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.live import Live

    shown_s = 0.0
    # Where stdout is no terminal somebody reads it.
    with Live(console=Console(stderr=True), auto_refresh=False, redirect_stdout=sys.stdout.isatty()) as live:

        def show(seen: Sequence[Seen]) -> None:
            nonlocal shown_s
            if time.monotonic() - shown_s >= _SHOW_S:
                shown_s = time.monotonic()
                # A terminal that was closed shows nothing; what runs is to be stopped in order all the same.
                with suppress(OSError):
                    live.update(members_table(seen), refresh=True)

        yield show


def members_table(seen: Sequence[Seen]) -> Table:
    """The table."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    # Where there is little room, addresses and words are cut.
    for head, width in (("process", 9), ("", 8), ("pid", 7), ("for", 6), ("restarts", 8), ("at", None), ("says", None)):
        table.add_column(head, no_wrap=True, overflow="ellipsis", min_width=width)
    for one in seen:
        state, member = str(one.standing.state), one.standing.member
        style = _STYLES.get(state, "default")
        where = " ".join(f"{what} {address}" for what, address in member.where.items() if what != "metrics")
        table.add_row(
            member.name, f"[{style}]{state}[/]", str(one.pid or ""), age_text(round(one.age_s * 1000)),
            str(one.standing.restarts or ""), where, escape(one.said),
        )  # fmt: skip
    return table
