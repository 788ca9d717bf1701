"""How far a replay is, on stderr: a bar in a terminal, a line now and then where there is none."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from streamlearn.cli.output.units import time_text

if TYPE_CHECKING:
    from streamlearn.replay.replayer import ReplayProgress

__all__ = ["LINE_S", "line_progress", "show_progress"]

LINE_S = 5.0


@contextmanager
def show_progress(events: int | None) -> Iterator[Callable[[ReplayProgress], None]]:
    """Shows the progress that it receives while the context lasts.

    Args:
        events: How many there will be, if that is known.
    """
    if not sys.stderr.isatty():
        yield line_progress(sys.stderr, events)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        BarColumn(),
        TextColumn("{task.completed:,.0f} events"),
        TextColumn("{task.fields[reached]}"),
        TextColumn("{task.fields[rate]:,.0f} events/s"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("replay", total=events, reached="", rate=0.0)

        def show(progress: ReplayProgress) -> None:
            reached = time_text(progress.event_time_ms)
            bar.update(task, completed=progress.events, reached=reached, rate=progress.events_per_s)

        yield show


def line_progress(
    out: TextIO, events: int | None, now_s: Callable[[], float] = time.monotonic
) -> Callable[[ReplayProgress], None]:
    """Writes a line when told, but not sooner than `LINE_S` after the one before.

    Args:
        out: Where to.
        events: How many there will be, if that is known.
        now_s: The time, in seconds.
    """
    due_s = now_s() + LINE_S
    of_all = "" if events is None else f" of {events:,}"

    def show(progress: ReplayProgress) -> None:
        nonlocal due_s
        if now_s() < due_s:
            return
        due_s = now_s() + LINE_S
        rate = f"{progress.events_per_s:,.0f} events/s"
        print(f"{time_text(progress.event_time_ms)}  {progress.events:,}{of_all} events  {rate}", file=out, flush=True)

    return show
