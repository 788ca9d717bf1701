"""ComputedHistory: a history whose impressions have their computed columns, from the history itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.apps import App
from streamlearn.events.columns import ids_of
from streamlearn.events.event import Columns
from streamlearn.features import keys_of
from streamlearn.features.behaviour import IMPRESSION
from streamlearn.interactions import InteractionBatch
from streamlearn.interactions.evaluation import evaluated
from streamlearn.native import native
from streamlearn.replay.history import History, HistoryBlock

__all__ = ["LAG_MS", "ComputedHistory", "computed_history"]

LAG_MS = 1_000
"""The time from an action to the value that nodes serve."""
_REPEATS_MAX = 1 << 24
_SALT = native.slot_salt("streamlearn.history")
Int64s = npt.NDArray[np.int64]


class ComputedHistory:
    """A history with the computed columns that its impressions lack.

    Each has the values that a node would have served: those of interactions that had arrived `LAG_MS` before. They
    come from the history and not from a store of states, because a replay runs much faster than events are joined and
    folded: one second of that would be an hour of the history. With a lag below zero, columns are those of later: a
    leak, to show what it would claim.
    """

    def __init__(self, history: History, app: App, lag_ms: int = LAG_MS) -> None:
        self._history, self._app, self._lag_ms = history, app, lag_ms
        self.events_count, self.begin_ms = history.events_count, history.begin_ms
        self._kinds = (*app.actions, IMPRESSION)
        sources = dict.fromkeys(source for entity in app.features.entities for source in entity.sources)
        named = {slot.first_name: slot for slot in app.features.slots}
        self._sources = {source: named[source] for source in sources}
        self._window_ms = 1_000 * max(group.window_s for group in app.groups)

    def blocks(self, span_ms: int) -> Iterator[HistoryBlock]:
        """Yield the history's blocks with the computed columns added."""
        entities = self._app.features.entities
        states = [native.MemoryStates(entity.definition) for entity in entities]
        repeats, begin_ms = native.Repeats(_REPEATS_MAX), self.begin_ms
        # Items that were shown within the window, and interactions that nodes do not know of yet.
        shown = waiting = nothing = InteractionBatch.empty(self._kinds, list(self._sources))
        seen_ms = np.zeros(0, np.int64)
        for block in self._history.blocks(span_ms):
            columns: dict[str, Any] = dict(block.impressions)
            new = self._shown(columns) if block.impressions_rows else nothing
            recent = np.flatnonzero(shown.event_time_ms >= begin_ms - self._window_ms)
            shown = InteractionBatch.concatenated([shown.take(recent), new])
            done = self._done(block.actions, shown) if block.actions_rows else nothing
            made = InteractionBatch.concatenated([new, done])
            made = replace(made, identity=_mixed(made.identity, made.kind.astype(np.uint64)))
            made = made.take(np.flatnonzero(repeats.note(made.identity)))
            # One that arrives late is known from then on.
            made_ms = np.maximum(made.event_time_ms + max(0, self._lag_ms), begin_ms)
            waiting, seen_ms = InteractionBatch.concatenated([waiting, made]), np.append(seen_ms, made_ms)
            due, later = np.flatnonzero(seen_ms < block.until_ms), np.flatnonzero(seen_ms >= block.until_ms)
            for entity, of_entity in zip(entities, states, strict=True):
                prefix = "user" if entity.side == "user" else "items"
                keys, at_ms = self._asked(columns, entity.side)
                at_ms = at_ms - min(0, self._lag_ms)
                found = evaluated(
                    entity,
                    of_entity,
                    ([waiting.take(due)], seen_ms[due]),
                    (keys, at_ms, at_ms),
                )
                for column, (values, begins) in zip(entity.columns, found, strict=True):
                    path = f"{prefix}.{column.name}"
                    if len(keys) and path not in block.impressions:
                        columns |= {path: values} | ({} if begins is None else {f"{path}[]": begins})
            yield block._replace(impressions=columns)
            waiting, seen_ms, begin_ms = waiting.take(later), seen_ms[later], block.until_ms

    def _shown(self, columns: Columns) -> InteractionBatch:
        """Return the items of impressions as interactions; their identities are those of request and item."""
        request = _requests(columns)
        values = np.zeros((len(request), len(self._sources)), np.int64)
        for place, slot in enumerate(self._sources.values()):
            is_user = slot.side == "user"
            column = columns[f"{'user' if is_user else 'items'}.{slot.name}"]
            values[:, place] = column[request] if is_user else column
        users, _ = self._asked(columns, "user")
        items, _ = self._asked(columns, "item")
        ones = np.ones(len(request), np.float32)
        return replace(
            InteractionBatch.empty(self._kinds, list(self._sources)),
            identity=_mixed(_hashed(columns)[request], items),
            user=users[request],
            item=items,
            kind=np.full(len(request), len(self._kinds) - 1, np.uint8),
            event_time_ms=columns["event_time_ms"][request],
            weight=ones,
            number=ones * np.nan,
            values=values,
        )

    def _done(self, actions: Columns, shown: InteractionBatch) -> InteractionBatch:
        """Return the actions on items that were shown within the window."""
        spec, known = self._app.features, {name: number for number, name in enumerate(self._kinds)}
        kinds = np.array([known.get(name, -1) for name in ids_of(actions, "action")])
        items = keys_of(spec.slot(spec.item_id), ids_of(actions, "item_id"))
        wanted, order = _mixed(_hashed(actions), items), np.argsort(shown.identity, kind="stable")
        places = np.append(order, 0)[np.searchsorted(shown.identity[order], wanted)]
        rows = np.flatnonzero((kinds >= 0) & (np.append(shown.identity, 0)[places] == wanted) & (len(shown) > 0))
        made, time_ms = shown.take(places[rows]), actions["event_time_ms"][rows]
        kind, number, identity = kinds[rows].astype(np.uint8), made.number, made.identity
        if "value" in actions:
            number = np.where(actions["value?"][rows] == 1, actions["value"][rows], np.float32(np.nan))
            # Each action with a number counts, and others once.
            is_number = np.isin(kind, [known[name] for name in self._app.number_actions])
            identity = np.where(is_number, _mixed(identity, time_ms.astype(np.uint64)), identity)
        in_window = np.flatnonzero(time_ms <= made.event_time_ms + self._window_ms)
        made = replace(made, identity=identity, kind=kind, number=number, event_time_ms=time_ms)
        return made.take(in_window)

    def _asked(self, columns: Columns, side: str) -> tuple[npt.NDArray[np.uint64], Int64s]:
        """Return the users or the items of impressions, and the time of each; 0 if no slot is known to name users."""
        if "event_time_ms" not in columns:
            return np.zeros(0, np.uint64), np.zeros(0, np.int64)
        spec, times = self._app.features, columns["event_time_ms"]
        if side == "item":
            return keys_of(spec.slot(spec.item_id), ids_of(columns, f"items.{spec.item_id}")), times[_requests(columns)]
        if not spec.user_slot:
            return np.zeros(len(times), np.uint64), times
        return keys_of(spec.slot(spec.user_slot), ids_of(columns, f"user.{spec.user_slot}")), times


def computed_history(history: History, app: App, *, lag_ms: int | None = None) -> History:
    """Return a history with the computed columns of an application, or as it is if there are none.

    `lag_ms` is the time from an action to the value that is served; by default `LAG_MS`.
    """
    if not app.features.entities:
        return history
    return ComputedHistory(history, app, LAG_MS if lag_ms is None else lag_ms)


def _requests(columns: Columns) -> Int64s:
    """Return the impression of each item."""
    counts = np.diff(columns["items[]"]).astype(np.int64)
    return np.repeat(np.arange(len(counts)), counts)


def _hashed(columns: Columns) -> npt.NDArray[np.uint64]:
    """Return a hash of each request id."""
    return native.hash_strings(columns["request_id$"], columns["request_id"], _SALT)


def _mixed(left: npt.NDArray[np.uint64], right: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return a hash of each pair."""
    with np.errstate(over="ignore"):
        mixed = (left ^ (right * np.uint64(0x9E3779B97F4A7C15))) * np.uint64(0xD6E8FEB86659FD93)
    return mixed ^ (mixed >> np.uint64(32))
