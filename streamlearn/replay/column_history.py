"""ColumnHistory: a history that is held in memory, and the options of a history that are numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from streamlearn.errors import ConfigError
from streamlearn.events import rows_of, take_rows
from streamlearn.events.event import Columns
from streamlearn.replay.history import HistoryBlock

__all__ = ["ColumnHistory", "number_options"]

_WHOLE_MAX = 10_000_000


class ColumnHistory:
    """Impressions and actions as columns in any order; each event arrives when it happens.

    Raises:
        ConfigError: There are no impressions.
    """

    def __init__(self, impressions: Columns, actions: Columns) -> None:
        if not len(impressions["event_time_ms"]):
            message = "the history has no impressions"
            raise ConfigError(message, help="see what history.py reads")
        self._columns = [_in_order(impressions), _in_order(actions)]
        self._times = [columns["event_time_ms"] for columns in self._columns]

    @property
    def events_count(self) -> int:
        """The number of events."""
        return sum(map(len, self._times))

    @property
    def begin_ms(self) -> int:
        """The time of the first event."""
        return int(min(times[0] for times in self._times if len(times)))

    def blocks(self, span_ms: int) -> Iterator[HistoryBlock]:
        """Yield all events in blocks of `span_ms`."""
        end_ms = int(max(times[-1] for times in self._times if len(times))) + 1
        for begin_ms in range(self.begin_ms, end_ms, span_ms):
            until_ms = min(begin_ms + span_ms, end_ms)
            impressions, actions = map(partial(_between, begin_ms, until_ms), self._columns)
            yield HistoryBlock(*impressions, *actions, until_ms, until_ms)


def number_options(options: Mapping[str, str], defaults: Mapping[str, float]) -> dict[str, Any]:
    """Return options of a history that are numbers, each a whole number from 1 or a share as its default is.

    Raises:
        ConfigError: An option is unknown, or not such a number.

    Examples:
        >>> number_options({"requests": "500"}, {"requests": 40_000, "delayed": 0.0})
        {'requests': 500, 'delayed': 0.0}
    """
    found: dict[str, Any] = dict(defaults)
    for name, text in options.items():
        try:
            number = type(defaults[name])(text)
        except (KeyError, ValueError):
            number = -1
        if not (1 <= number <= _WHOLE_MAX if isinstance(number, int) else 0 <= number <= 1):
            message = f"option {name[:50]}={text[:50]}"
            known = ", ".join(f"{known} (default {default})" for known, default in defaults.items())
            kinds = f"from 1 to {_WHOLE_MAX:,} where the default is a whole number, else from 0 to 1"
            raise ConfigError(message, help=f"the options are {known}: {kinds}")
        found[name] = number
    return found


def _between(begin_ms: int, end_ms: int, columns: Columns) -> tuple[Columns, int]:
    """Return the rows of a time, and how many they are."""
    begin, end = np.searchsorted(columns["event_time_ms"], [begin_ms, end_ms]).tolist()
    return rows_of(columns, begin, end) if end > begin else {}, end - begin


def _in_order(columns: Columns) -> Columns:
    """Return the columns by event time."""
    times = columns["event_time_ms"]
    in_order = (times[1:] >= times[:-1]).all()
    return columns if in_order else take_rows(columns, np.argsort(times, kind="stable"))
