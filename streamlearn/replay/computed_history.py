"""ComputedHistory: a history whose impressions have their computed columns, from the history itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.apps import App
from streamlearn.events.columns import ids_of
from streamlearn.events.event import Columns
from streamlearn.features import Dense, Entity, Slot, keys_of
from streamlearn.features.behaviour import IMPRESSION
from streamlearn.features.column_values import column_arrays
from streamlearn.native import native
from streamlearn.replay.history import History, HistoryBlock

__all__ = ["LAG_MS", "ComputedHistory", "computed_history"]

LAG_MS = 1_000
"""The time from an action to the value that nodes serve."""
_EVALUATION = 255
_REPEATS_MAX = 1 << 24
_SALT = native.slot_salt("streamlearn.history")


@dataclass(frozen=True, eq=False)
class _Behaviour:
    """Interactions; each array has a value for each, `values` one for each source."""

    seen_ms: npt.NDArray[np.int64]  # from when nodes know of it
    time_ms: npt.NDArray[np.int64]
    identity: npt.NDArray[np.uint64]
    user: npt.NDArray[np.uint64]
    item: npt.NDArray[np.uint64]
    kind: npt.NDArray[np.uint8]  # among all kinds
    number: npt.NDArray[np.float32]
    values: npt.NDArray[np.int64]

    def take(self, rows: Any) -> _Behaviour:
        return _Behaviour(**{name: column[rows] for name, column in vars(self).items()})

    @classmethod
    def join(cls, parts: Sequence[_Behaviour]) -> _Behaviour:
        names = cls.__dataclass_fields__
        return cls(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


class ComputedHistory:
    """A history with the computed columns that its impressions lack.

    Each has the values that a node would have served: those of interactions that had arrived `LAG_MS` before. They
    come from the history and not from a store of states, because a replay runs much faster than events are joined and
    folded: one second of that would be an hour of the history. With a lag below zero, columns are those of later: a
    leak, to show what it would claim.
    """

    def __init__(self, history: History, app: App, lag_ms: int = LAG_MS) -> None:
        self.lag_ms = lag_ms
        self._history, self._app, spec = history, app, app.features
        self._entities = spec.entities
        self._kinds = list(dict.fromkeys(kind for entity in self._entities for kind in entity.kinds))
        self._sources = list(dict.fromkeys(source for entity in self._entities for source in entity.sources))
        self._slots = {slot.first_name: slot for slot in spec.slots}
        self._window_ms = 1_000 * max(group.window_s for group in app.groups)

    @property
    def events_count(self) -> int | None:
        """As the history's."""
        return self._history.events_count

    @property
    def begin_ms(self) -> int:
        """As the history's."""
        return self._history.begin_ms

    def blocks(self, span_ms: int) -> Iterator[HistoryBlock]:
        """Yield the history's blocks with the computed columns added."""
        run = _Run(self)
        for block in self._history.blocks(span_ms):
            yield block._replace(impressions=run.filled(block))

    def shown_of(self, columns: Columns, begin_ms: int) -> tuple[_Behaviour, npt.NDArray[np.int64]]:
        """Return the items of impressions as interactions of the kind `impression`, and the request of each."""
        spec, counts = self._app.features, np.diff(columns["items[]"]).astype(np.int64)
        request = np.repeat(np.arange(len(counts)), counts)
        time_ms = columns["event_time_ms"][request]
        user = np.zeros(len(counts), np.uint64)
        if spec.user_slot:
            user = keys_of(spec.slot(spec.user_slot), ids_of(columns, f"user.{spec.user_slot}"))
        values = np.zeros((len(request), len(self._sources)), np.int64)
        for place, source in enumerate(self._sources):
            slot = self._slots[source]
            column = columns[f"{'user' if slot.side == 'user' else 'items'}.{slot.name}"]
            values[:, place] = column[request] if slot.side == "user" else column
        hashed = native.hash_strings(columns["request_id$"], columns["request_id"], _SALT)
        item = keys_of(spec.slot(spec.item_id), ids_of(columns, f"items.{spec.item_id}"))
        kind = self._kinds.index(IMPRESSION) if IMPRESSION in self._kinds else _EVALUATION
        return _Behaviour(
            seen_ms=np.maximum(time_ms + max(0, self.lag_ms), begin_ms),
            time_ms=time_ms,
            identity=_mixed(hashed[request], item),
            user=user[request],
            item=item,
            kind=np.full(len(request), kind, np.uint8),
            number=np.full(len(request), np.nan, np.float32),
            values=values,
        ), request

    @property
    def app(self) -> App:
        """The application."""
        return self._app


class _Run:
    """One pass through the history."""

    def __init__(self, history: ComputedHistory) -> None:
        self._of, self._entities = history, history._entities
        self._kinds, self._window_ms = history._kinds, history._window_ms
        self._states = [native.MemoryStates(entity.definition) for entity in self._entities]
        self._repeats = native.Repeats(_REPEATS_MAX)
        # The items that were shown within the window: parts, and the place of each by request and item.
        self._parts: deque[tuple[int, int, _Behaviour]] = deque()
        self._place_of: dict[int, int] = {}
        self._shown = 0
        self._waiting: list[_Behaviour] = []
        self._begin_ms = history.begin_ms

    def filled(self, block: HistoryBlock) -> Columns:
        """Return the impressions of the next block with their computed columns."""
        begin_ms, self._begin_ms = self._begin_ms, block.until_ms
        columns, request = dict(block.impressions), np.zeros(0, np.int64)
        if block.impressions_rows:
            shown, request = self._of.shown_of(columns, begin_ms)
            self._remember(shown)
            if IMPRESSION in self._kinds:
                self._add(shown)
        if block.actions_rows:
            self._add(self._done(block.actions, begin_ms))
        self._forget(begin_ms - self._window_ms)
        interactions = self._due(block.until_ms)
        for entity, states in zip(self._entities, self._states, strict=True):
            self._evaluate(entity, states, interactions, (columns, request))
        return columns

    def _remember(self, shown: _Behaviour) -> None:
        self._place_of.update(
            zip(shown.identity.tolist(), range(self._shown, self._shown + len(shown.item)), strict=True)
        )
        self._parts.append((int(shown.time_ms.max()), self._shown, shown))
        self._shown += len(shown.item)

    def _forget(self, before_ms: int) -> None:
        while self._parts and self._parts[0][0] < before_ms:
            _, first, shown = self._parts.popleft()
            for place, identity in enumerate(shown.identity.tolist(), first):
                if self._place_of.get(identity) == place:
                    del self._place_of[identity]

    def _add(self, made: _Behaviour) -> None:
        identity = _mixed(made.identity, made.kind.astype(np.uint64))
        rows = np.flatnonzero(self._repeats.note(identity))
        self._waiting.append(replace(made, identity=identity).take(rows))

    def _done(self, actions: Columns, begin_ms: int) -> _Behaviour:
        """Return the actions of kinds that count, on items that were shown within the window."""
        app = self._of.app
        kinds = np.array([self._kinds.index(kind) if kind in self._kinds else -1 for kind in ids_of(actions, "action")])
        hashed = native.hash_strings(actions["request_id$"], actions["request_id"], _SALT)
        item = keys_of(app.features.slot(app.features.item_id), ids_of(actions, "item_id"))
        places = np.array([self._place_of.get(one, -1) for one in _mixed(hashed, item).tolist()], np.int64)
        rows = np.flatnonzero((kinds >= 0) & (places >= 0))
        shown = self._shown_at(places[rows])
        time_ms = actions["event_time_ms"][rows]
        in_window = np.flatnonzero(time_ms <= shown.time_ms + self._window_ms)
        rows, shown, time_ms = rows[in_window], shown.take(in_window), time_ms[in_window]
        kind, number = kinds[rows].astype(np.uint8), shown.number
        identity = shown.identity
        if "value" in actions:
            number = np.where(actions["value?"][rows] == 1, actions["value"][rows], np.float32(np.nan))
            # Each action with a number counts, and others once.
            is_number = np.isin(kind, [self._kinds.index(one) for one in app.number_actions if one in self._kinds])
            identity = np.where(is_number, _mixed(identity, time_ms.astype(np.uint64)), identity)
        seen_ms = np.maximum(time_ms + max(0, self._of.lag_ms), begin_ms)
        return replace(shown, seen_ms=seen_ms, time_ms=time_ms, kind=kind, number=number, identity=identity)

    def _shown_at(self, places: npt.NDArray[np.int64]) -> _Behaviour:
        """Return what was shown at some places."""
        firsts = np.array([first for _, first, _ in self._parts], np.int64)
        part_of = np.searchsorted(firsts, places, side="right") - 1
        order = np.argsort(part_of, kind="stable")
        empty = next(iter(self._parts))[2].take(slice(0, 0)) if self._parts else _nothing(len(self._of._sources))
        of_parts = np.unique(part_of).tolist()
        taken = [empty, *(self._parts[at][2].take(places[part_of == at] - firsts[at]) for at in of_parts)]
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return _Behaviour.join(taken).take(back)

    def _due(self, until_ms: int) -> _Behaviour:
        """Return the interactions that nodes know of before a time."""
        if not self._waiting:
            return _nothing(len(self._of._sources))
        waiting = _Behaviour.join(self._waiting)
        is_due = waiting.seen_ms < until_ms
        self._waiting = [waiting.take(~is_due)]
        return waiting.take(is_due)

    def _evaluate(self, entity: Entity, states: Any, behaviour: _Behaviour, shown: tuple[dict[str, Any], Any]) -> None:
        """Fold interactions and add the entity's columns, in the order of time."""
        columns, request = shown
        is_user = entity.side == "user"
        kinds = np.array([entity.kinds.index(kind) if kind in entity.kinds else -1 for kind in self._kinds])
        rows = np.flatnonzero((kinds[behaviour.kind] >= 0) & ((behaviour.user if is_user else behaviour.item) != 0))
        behaviour = behaviour.take(rows)
        keys, at_ms = self._asked(entity, columns, request)
        count, asked = len(behaviour.kind), len(keys)
        order = np.argsort(np.concatenate((behaviour.seen_ms, at_ms)), kind="stable")
        values = behaviour.values[:, [self._of._sources.index(source) for source in entity.sources]]
        none = np.zeros(asked, np.uint64)

        def ordered(of_behaviour: Any, of_asked: Any, kind: Any) -> Any:
            return np.ascontiguousarray(np.concatenate((of_behaviour, of_asked))[order], kind)

        evaluated = states.run(
            (
                ordered(behaviour.user if is_user else behaviour.item, keys, np.uint64),
                ordered(behaviour.time_ms, at_ms, np.int64),
                ordered(behaviour.identity, none, np.uint64),
                ordered(kinds[behaviour.kind], np.full(asked, _EVALUATION), np.uint8),
                ordered(behaviour.number, none, np.float32),
                ordered(values, np.zeros((asked, values.shape[1]), np.int64), np.int64).reshape(-1).view(np.uint64),
            )
        )
        if not asked:
            return
        # Rows were evaluated in the order of time.
        back = np.empty(asked, np.int64)
        back[order[order >= count] - count] = np.arange(asked)
        prefix = "user" if is_user else "items"
        for column, arrays in zip(entity.columns, evaluated, strict=True):
            path = f"{prefix}.{column.name}"
            if path not in columns:
                columns |= _columns_of(path, column, arrays, back)

    def _asked(self, entity: Entity, columns: Columns, request: Any) -> tuple[Any, Any]:
        """Return the entities of a block's impressions, and when each is evaluated."""
        if "event_time_ms" not in columns:
            return np.zeros(0, np.uint64), np.zeros(0, np.int64)
        slot = self._of.app.features.slot(entity.slot)
        at_ms = columns["event_time_ms"] - min(0, self._of.lag_ms)
        if entity.side == "user":
            return keys_of(slot, ids_of(columns, f"user.{slot.name}")), at_ms
        return keys_of(slot, ids_of(columns, f"items.{slot.name}")), at_ms[request]


def computed_history(history: History, app: App, *, lag_ms: int | None = None) -> History:
    """Return a history with the computed columns of an application, or as it is if there are none.

    `lag_ms` is the time from an action to the value that is served; by default `LAG_MS`.
    """
    if not app.features.entities:
        return history
    return ComputedHistory(history, app, LAG_MS if lag_ms is None else lag_ms)


def _columns_of(path: str, column: Slot | Dense, arrays: Sequence[Any], rows: npt.NDArray[np.int64]) -> dict[str, Any]:
    """Return the columns of some rows of evaluated values, as `EventColumns` names them."""
    values, begins = column_arrays(column, arrays, len(rows))
    if begins is None:
        return {path: values[rows]}
    counts = np.diff(begins)[rows]
    ends = np.append(0, np.cumsum(counts))
    at = np.repeat(begins[rows] - ends[:-1], counts) + np.arange(ends[-1])
    return {path: values[at], f"{path}[]": ends.astype(np.int32)}


def _mixed(left: npt.NDArray[np.uint64], right: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return a hash of each pair."""
    with np.errstate(over="ignore"):
        mixed = (left ^ (right * np.uint64(0x9E3779B97F4A7C15))) * np.uint64(0xD6E8FEB86659FD93)
    return mixed ^ (mixed >> np.uint64(32))


def _nothing(sources: int) -> _Behaviour:
    u8, i8 = np.zeros(0, np.uint64), np.zeros(0, np.int64)
    return _Behaviour(
        i8, i8, u8, u8, u8, np.zeros(0, np.uint8), np.zeros(0, np.float32), np.zeros((0, sources), np.int64)
    )
