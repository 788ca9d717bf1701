"""Progress on stderr: a bar in a terminal, or a line from time to time."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["LINE_S", "once_every", "shown_progress"]

LINE_S = 5.0
"""Time between two progress lines."""


def once_every(interval_s: float, now_s: Callable[[], float] = time.monotonic) -> Callable[[], bool]:
    """Return a function that is true at most once per interval, for the first time after one interval."""
    due_s = now_s() + interval_s

    def is_due() -> bool:
        nonlocal due_s
        if now_s() < due_s:
            return False
        due_s = now_s() + interval_s
        return True

    return is_due


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
