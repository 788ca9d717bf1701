"""StateStore: the states of users and items, and how far the log of interactions is folded into them."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import NamedTuple

from streamlearn.apps import AppFolder
from streamlearn.errors import FoldOver, StatesLost, StatesUnreachable, UsageError
from streamlearn.features import Entity
from streamlearn.resource import Resource
from streamlearn.settings.features import FeatureSettings

__all__ = ["GROUP_S", "Standing", "StateGroup", "StatePlace", "StateStore", "Written", "new_run", "open_state_store"]


_PARTITIONS_MAX = 100_000
GROUP_S = 1.0
"""How often a reader of states asks which group is read."""


@dataclass(frozen=True)
class StateGroup:
    """The states of one definition. Those of another one, or of a rebuild, are a group of their own.

    Attributes:
        app: The application.
        side: "user" or "item"; of lists of candidates, their kind.
        definition: The id of the definition.
        partitions: Those of the topic of interactions.
        epoch: Names a rebuild; 0 before any.
        fills: Whether it is folded from the beginning of the log, and was never at its end: users and items lack a part
            of their history, so that nobody should read them.
    """

    app: str
    side: str
    definition: int
    partitions: int
    epoch: int = 0
    fills: bool = field(default=False, compare=False)

    @classmethod
    def of(cls, app: str, entity: Entity, partitions: int, epoch: int = 0) -> StateGroup:
        """Return the group of an entity."""
        return cls(app, entity.side, entity.id, partitions, epoch)

    @property
    def base(self) -> str:
        """Its name without the epoch."""
        return f"{self.app}:{self.side}:{self.definition:016x}"

    @cached_property
    def name(self) -> str:
        """Its name."""
        return f"{self.base}:{self.epoch}"


class StatePlace(NamedTuple):
    """Where the state of an entity is."""

    group: StateGroup
    key: int

    @property
    def partition(self) -> int:
        """The partition of its interactions."""
        return self.key % self.group.partitions


@dataclass(frozen=True)
class Standing:
    """How far a partition is folded.

    Attributes:
        run: Names the process that folds it. By chance, since a store may forget the newest one.
        position: The offset from which interactions are not folded yet.
        seen_from: The offset from which interactions are needed to tell which ones come again.
        newest_ms: The event time of the newest interaction that was folded.
        topic_id: The topic whose offsets these are; empty before the first record.
    """

    run: int = 0
    position: int = 0
    seen_from: int = 0
    newest_ms: int = 0
    topic_id: str = ""


class Written(Enum):
    """The outcome of a write: done; or another process has the partition; or the store has lost the standing."""

    OVER = 0
    DONE = 1
    LOST = 2


def new_run() -> int:
    """Return the name of a process that folds."""
    return secrets.randbits(62)


class StateStore(Resource, ABC):
    """Stores states by the key of their entity.

    Guaranteed: the standing of a partition moves after all its states were written; of two processes that fold a
    partition, only the one that claimed it last can write. Not guaranteed: that a state is there which was written: one
    is dropped `keep_ms` after its last write, and a store in memory may lose its last seconds. States and standing then
    go back together, so folding goes on from there.

    Every call raises `StatesUnreachable` if the store does not answer in time. For threads.
    """

    def __init__(self, url: str) -> None:
        self.url = url  # without a password

    @abstractmethod
    def claim(self, group: StateGroup, partition: int) -> Standing:
        """Begin to fold a partition: return its standing with a new run."""

    @abstractmethod
    def standing(self, group: StateGroup, partition: int) -> Standing | None:
        """Return the standing of a partition; None if it was never claimed."""

    @abstractmethod
    def read(self, places: Sequence[StatePlace]) -> list[bytes | None]:
        """Return the states of entities; None for those without one."""

    def write(
        self,
        group: StateGroup,
        partition: int,
        moved: tuple[Standing, Standing],
        states: Mapping[int, bytes],
        keep_ms: int,
    ) -> None:
        """Write states of a partition by their keys, and move its standing from the first to the second.

        A repeated call changes nothing. Where an error is raised, states may be written and the standing not moved:
        states know how far they are folded, so folding again changes nothing in them.

        Raises:
            FoldOver: Another process has claimed the partition since.
            StatesLost: The store holds neither of the two standings.
        """
        found = self._write(group, partition, moved, states, keep_ms)
        where = f"partition {partition} of {group.name} in {self.url}"
        if found is Written.OVER:
            message = f"{where} was taken over by another process"
            raise FoldOver(message, help="one process folds for an application: the newest continues")
        if found is Written.LOST:
            message = f"{where} has lost what was written before {moved[0].position}"
            raise StatesLost(message, help="folding goes on from what the store holds")

    @abstractmethod
    def remove(self, group: StateGroup, partition: int, keys: Sequence[int]) -> int:
        """Remove the states of entities; return how many there were."""

    @abstractmethod
    def switch(self, group: StateGroup) -> None:
        """Make a group the current one, instead of the one with another epoch; write down whether it fills."""

    @abstractmethod
    def filled(self, group: StateGroup) -> None:
        """Write down that a group no longer fills, if it is still the current one."""

    @abstractmethod
    def drop(self, group: StateGroup) -> None:
        """Remove a group with all its states."""

    @abstractmethod
    def _current(self, base: str) -> tuple[int, int, bool] | None: ...

    @abstractmethod
    def _write(
        self,
        group: StateGroup,
        partition: int,
        moved: tuple[Standing, Standing],
        states: Mapping[int, bytes],
        keep_ms: int,
    ) -> Written: ...

    def current(self, app: str, entity: Entity) -> StateGroup | None:
        """Return the group of an entity that is folded, and read unless it fills; None before any."""
        return self.current_of(StateGroup.of(app, entity, 0))

    def current_of(self, group: StateGroup) -> StateGroup | None:
        """Return the group that was made the current one in place of another of its name; None before any."""
        found = self._current(group.base)
        if found is None:
            return None
        if not 1 <= found[1] <= _PARTITIONS_MAX:
            message = f"the feature states at {self.url} are damaged: {found[1]} partitions"
            raise StatesUnreachable(message, help="`streamlearn features rebuild APP` makes them again")
        return replace(group, epoch=found[0], partitions=found[1], fills=found[2])


def open_state_store(folder: AppFolder, settings: FeatureSettings | None = None) -> StateStore:
    """Open the store of an application's states, without a request to it.

    Raises:
        UsageError: The URL is invalid.
    """
    limits = settings or folder.settings.features
    url = limits.store or f"sqlite://{folder.folder.resolve()}/.streamlearn/features.db"
    scheme = url.partition(":")[0]
    if scheme == "sqlite":
        from streamlearn.online.state_store_sqlite import SqliteStateStore

        return SqliteStateStore(url, limits)
    if scheme in ("redis", "rediss", "unix"):
        from streamlearn.online.state_store_redis import RedisStateStore

        return RedisStateStore(url, limits)
    message = f"unknown URL of feature states that begins with {scheme[:40]!r}"
    raise UsageError(message, help="use redis://HOST:PORT or sqlite:///FILE for features.store")
