"""How far the demo is, on stderr: a line that changes in a terminal, a line now and then where there is none."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from streamlearn.cli.replay_progress import LINE_S

__all__ = ["show_counts"]

_TERMINAL_S = 0.5


@contextmanager
def show_counts() -> Iterator[Callable[[Callable[[], Mapping[str, float]]], None]]:
    """Shows counts, asking for them no oftener than they are shown, while the context lasts."""
    if sys.stderr.isatty():
        from rich.console import Console

        with Console(stderr=True).status("the loop begins") as status:
            yield _seldom(_TERMINAL_S, status.update)
    else:
        yield _seldom(LINE_S, lambda line: print(line, file=sys.stderr, flush=True))


def _seldom(every_s: float, show: Callable[[str], None]) -> Callable[[Callable[[], Mapping[str, float]]], None]:
    shown_s = time.monotonic()

    def showing(counts: Callable[[], Mapping[str, float]]) -> None:
        nonlocal shown_s
        if time.monotonic() - shown_s < every_s:
            return
        shown_s = time.monotonic()
        show("  ".join(f"{name} {_text(count)}" for name, count in counts().items()))

    return showing


def _text(count: float) -> str:
    return f"{count:,}" if isinstance(count, int) else f"{count:.4f}"
