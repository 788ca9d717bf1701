"""Witness: a history that tells somebody what people really did, once what they did it with was shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from streamlearn.events.event import Columns
from streamlearn.replay import History, HistoryBlock

__all__ = ["Witness"]


class Witness:
    """A history as it is.

    Args:
        history: What happened.
        told: Given the actions of each block after whoever asked for the block is done with it.
    """

    def __init__(self, history: History, told: Callable[[Columns], None]) -> None:
        self._history, self._told = history, told

    @property
    def events_count(self) -> int | None:
        """See `History`."""
        return self._history.events_count

    @property
    def begin_ms(self) -> int:
        """See `History`."""
        return self._history.begin_ms

    def blocks(self, span_ms: int) -> Iterator[HistoryBlock]:
        """See `History`."""
        for block in self._history.blocks(span_ms):
            yield block
            if block.actions_rows:
                self._told(block.actions)
