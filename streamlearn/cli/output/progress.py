"""Progress on stderr: a bar in a terminal, or a line from time to time."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec

__all__ = ["LINE_S", "progress_lines", "shown_progress"]

LINE_S = 5.0
"""Time between two progress lines."""
P = ParamSpec("P")


def progress_lines(line: Callable[P, str], now_s: Callable[[], float] = time.monotonic) -> Callable[P, None]:
    """Return a function that prints a line on stderr at most every `LINE_S` seconds, for the first time after these."""
    due_s = now_s() + LINE_S

    def show(*args: P.args, **named: P.kwargs) -> None:
        nonlocal due_s
        if now_s() >= due_s:
            due_s = now_s() + LINE_S
            print(line(*args, **named), file=sys.stderr, flush=True)

    return show


@contextmanager
def shown_progress(name: str, *, is_bytes: bool) -> Iterator[Callable[[int, int], None] | None]:
    """Show a bar, and yield a function of the done and the total amount; yield None if stderr is not a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    amount = DownloadColumn() if is_bytes else MofNCompleteColumn()
    with Progress(TextColumn(name), BarColumn(), amount, TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
