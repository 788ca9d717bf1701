"""A history: an application's past events as blocks of columns, ready for its topics.

Applications offer one in a module history.py in their folder. It does not know topics or clocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from streamlearn.apps import app_module
from streamlearn.errors import SpecError
from streamlearn.events.event import Columns

__all__ = ["History", "HistoryBlock", "load_history"]


class HistoryBlock(NamedTuple):
    """The events that arrive in one stretch of event time, in the order of arrival.

    The columns are as `EventEncoder` takes them; impressions without `shown_wall_ms` get the wall time of the replay.
    """

    impressions: Columns
    impressions_rows: int
    actions: Columns
    actions_rows: int
    watermark_ms: int  # later blocks have no event before this event time, except those that are late on purpose
    until_ms: int  # the event time at which the whole block has arrived; later blocks arrive at or after it


@runtime_checkable
class History(Protocol):
    """A source of past events.

    Guaranteed: the same events in the same order every time, however they are cut into blocks. Not
    guaranteed: that a block has any events, or that events are in the order of their event times.
    The classic mistake is to leave out stretches without events: the watermark then stands still.
    """

    @property
    def events_count(self) -> int | None:
        """The approximate number of events, for progress; None if unknown."""
        ...

    @property
    def begin_ms(self) -> int:
        """The event time at which events may begin."""
        ...

    def blocks(self, span_ms: int) -> Iterator[HistoryBlock]:
        """Yield the whole history in blocks that span at most `span_ms` of event time."""
        ...


def load_history(folder: Path | str, options: Mapping[str, str] | None = None) -> History:
    """Return what `history(options)` in an application's history.py returns.

    `options` are texts by name, as from `--option NAME=VALUE`; the application defines them.

    Raises:
        ConfigError: The application has no history.py, or an option is unknown or invalid.
        SpecError: history.py fails, or does not return a history.
    """
    file, module = Path(folder) / "history.py", app_module(folder, "history")
    function = getattr(module, "history", None)
    if not callable(function):
        message = f"{file} has no function history(options)"
        raise SpecError(message, help="define it; streamlearn.replay.History describes what it returns")
    history = function(dict(options or {}))
    if not isinstance(history, History):
        message = f"{file}: history(options) returned {type(history).__name__}"
        raise SpecError(message, help="streamlearn.replay.History describes what it returns")
    return history
