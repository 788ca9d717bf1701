"""FeatureReader: the computed columns of users and items, for callers in Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from streamlearn.apps import AppFolder
from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import StatesUnreachable, UsageError
from streamlearn.features import Dense, Entity, Slot, keys_of
from streamlearn.features.column_values import described
from streamlearn.features.entity import states_id
from streamlearn.native import native
from streamlearn.online.redis_address import redis_address
from streamlearn.online.state_store import GROUP_S, StateGroup, StatePlace, open_state_store
from streamlearn.resource import Resource

__all__ = ["ComputedFeatures", "FeatureReader", "FilledRequest"]

Outcome: TypeAlias = Literal["known", "unknown", "unavailable", ""]
SideColumns: TypeAlias = tuple[bytes, list[int], list[list[Any]]]

_SIDES = ("user", "item")
# By whether something is known.
_OUTCOMES: tuple[Outcome, ...] = ("unknown", "known")
# While the store does not answer it is asked again this often.
_AWAY_S = 1.0


@dataclass(frozen=True)
class ComputedFeatures:
    """The computed columns of some users or items, in the order in which they were asked for.

    Attributes:
        outcomes: Of each whether interactions of it are known; "unavailable" where the store did not answer. The values
            of those that are not known are what the columns have without any interaction, or their defaults.
        values: The values of each column, as events and requests carry them.
        positions: Of each the position in the log of the last interaction that counts; -1 without any.
    """

    outcomes: tuple[Outcome, ...]
    values: Mapping[str, Sequence[Any]]
    positions: tuple[int, ...] = ()

    def row(self, number: int) -> dict[str, Any]:
        """Return the columns of one."""
        return {name: values[number] for name, values in self.values.items()}


@dataclass(frozen=True)
class FilledRequest:
    """What became of the columns that a request lacked.

    Attributes:
        outcome: What is known of the user; "unavailable" if the store did not answer, and empty if nothing was lacking.
        at_ms: The time of evaluation.
        position: That of the last interaction in the user's columns, if all of them were computed; -1 without any.
        states: Names the application and its columns, whose log the positions are of.
        item_positions: Likewise of each item; empty if not all columns of items were computed.
    """

    outcome: Outcome
    at_ms: int
    position: int | None = None
    states: int = 0
    item_positions: tuple[int, ...] = ()

    def of_impression(self, items: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
        """Return `computed` for `Producer.impression`, and note in its items, in place, what theirs came from."""
        for item, position in zip(items, self.item_positions, strict=False):
            item["served_position"] = position
        if self.outcome in ("unavailable", ""):
            return {"served_features": self.outcome}
        fields = {"served_features": self.outcome, "served_at_ms": self.at_ms, "served_states": self.states}
        return fields | {"served_position": self.position}


class _Side:
    """The computed columns of users, or of items, in requests."""

    def __init__(self, entity: Entity, slot: Slot) -> None:
        self.entity, self.slot, self.number = entity, slot, _SIDES.index(entity.side)
        self.names = tuple(column.name for column in entity.columns)
        self._names = frozenset(self.names)
        sequences = (one for one in entity.columns if isinstance(one, Slot) and one.pooling == "sequence")
        self._history = tuple(column.name for column in sequences)

    def ids(self, rows: Sequence[dict[str, Any]]) -> list[Any]:
        """Return what tells users or items apart; raises `UsageError` without."""
        try:
            return [row[self.slot.name] for row in rows]
        except KeyError:
            message = f"a request lacks the slot {self.slot.name!r}, from which its {self.entity.side} is known"
            raise UsageError(message, help="computed columns follow from it: give it") from None

    def lacks(self, rows: Sequence[dict[str, Any]]) -> bool:
        """Whether some row lacks a computed column; raises `UsageError` if a row has only a part of a history."""
        for row in rows if self._history else ():
            given = [name for name in self._history if name in row]
            if given and len(given) < len(self._history):
                history = ", ".join(self._history)
                message = f"{history} are columns of one history, and only {', '.join(given)} are given"
                raise UsageError(message, help="give all of them, or leave them out to have them computed")
        return any(name not in row for row in rows for name in self.names)

    def put(self, rows: Sequence[dict[str, Any]], found: ComputedFeatures) -> bool:
        """Add the columns that rows lack; return whether they lacked all."""
        is_whole = all(map(self._names.isdisjoint, rows))
        for name, values in found.values.items():
            for row, value in zip(rows, values, strict=True):
                row.setdefault(name, value)
        return is_whole


class FeatureReader(Resource):
    """Reads states and evaluates them.

    Guaranteed: a call takes no longer than about `wait_s`, and a store that is away makes no call fail; it is asked
    again each second. States of items that were read in the last `features.item_age_s` come from memory, as in a node;
    those in a file do not. For one thread.
    """

    def __init__(self, folder: AppFolder, *, wait_s: float = 0.05, clock: Clock = SYSTEM_CLOCK) -> None:
        limits = msgspec.structs.replace(folder.settings.features, reach_s=wait_s)
        self._app, self._clock, self._wait_s = folder.app, clock, wait_s
        self._store = open_state_store(folder, limits)
        entities = folder.app.features.entities
        slots = {"user": folder.app.features.user_slot, "item": folder.app.features.item_id}
        of_entities = (_Side(entity, folder.app.features.slot(slots[entity.side])) for entity in entities)
        self._sides: dict[str, _Side] = {side.entity.side: side for side in of_entities}
        self._states = states_id(folder.app.samples_name, entities)
        # redis-py takes longer for a request than the states themselves.
        self._redis = redis_address(limits.store)
        self._client = native.StateClient(
            described(entities), self._redis, limits.reach_s, limits.item_cache_bytes, limits.item_age_s
        )
        self._groups: dict[int, tuple[StateGroup, float]] = {}
        self._away_until_s = 0.0

    @property
    def states_bad(self) -> int:
        """The number of states that could not be read."""
        return self._client.states_bad

    def users(self, ids: Sequence[Any], at_ms: int | None = None) -> ComputedFeatures:
        """Return the computed columns of users at an event time; None is now."""
        return self._read({"user": ids}, self._at_ms(at_ms)).get("user") or _nothing(len(ids))

    def items(self, ids: Sequence[Any], at_ms: int | None = None) -> ComputedFeatures:
        """Return the computed columns of items at an event time; None is now."""
        return self._read({"item": ids}, self._at_ms(at_ms)).get("item") or _nothing(len(ids))

    def fill(self, user: dict[str, Any], items: Sequence[dict[str, Any]], at_ms: int | None = None) -> FilledRequest:
        """Add the computed columns that a request lacks, in place; return what they came from.

        Raises `UsageError` without the slot of the user or of an item.
        """
        now_ms = self._at_ms(at_ms)
        rows = {"user": [user], "item": items}
        given = {name: side.ids(rows[name]) for name, side in self._sides.items()}
        lacking = {name: given[name] for name, side in self._sides.items() if side.lacks(rows[name])}
        if not any(map(len, lacking.values())):
            return FilledRequest("", now_ms)
        read = self._read(lacking, now_ms)
        whole = {name: found for name, found in read.items() if self._sides[name].put(rows[name], found)}
        outcome: Outcome = (read.get("user") or read["item"]).outcomes[0]
        if "user" not in read and outcome == "unknown":
            outcome = "known"  # it is of the user
        of_user = whole["user"].positions[0] if "user" in whole and whole["user"].positions else None
        of_items = whole["item"].positions if "item" in whole else ()
        return FilledRequest(outcome, now_ms, of_user, self._states, of_items)

    def close(self) -> None:
        """Close the store."""
        vars(self).pop("_client", None)  # and with it its connection
        self._store.close()

    def _at_ms(self, at_ms: int | None) -> int:
        return self._clock.wall_ms() if at_ms is None else at_ms

    def _read(self, ids: Mapping[str, Sequence[Any]], now_ms: int) -> dict[str, ComputedFeatures]:
        """Return the columns of each side that has some, by one read."""
        sides = [self._sides[name] for name in ids if name in self._sides]
        read = self._answer(sides, [keys_of(side.slot, ids[side.entity.side]) for side in sides], now_ms)
        if read is None:
            return {side.entity.side: _defaults(side.entity, len(ids[side.entity.side])) for side in sides}
        return {side.entity.side: self._found(side, of_side) for side, of_side in zip(sides, read, strict=True)}

    def _found(self, side: _Side, read: SideColumns) -> ComputedFeatures:
        is_known, positions, columns = read
        outcomes = tuple(map(_OUTCOMES.__getitem__, is_known))
        return ComputedFeatures(outcomes, dict(zip(side.names, columns, strict=True)), tuple(positions))

    def _answer(
        self, sides: Sequence[_Side], keys: Sequence[npt.NDArray[np.uint64]], now_ms: int
    ) -> list[SideColumns] | None:
        """Return the columns of the entities of some sides; None if the store does not answer."""
        now_s = self._clock.monotonic_s()
        if now_s < self._away_until_s:
            return None
        try:
            groups = [group for side in sides if (group := self._group(side, now_s))]
            if len(groups) < len(sides):
                return None  # nothing was ever folded, or everything is lost and not folded again
            if self._redis is not None:
                named = [(side.number, of_side) for side, of_side in zip(sides, keys, strict=True)]
                read = self._client.read(named, now_ms, self._wait_s)
            else:
                read = []
                for side, group, of_side in zip(sides, groups, keys, strict=True):
                    stored = self._store.read([StatePlace(group, key) for key in of_side.tolist()])
                    read.append(self._client.evaluate(side.number, stored, now_ms))
        except StatesUnreachable:
            read = None
        if read is None:
            self._away_until_s = now_s + _AWAY_S
        return read

    def _group(self, side: _Side, now_s: float) -> StateGroup | None:
        """Return where the states of a side are, asked for again each `GROUP_S`; None if there is nothing to read."""
        known, until_s = self._groups.get(side.number, (None, 0.0))
        if now_s < until_s:
            return known
        group = self._store.current(self._app.samples_name, side.entity)
        if group is None or group.fills:
            return None
        self._groups[side.number] = (group, now_s + GROUP_S)
        self._client.set_group(side.number, group.name, group.partitions)
        return group


def _defaults(entity: Entity, count: int) -> ComputedFeatures:
    away: Outcome = "unavailable"
    return ComputedFeatures((away,) * count, {column.name: [_default(column)] * count for column in entity.columns})


def _nothing(count: int) -> ComputedFeatures:
    unknown: Outcome = "unknown"
    return ComputedFeatures((unknown,) * count, {})


def _default(column: Slot | Dense) -> Any:
    if isinstance(column, Slot):
        return [] if column.multi else column.default
    return column.default if column.width == 1 else [column.default] * column.width
