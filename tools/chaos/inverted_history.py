"""Inverted history: a history with periods of opposite actions, which are added while it is replayed."""

from __future__ import annotations

from collections.abc import Iterator

from streamlearn.apps import App
from streamlearn.replay import History, HistoryBlock
from tools.demo.poison import Poison

__all__ = ["InvertedHistory"]


class InvertedHistory:
    """The true history, except for the periods given to `invert`.

    Args:
        history: The true history; it must be readable more than once.
        app: The application of its events.
    """

    events_count = None

    def __init__(self, history: History, app: App) -> None:
        self._history, self._app = history, app
        # Late actions of a period come after its end, so each poison stays until the end of the history.
        self._poisons: tuple[Poison, ...] = ()

    @property
    def begin_ms(self) -> int:
        """See `History`."""
        return self._history.begin_ms

    def invert(self, begin_ms: int, end_ms: int) -> None:
        """Invert the actions of a period: one that was not replayed yet and overlaps no other."""
        self._poisons += (Poison(self._history, self._app, begin_ms, end_ms),)

    def blocks(self, span_ms: int) -> Iterator[HistoryBlock]:
        """See `History`."""
        for block in self._history.blocks(span_ms):
            inverted = block
            for poison in self._poisons:
                inverted = poison.turned(inverted)
            yield inverted
