"""Registry: where nodes and operators meet. It has a copy of the pointer, the nodes' states, and the audit log.

The store is the truth: everything here can be rebuilt from the store and from live nodes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Meta, Struct

from streamlearn.errors import RegistryDefect, UsageError, VersionDefect
from streamlearn.resource import Resource
from streamlearn.settings.versions import RegistrySettings
from streamlearn.struct_decoder import from_json
from streamlearn.versions.format.record import decode_record, encode_record
from streamlearn.versions.format.version_summary import Known
from streamlearn.versions.pointer.moves import Pointer
from streamlearn.versions.store.layout import model_folder

__all__ = [
    "NODES_MAX", "REBUILD_HELP", "Ack", "Door", "Node", "NodeState", "Note", "Registry", "by_name", "decode",
    "decode_nodes", "decode_pointer", "encode", "missing", "note_order", "open_registry", "replaced",
]  # fmt: skip

# Most nodes that are listed.
NODES_MAX = 10_000
REBUILD_HELP = "the registry only holds copies: rebuild it from the store"

NodeState = Literal["starting", "ready", "stale", "aside", "draining"]
_Text = Annotated[str, Meta(max_length=200)]


class Door(NamedTuple):
    """How a node is reached; see `Node`."""

    grpc: str = ""
    http: str = ""
    has_tls: bool = False
    has_token: bool = False


class Node(Struct, frozen=True, kw_only=True):
    """A serving node, as its last heartbeat described it.

    Attributes:
        boot_id: Identifies one process; it changes with every start.
        name: A name for people, such as host and port.
        state: `aside` is ready, while another application answers its callers.
        seq: The move of the pointer it has acted on.
        active: The version it answers with; 0 before the first.
        staged: All versions it could answer with.
        said: A problem, in words.
        since_ms: When its process started; 0 if unknown.
        grpc: Where others reach it by gRPC, as IP:PORT; empty if unknown, as in records of older releases.
        http: Likewise by HTTP; empty without HTTP.
        has_tls: Whether it speaks TLS at both.
        has_token: Whether callers must send a token.
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
    grpc: _Text = ""
    http: _Text = ""
    has_tls: bool = False
    has_token: bool = False


class Ack(Struct, frozen=True, kw_only=True):
    """A node's acknowledgement that it has acted on the move `seq` of the pointer.

    Attributes:
        version: The version it answers with since then.
        took_ms: Time since it learned of the move.
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
        by: The person or process that acted.
        what: The action, such as "rollback".
        seq: The move of the pointer; 0 for other actions.
        version: The version concerned; 0 for none.
    """

    wall_ms: int
    by: _Text
    what: _Text
    seq: int = 0
    version: int = 0
    reason: Annotated[str, Meta(max_length=2_000)] = ""

    @classmethod
    def of_move(cls, to: Pointer, what: str) -> Note:
        """Make the line of a move of the pointer."""
        return cls(
            wall_ms=to.wall_ms, by=to.by, what=what, seq=to.seq, version=to.active_version, reason=to.reason
        )  # fmt: skip


def replaced(nodes: Sequence[Node], silence_ms: float) -> set[str]:
    """Return the boot ids of processes that ended without `leave`.

    Another process of the same name started after their last heartbeat, and they were silent for more than
    `silence_ms`, which is longer than a live node pauses. Processes that share a name by mistake all keep sending
    heartbeats, so they count as alive.

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


def missing(silent: Sequence[Node], nodes: Sequence[Node]) -> list[Node]:
    """Return the silent nodes that no live node has replaced; of one name the newest.

    A live node of the same name has replaced a silent one if it started after the silent one's last heartbeat.
    Otherwise the two share the name by mistake, and the silent one may still answer.

    Examples:
        >>> a, b = Node(boot_id="1", name="a", wall_ms=9_000), Node(boot_id="2", name="b", wall_ms=9_000)
        >>> live = [Node(boot_id="3", name="a", since_ms=10_000), Node(boot_id="4", name="b", since_ms=8_000)]
        >>> [node.name for node in missing([a, b], live)]
        ['b']
    """
    since_ms: dict[str, int] = {}
    for node in nodes:
        since_ms[node.name] = max(node.since_ms, since_ms.get(node.name, 0))
    silent = [node for node in silent if since_ms.get(node.name, 0) <= node.wall_ms]
    newest = {node.name: node for node in sorted(silent, key=lambda node: node.wall_ms)}
    return [newest[name] for name in sorted(newest)]


Kind = TypeVar("Kind", bound=Struct)
Named = TypeVar("Named", Node, Ack)


def encode(content: Struct) -> bytes:
    """Encode any content of a registry; a pointer carries its checksum."""
    return encode_record(content) if isinstance(content, Pointer) else msgspec.json.encode(content)


def decode(data: bytes, kind: type[Kind], url: str) -> Kind:
    """Decode content of a registry; raises `RegistryDefect`."""
    try:
        return from_json(data, kind)
    except msgspec.DecodeError as error:
        raise _defect(url, f"cannot decode {kind.__name__.lower()} ({len(data)} bytes): {error}") from None


def decode_pointer(data: bytes, url: str) -> Pointer:
    """Decode the copy of the pointer; raises `RegistryDefect`."""
    try:
        return decode_record(data, Pointer, "the copy of the pointer")
    except VersionDefect as error:
        raise _defect(url, error.message) from None


def decode_nodes(rows: Sequence[bytes], url: str) -> list[Node]:
    """Decode and sort nodes; raises `RegistryDefect` if there are too many, because some of them would mislead."""
    if len(rows) > NODES_MAX:
        message = f"the registry at {url} lists more than {NODES_MAX:,} nodes"
        raise RegistryDefect(message, help=REBUILD_HELP)
    return by_name([decode(data, Node, url) for data in rows])


def by_name(contents: list[Named]) -> list[Named]:
    """Sort nodes or acks by name and boot id."""
    return sorted(contents, key=lambda content: (content.name, content.boot_id))


def note_order(note: Note) -> tuple[int, int, bytes]:
    """Return the sort key of a line of the audit log."""
    return note.wall_ms, note.seq, encode(note)


def _defect(url: str, what: str) -> RegistryDefect:
    message = f"a record in the registry at {url} is damaged: {what[:500]}"
    return RegistryDefect(message, help=REBUILD_HELP)


class Registry(Resource, ABC):
    """A registry of one model. Several threads may call it at once.

    Every call raises `RegistryUnreachable` if the registry does not answer within `reach_s`. It raises the subclass
    `RegistryDefect` if the answer cannot be decoded. The store always prevails over the registry's contents.

    Attributes:
        url: Its URL, without secrets.
    """

    def __init__(self, url: str, model: str, settings: RegistrySettings) -> None:
        model_folder(model, "pointer")  # refuses an invalid name
        self.url, self.model, self.settings = url, model, settings

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r}, {self.model!r})"

    @property
    def _ttl_ms(self) -> int:
        """After this time without a heartbeat a node is silent."""
        return max(1, round(self.settings.node_ttl_s * 1_000))

    @property
    def _silent_ms(self) -> int:
        """After this time without a heartbeat a node is forgotten."""
        return max(self._ttl_ms, round(self.settings.silent_s * 1_000))

    @abstractmethod
    def announce(self, pointer: Pointer) -> bool:
        """Store a copy of the pointer if it is newer, wake waiters, and return whether it was newer."""

    @abstractmethod
    def pointer(self) -> Pointer | None:
        """Return the copy of the pointer; None before the first. It may be older than the store's."""

    @abstractmethod
    def wait(self, seq: int, timeout_s: float) -> Pointer | None:
        """Wait for a copy of the pointer newer than a move, and return it; None after the timeout."""

    @abstractmethod
    def put_versions(self, known: Iterable[Known]) -> None:
        """Store summaries of versions; they replace older ones."""

    @abstractmethod
    def versions(self) -> list[Known]:
        """Return the summaries of versions, oldest first."""

    @abstractmethod
    def drop_versions(self, versions: Iterable[int]) -> None:
        """Remove the summaries of versions."""

    @abstractmethod
    def beat(self, node: Node) -> None:
        """Store a node's heartbeat; without another within `node_ttl_s` the node is silent."""

    @abstractmethod
    def leave(self, boot_id: str) -> None:
        """Remove a node that ends."""

    @abstractmethod
    def nodes(self) -> list[Node]:
        """Return the live nodes, by name and boot id; raises `RegistryDefect` if there are more than 10,000."""

    @abstractmethod
    def silent(self) -> list[Node]:
        """Return the nodes that neither left nor sent a heartbeat within `node_ttl_s`, up to `silent_s` after the last.

        They may still answer requests.
        """

    @abstractmethod
    def ack(self, ack: Ack) -> None:
        """Store a node's ack of a move, and wake waiters.

        Acks of the newest `acks_max` moves are kept, for each move those of the first `move_acks_max` nodes.
        """

    @abstractmethod
    def acks(self, seq: int) -> list[Ack]:
        """Return the acks of a move, by name and boot id: for each node the first."""

    @abstractmethod
    def wait_acks(self, seq: int, count: int, timeout_s: float) -> list[Ack]:
        """Wait until `count` nodes have acknowledged a move, or for the timeout, and return the acks."""

    @abstractmethod
    def note(self, note: Note) -> None:
        """Append to the audit log, which keeps the last `notes_max` lines; a repeated line is ignored."""

    @abstractmethod
    def notes(self, count_max: int) -> list[Note]:
        """Return the last lines of the audit log in the order of time and move, oldest first."""

    @abstractmethod
    def clear(self) -> None:
        """Remove everything of this model."""

    @abstractmethod
    def close(self) -> None:
        """Close its connections."""


def open_registry(url: str, model: str, settings: RegistrySettings | None = None) -> Registry:
    """Open the registry of a model, without a request to it.

    The URL is `redis://HOST:PORT[/DB]`, `rediss://...`, `unix:///SOCKET` or `sqlite:///FILE`.

    Raises:
        UsageError: The URL is invalid.
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
