"""Witness: a history that passes on its actions after their block was replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from streamlearn.events.event import Columns
from streamlearn.replay import History, HistoryBlock

__all__ = ["Witness"]


class Witness:
    """An unchanged history that reports the users' actions.

    Args:
        history: The history.
        on_actions: Receives the actions of each block, after the reader has processed the block.
    """

    def __init__(self, history: History, on_actions: Callable[[Columns], None]) -> None:
        self._history, self._on_actions = history, on_actions

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
                self._on_actions(block.actions)
