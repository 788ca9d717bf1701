"""The progress of a replay on stderr: a bar in a terminal, or a line from time to time."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from streamlearn.cli.output.progress import progress_lines
from streamlearn.times import time_text

if TYPE_CHECKING:
    from streamlearn.replay.replayer import ReplayProgress

__all__ = ["line_progress", "show_progress"]


@contextmanager
def show_progress(events: int | None) -> Iterator[Callable[[ReplayProgress], None]]:
    """Yield a function that shows progress; `events` is the expected number, if known."""
    if not sys.stderr.isatty():
        yield line_progress(events)
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


def line_progress(events: int | None, now_s: Callable[[], float] = time.monotonic) -> Callable[[ReplayProgress], None]:
    """Return a function that prints a line from time to time; see `show_progress` for `events`."""
    of_all = "" if events is None else f" of {events:,}"

    def line(progress: ReplayProgress) -> str:
        reached, rate = time_text(progress.event_time_ms), f"{progress.events_per_s:,.0f} events/s"
        return f"{reached}  {progress.events:,}{of_all} events  {rate}"

    return progress_lines(line, now_s)
