"""The progress of training on stderr: live lines in a terminal, or a line from time to time."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from streamlearn.cli.output.progress import LINE_S

if TYPE_CHECKING:
    from streamlearn.trainer import Trainer

__all__ = ["show_training"]

_TERMINAL_S = 0.5
_BAR_CHARS = 20


@contextmanager
def show_training() -> Iterator[Callable[[Trainer], None]]:
    """Yield a function that shows the state of a trainer, at most once per interval."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.live import Live

        with Live(console=Console(stderr=True), auto_refresh=False) as live:
            yield _limited(_TERMINAL_S, lambda lines: live.update("\n".join(lines), refresh=True), bars=True)
    else:
        yield _limited(LINE_S, lambda lines: print(lines[0], file=sys.stderr, flush=True), bars=False)


def _stage_shares(before: Mapping[str, float], after: Mapping[str, float], seconds: float) -> dict[str, float]:
    """Return the share of an interval in which each stage was busy.

    Examples:
        >>> _stage_shares({"pull": 1.0}, {"pull": 2.0, "push": 0.5}, 2.0)
        {'pull': 0.5, 'push': 0.25}
    """
    return {name: min(1.0, max(0.0, (busy - before.get(name, 0.0)) / seconds)) for name, busy in after.items()}


def _limited(every_s: float, show: Callable[[list[str]], None], *, bars: bool) -> Callable[[Any], None]:
    begun_s = shown_s = time.monotonic()
    rows, busy = 0, dict[str, float]()

    def show_if_due(trainer: Trainer) -> None:
        nonlocal shown_s, rows, busy
        now_s = time.monotonic()
        if now_s - shown_s < every_s:
            return
        tally, seconds = trainer.tally, now_s - shown_s
        lines = [_line(trainer, (tally.rows - rows) / seconds, now_s - begun_s)]
        if bars:
            shares = _stage_shares(busy, tally.seconds, seconds)
            lines += [
                f"  {name:8}{'█' * round(share * _BAR_CHARS):{_BAR_CHARS}} {share:4.0%}"
                for name, share in shares.items()
            ]
        shown_s, rows, busy = now_s, tally.rows, dict(tally.seconds)
        show(lines)

    return show_if_due


def _line(trainer: Trainer, rows_per_s: float, seconds: float) -> str:
    committed = trainer.publisher.committed
    summary = trainer.summary
    auc = f"  AUC {summary['auc']:.4f}" if "auc" in summary else ""
    version = "none" if committed is None else str(committed.version)
    return (
        f"{seconds:6.0f} s  {trainer.tally.rows:,} samples  {rows_per_s:,.0f}/s  {trainer.lag:,} messages behind"
        f"{auc}  version {version}"
    )
