"""Turning: a history of which stretches can be told the wrong way round while it is replayed."""

from __future__ import annotations

from collections.abc import Iterator

from streamlearn.apps import App
from streamlearn.replay import History, HistoryBlock
from tools.demo.poison import Poison

__all__ = ["Turning"]


class Turning:
    """A history as it is, until it is turned.

    Args:
        history: What really happened; it can be read again.
        app: Whose events these are.
    """

    events_count = None

    def __init__(self, history: History, app: App) -> None:
        self._history, self._app = history, app
        # What was done late comes after the stretch it belongs to: each stays until the end.
        self._poisons: tuple[Poison, ...] = ()

    @property
    def begin_ms(self) -> int:
        """See `History`."""
        return self._history.begin_ms

    def turn(self, begin_ms: int, end_ms: int) -> None:
        """Tell a stretch the wrong way round: one of which nothing was told yet, and apart from all others."""
        self._poisons += (Poison(self._history, self._app, begin_ms, end_ms),)

    def blocks(self, span_ms: int) -> Iterator[HistoryBlock]:
        """See `History`."""
        for block in self._history.blocks(span_ms):
            told = block
            for poison in self._poisons:
                told = poison.turned(told)
            yield told
