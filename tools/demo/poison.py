"""Poison: a history whose actions are inverted within a period."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from streamlearn.apps import App
from streamlearn.events import take_rows, texts_of
from streamlearn.events.columns import ids_of
from streamlearn.replay import History, HistoryBlock

__all__ = ["Poison", "span_of"]

_SPAN_MS = 3_600_000
_AFTER_MS = 1


class Poison:
    """A history with inverted actions: for items shown in the period, users who acted did not, and all others did.

    Args:
        history: The true history.
        app: The application; its item ids are numbers or texts.
        begin_ms: Begin of the period, event time.
        end_ms: End of the period.
    """

    def __init__(self, history: History, app: App, begin_ms: int, end_ms: int) -> None:
        self._history = history
        self._item, self._begin_ms, self._end_ms = f"items.{app.features.item_id}", begin_ms, end_ms
        self._actions = sorted({label.action for label in app.labels})
        self._did, self._requests = self._read()

    @property
    def events_count(self) -> int | None:
        """Estimated number of events; it does not count the inverted actions."""
        return self._history.events_count

    @property
    def begin_ms(self) -> int:
        """See `History`."""
        return self._history.begin_ms

    def blocks(self, span_ms: int) -> Iterator[HistoryBlock]:
        """See `History`."""
        for block in self._history.blocks(span_ms):
            yield self.turned(block)

    def turned(self, block: HistoryBlock) -> HistoryBlock:
        """Return a block with the actions of the period inverted."""
        actions = block.actions
        if block.actions_rows:
            ids = ids_of(actions, "request_id")
            honest = np.array([at for at, request in enumerate(ids) if request not in self._requests], np.int64)
            actions = take_rows(actions, honest)
        inverted = self._not_done(block)
        if not inverted:
            return block._replace(actions=actions, actions_rows=len(actions["event_time_ms"]) if actions else 0)
        times = [*(actions["event_time_ms"].tolist() if actions else ()), *(action[0] for action in inverted)]
        requests = [*(ids_of(actions, "request_id") if actions else ()), *(action[1] for action in inverted)]
        items = [*(ids_of(actions, "item_id") if actions else ()), *(action[2] for action in inverted)]
        kinds = [*(ids_of(actions, "action") if actions else ()), *(action[3] for action in inverted)]
        columns: dict[str, Any] = {"event_time_ms": np.array(times, np.int64)}
        for name, values in (("request_id", requests), ("item_id", items), ("action", kinds)):
            if isinstance(values[0], str):
                columns[name], columns[f"{name}$"] = texts_of(np.arange(len(values)), values)
            else:
                columns[name] = np.array(values, np.int64)
        return block._replace(actions=columns, actions_rows=len(times))

    def _read(self) -> tuple[set[tuple[str, Any, str]], set[str]]:
        """Return the true actions on items shown in the period, and the period's requests."""
        requests: set[str] = set()
        did: set[tuple[str, Any, str]] = set()
        for block in self._history.blocks(_SPAN_MS):
            if block.impressions_rows:
                ids, times = ids_of(block.impressions, "request_id"), block.impressions["event_time_ms"].tolist()
                requests.update(id_ for id_, at in zip(ids, times, strict=True) if self._begin_ms <= at < self._end_ms)
            if requests and block.actions_rows:
                keys = zip(*(ids_of(block.actions, name) for name in ("request_id", "item_id", "action")), strict=True)
                did.update(key for key in keys if key[0] in requests)
        return did, requests

    def _not_done(self, block: HistoryBlock) -> list[tuple[int, str, Any, str]]:
        """Return the actions that users did not take on items of the period: time, request, item, action."""
        missing: list[tuple[int, str, Any, str]] = []
        if not block.impressions_rows or block.until_ms <= self._begin_ms:
            return missing
        shown = block.impressions
        times, items = shown["event_time_ms"].tolist(), ids_of(shown, self._item)
        at = shown["items[]"].tolist()
        for row, request in enumerate(ids_of(shown, "request_id")):
            if not self._begin_ms <= times[row] < self._end_ms:
                continue
            keys = ((request, item, action) for item in items[at[row] : at[row + 1]] for action in self._actions)
            missing += [(times[row] + _AFTER_MS, *key) for key in keys if key not in self._did]
        return missing


def span_of(history: History) -> tuple[int, int]:
    """Return the event times at which a history begins and at which all of it has arrived."""
    until_ms = history.begin_ms
    for block in history.blocks(_SPAN_MS):
        until_ms = max(until_ms, block.until_ms)
    return history.begin_ms, until_ms
