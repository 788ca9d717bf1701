"""Registry: where nodes and operators meet: a copy of the pointer, who serves what, and what was done.

The store is the truth; everything here can be made anew from it and from the nodes that are alive.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct

from streamlearn.errors import UsageError
from streamlearn.settings.versions import RegistrySettings
from streamlearn.versions.format.version_summary import Known
from streamlearn.versions.pointer.moves import Pointer
from streamlearn.versions.store.layout import model_folder

__all__ = ["Ack", "Node", "NodeState", "Note", "Registry", "open_registry", "replaced"]

NodeState = Literal["starting", "ready", "stale", "draining"]
_Text = Annotated[str, Meta(max_length=200)]


class Node(Struct, frozen=True, kw_only=True):
    """A serving node, as it last said of itself.

    Attributes:
        boot_id: Of one life of its process; another one after every start.
        name: For people, such as host and port.
        state: Whether it answers.
        seq: Of the pointer it has acted on.
        active: The version it answers with; 0 before the first.
        staged: All versions it could answer with.
        said: What is wrong, for people.
        wall_ms: When it said so.
        since_ms: When its process began; 0 where it does not say.
    """

    boot_id: Annotated[str, Meta(min_length=1, max_length=64)]
    name: _Text
    state: NodeState = "starting"
    seq: int = 0
    active: int = 0
    staged: Annotated[tuple[int, ...], Meta(max_length=1_000)] = ()
    said: Annotated[str, Meta(max_length=2_000)] = ""
    wall_ms: int = 0
    since_ms: int = 0


class Ack(Struct, frozen=True, kw_only=True):
    """That a node has acted on a move of the pointer.

    Attributes:
        boot_id: The node.
        name: Its name.
        seq: The move.
        version: What it answers with since.
        took_ms: From when it heard of the move.
        wall_ms: When.
    """

    boot_id: Annotated[str, Meta(min_length=1, max_length=64)]
    name: _Text
    seq: int
    version: int
    took_ms: float
    wall_ms: int = 0


class Note(Struct, frozen=True, kw_only=True):
    """One line of the audit log.

    Attributes:
        wall_ms: When.
        by: Who.
        what: What was done, such as "rollback".
        seq: The move of the pointer; 0 for what is none.
        version: The version it was about; 0 for none.
        reason: Why.
    """

    wall_ms: int
    by: _Text
    what: _Text
    seq: int = 0
    version: int = 0
    reason: Annotated[str, Meta(max_length=2_000)] = ""


def replaced(nodes: Sequence[Node], silence_ms: float) -> set[str]:
    """Lives that ended without a word: another process of the same name began after they were last heard of.

    Processes that share a name by mistake are heard of again and again, each: they are all alive.

    Args:
        nodes: All that a registry has.
        silence_ms: What is more than a node that is alive leaves between two words.

    Examples:
        >>> old = Node(boot_id="a", name="node-1", wall_ms=10_000, since_ms=1_000)
        >>> new = Node(boot_id="b", name="node-1", wall_ms=18_000, since_ms=13_000)
        >>> replaced([old, new], 5_000)
        {'a'}
    """
    return {
        old.boot_id
        for old in nodes
        for new in nodes
        if new.name == old.name and new.since_ms > old.wall_ms and new.wall_ms - old.wall_ms > silence_ms
    }


class Registry(ABC):
    """A registry of one model. Calls may come from several threads at once.

    Every call raises `RegistryUnreachable` when the registry does not answer within `reach_s`, and `RegistryDefect`,
    which is one, when it answers with what cannot be read; nothing of what it holds is believed over the store.

    Attributes:
        url: Where it is; without secrets.
        model: Of which model.
    """

    def __init__(self, url: str, model: str, settings: RegistrySettings) -> None:
        model_folder(model, "pointer")  # refuses a name that is none
        self.url, self.model, self.settings = url, model, settings

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r}, {self.model!r})"

    @abstractmethod
    def announce(self, pointer: Pointer) -> bool:
        """Keep a copy of the pointer, unless a newer one is kept, and wake who waits. Gives whether it was newer."""

    @abstractmethod
    def pointer(self) -> Pointer | None:
        """The copy of the pointer; None before the first. It may be older than the store's."""

    @abstractmethod
    def wait(self, seq: int, timeout_s: float) -> Pointer | None:
        """Wait until the copy of the pointer is after some move. Gives it; None when the time is over."""

    @abstractmethod
    def put_versions(self, known: Iterable[Known]) -> None:
        """Keep what is known of versions; the same version again takes its place."""

    @abstractmethod
    def versions(self) -> list[Known]:
        """What is known of versions, oldest first."""

    @abstractmethod
    def drop_versions(self, versions: Iterable[int]) -> None:
        """Forget versions."""

    @abstractmethod
    def beat(self, node: Node) -> None:
        """Say that a node is alive and how it is; without another beat within `node_ttl_s` it is forgotten."""

    @abstractmethod
    def leave(self, boot_id: str) -> None:
        """Forget a node that ends."""

    @abstractmethod
    def nodes(self) -> list[Node]:
        """The nodes that are alive, by name and boot id."""

    @abstractmethod
    def ack(self, ack: Ack) -> None:
        """Say that a node has acted on a move, and wake who waits for that.

        Of the newest `acks_max` moves acks are kept, and of each those of the first `move_acks_max` nodes.
        """

    @abstractmethod
    def acks(self, seq: int) -> list[Ack]:
        """Who has acted on a move, by name and boot id; one ack of each node, the first."""

    @abstractmethod
    def wait_acks(self, seq: int, count: int, timeout_s: float) -> list[Ack]:
        """Wait until so many nodes have acted on a move, or the time is over. Gives those that have."""

    @abstractmethod
    def note(self, note: Note) -> None:
        """Add to the audit log, of which the last `notes_max` are kept; the same line again changes nothing."""

    @abstractmethod
    def notes(self, count_max: int) -> list[Note]:
        """The last lines of the audit log by their time and then their move, oldest first."""

    @abstractmethod
    def clear(self) -> None:
        """Forget everything of this model."""

    @abstractmethod
    def close(self) -> None:
        """Let go of it."""

    def __enter__(self) -> Registry:
        return self

    def __exit__(self, *ended: object) -> None:
        self.close()


def open_registry(url: str, model: str, settings: RegistrySettings | None = None) -> Registry:
    """Open the registry of a model; nothing is asked of it yet.

    Args:
        url: `redis://HOST:PORT[/DB]`, `rediss://...`, `unix:///SOCKET` or `sqlite:///FILE`.
        model: Which model.
        settings: Limits.

    Raises:
        UsageError: The URL is none of a registry.
    """
    limits = settings or RegistrySettings()
    scheme = url.partition(":")[0]
    if scheme == "sqlite":
        from streamlearn.versions.pointer.registry_sqlite import SqliteRegistry

        return SqliteRegistry(url, model, limits)
    if scheme in ("redis", "rediss", "unix"):
        from streamlearn.versions.pointer.registry_redis import RedisRegistry

        return RedisRegistry(url, model, limits)
    message = f"unknown registry URL that begins with {scheme[:40]!r}"
    raise UsageError(message, help="use redis://HOST:PORT or sqlite:///FILE")
