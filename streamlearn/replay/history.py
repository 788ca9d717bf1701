"""A history: an application's past events as blocks of columns, ready to be fed to its topics.

Applications offer one by a module history.py in their folder. It knows no topic and no clock.
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
    """What arrives in one stretch of event time, in the order it arrives.

    Attributes:
        impressions: Columns of impressions, as `EventEncoder.impressions` takes them. `shown_wall_ms` may be
            left out: it is then the wall time of the replay.
        impressions_rows: How many impressions.
        actions: Columns of actions, as `EventEncoder.actions` takes them.
        actions_rows: How many actions.
        watermark_ms: No later block holds an event before this event time, but for those that are late on
            purpose.
        until_ms: The event time at which the whole block has arrived; later blocks arrive at or after it.
    """

    impressions: Columns
    impressions_rows: int
    actions: Columns
    actions_rows: int
    watermark_ms: int
    until_ms: int


@runtime_checkable
class History(Protocol):
    """Where past events come from.

    Guaranteed: the same events in the same order every time, however they are cut into blocks. Not
    guaranteed: that a block has any events, or that events are in the order of their event times.
    The classic mistake is to leave out stretches without events: time then stands still for whoever waits.

    Attributes:
        events_count: About how many events there are, for progress; None: not known.
        begin_ms: The event time from which on there may be events.
    """

    @property
    def events_count(self) -> int | None:
        """About how many events there are, for progress; None: not known."""
        ...

    @property
    def begin_ms(self) -> int:
        """The event time from which on there may be events."""
        ...

    def blocks(self, span_ms: int) -> Iterator[HistoryBlock]:
        """All of it, cut into blocks.

        Args:
            span_ms: The event time a block spans at most.
        """
        ...


def load_history(folder: Path | str, options: Mapping[str, str] | None = None) -> History:
    """The history an application offers: what `history(options)` in its history.py answers.

    Args:
        folder: The application's folder.
        options: Texts by name, as `--option NAME=VALUE` gives them; the application says which.

    Raises:
        ConfigError: The application offers no history, or an option is unknown or wrong.
        SpecError: history.py fails, or what it answers is no history.
    """
    module = app_module(folder, "history")
    offer = getattr(module, "history", None)
    if not callable(offer):
        message = f"{Path(folder) / 'history.py'} has no function history(options)"
        raise SpecError(message, help="define it; streamlearn.replay.History describes what it returns")
    found = offer(dict(options or {}))
    if not isinstance(found, History):
        message = f"{Path(folder) / 'history.py'}: history(options) returned {type(found).__name__}"
        raise SpecError(message, help="streamlearn.replay.History describes what it returns")
    return found
