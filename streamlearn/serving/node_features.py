"""NodeFeatures: computes the columns that requests to a node lack, from the states of their users and items."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

from streamlearn.apps import AppFolder
from streamlearn.errors import StatesUnreachable
from streamlearn.features.column_values import described
from streamlearn.features.entity import states_id
from streamlearn.native import native
from streamlearn.online.redis_address import redis_address
from streamlearn.online.state_store import GROUP_S, StateGroup, StatePlace, StateStore, open_state_store

__all__ = ["NodeFeatures", "ReadLimits"]

_LOG = logging.getLogger(__name__)
_SIDES = ("user", "item")
# A file is read by Python, which shares its time with lanes.
_FILE_WAITS = 10


class ReadLimits(NamedTuple):
    """The limits of the native reader."""

    wait_s: float
    cache_bytes: int
    cache_age_s: float
    reach_s: float
    states: int  # the number that names the states


class NodeFeatures:
    """The computed columns of the requests of one node.

    Guaranteed: a request waits no longer than `features.wait_s` for states; while the store does not answer, columns
    have their defaults at once. States in Redis are read by native code, others by Python. A thread asks which states
    are read; before the first answer none are.
    """

    def __init__(self, folder: AppFolder, front: Any) -> None:
        self._app, settings = folder.app, folder.settings.features
        self._entities = {entity.side: entity for entity in folder.app.features.entities}
        self._store: StateStore = open_state_store(folder)
        self._groups: dict[int, StateGroup] = {}
        place = redis_address(settings.store)
        states = states_id(folder.app.samples_name, folder.app.features.entities)
        waits = 1 if place else _FILE_WAITS
        limits = ReadLimits(
            waits * settings.wait_s, settings.item_cache_bytes, settings.item_age_s, settings.reach_s, states
        )
        text = described(folder.app.features.entities)
        self.native = native.NodeFeatures(front, text, limits, place, None if place else self._read)
        # Event time that is not the clock's: values are those of the newest interaction.
        self._is_replay = folder.settings.topics.time == "event"
        self._is_away, self._ended = False, threading.Event()
        self._thread = threading.Thread(target=self._run, name="feature-groups", daemon=True)

    def start(self, node: Any) -> None:
        """Compute columns of what a native node is asked from now on."""
        node.compute(self.native)
        self._thread.start()

    def close(self) -> None:
        """End the thread and close the store. Call it when the node answers no more requests."""
        self._ended.set()
        self._thread.join()
        self._store.close()

    def _run(self) -> None:
        while True:
            try:
                self._follow()
                if self._is_away:
                    _LOG.warning("the feature states at %s answer again", self._store.url)
                self._is_away = False
            except StatesUnreachable as error:
                if not self._is_away:
                    _LOG.error("%s; %s; requests get defaults until then", error.message, error.help)
                self._is_away = True
            if self._ended.wait(GROUP_S):
                return

    def _follow(self) -> None:
        """Learn which states are read, and in a replay at which time."""
        newest_ms = 0
        for side, entity in self._entities.items():
            number, group = _SIDES.index(side), self._store.current(self._app.samples_name, entity)
            if group is None or group.fills:  # columns are unavailable then, and not learned
                self._groups.pop(number, None)
                self.native.set_group(number, "", 0)
            if group is None:
                message = f"no interactions of {self._app.name} were ever folded into {self._store.url}"
                raise StatesUnreachable(message, help="start `streamlearn features fold APP`")
            if group.fills:
                message = f"interactions of {self._app.name} are folded into {self._store.url} from the beginning"
                raise StatesUnreachable(message, help="`streamlearn features show APP` says how many are left")
            self._groups[number] = group
            self.native.set_group(number, group.name, group.partitions)
            for partition in range(group.partitions if self._is_replay else 0):
                standing = self._store.standing(group, partition)
                newest_ms = max(newest_ms, standing.newest_ms if standing else 0)
        if newest_ms:
            self.native.set_time(newest_ms)
        if error := self.native.figures().error:
            message = f"the feature states at {self._store.url} cannot be read by the node: {error}"
            hint = 'see "Computed features" in the documentation for the certificates that it takes'
            raise StatesUnreachable(message, help=hint)

    def _read(self, keys: Sequence[tuple[int, int]]) -> list[bytes | None] | None:
        try:
            return self._store.read([StatePlace(self._groups[side], key) for side, key in keys])
        except (StatesUnreachable, KeyError):  # a group may have gone meanwhile
            return None
