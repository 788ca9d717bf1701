"""Progress of one long piece of work on a terminal; silent without a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["shown_progress"]


@contextmanager
def shown_progress(said: str, *, is_bytes: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on stderr.

    Args:
        said: The name of the work.
        is_bytes: Whether bytes are counted.

    Yields:
        A function of the done and the total amount; None if stderr is not a terminal.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    counted = DownloadColumn() if is_bytes else MofNCompleteColumn()
    bar = Progress(TextColumn(said), BarColumn(), counted, TimeRemainingColumn(), console=Console(stderr=True))
    with bar:
        task = bar.add_task(said, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
