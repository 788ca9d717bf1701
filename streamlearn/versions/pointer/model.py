"""Model: a model's store, registry, history and pointer, for commands and the console. Each is opened at first use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

from msgspec import structs

from streamlearn.errors import RegistryUnreachable, StoreUnreachable, UsageError

if TYPE_CHECKING:
    from streamlearn.settings import Settings
    from streamlearn.versions.format.history import History
    from streamlearn.versions.format.version_summary import Known
    from streamlearn.versions.pointer.mover import Moved, Mover
    from streamlearn.versions.pointer.moves import Pointer
    from streamlearn.versions.pointer.pointer_log import PointerLog
    from streamlearn.versions.pointer.registry import Ack, Node, Registry
    from streamlearn.versions.store.interface import Store

    Decision: TypeAlias = Callable[[Pointer, Sequence[Known]], Pointer]

__all__ = ["Model"]

# A node acknowledges few moves between two heartbeats; and how many moves are read for all nodes.
_MOVES_AFTER, _MOVES_READ = 4, 16


@dataclass(frozen=True)
class Model:
    """A model, its location and its settings.

    Attributes:
        store_url: The URL of its store.
        url: The URL of its registry; empty for none.
        is_alone: Whether the user said that there is no registry.
    """

    name: str
    store_url: str
    url: str
    settings: Settings
    is_alone: bool = False

    @cached_property
    def store(self) -> Store:
        """Its store."""
        from streamlearn.versions.store.interface import open_store

        return open_store(self.store_url, settings=self.settings.versions)

    @cached_property
    def registry(self) -> Registry | None:
        """Its registry, if it has one."""
        from streamlearn.versions.pointer.registry import open_registry

        return open_registry(self.url, self.name, self.settings.registry) if self.url else None

    @cached_property
    def log(self) -> PointerLog:
        """The moves of its pointer."""
        from streamlearn.versions.pointer.pointer_log import PointerLog

        log = PointerLog(self.store, self.name)
        if self.registry is not None:
            with suppress(RegistryUnreachable):
                copy = self.registry.pointer()
                log.begin_near(0 if copy is None else copy.seq)
        return log

    @cached_property
    def mover(self) -> Mover:
        """The mover of its pointer."""
        from streamlearn.versions.pointer.mover import Mover

        return Mover(self.log, self.registry)

    @cached_property
    def history(self) -> History:
        """Its history, which uses the registry's summaries."""
        from streamlearn.versions.format.history import History

        known: Sequence[Known] = ()
        if self.registry is not None:
            with suppress(RegistryUnreachable):
                known = self.registry.versions()
        return History(self.store, self.name, known)

    def forget_history(self) -> None:
        """Read all versions again at the next use, because the store was restored from an older copy."""
        self.__dict__.pop("history", None)

    @property
    def pointer(self) -> Pointer:
        """The newest move of its pointer."""
        return self.log.newest()

    def known(self) -> tuple[Known, ...]:
        """Return its versions, oldest first; raises `UsageError` if it has none."""
        known = self.history.read()
        if not known:
            message = f"{self.store.url} has no version of {self.name!r}"
            raise UsageError(message, help="check the model's name, and --store or STREAMLEARN_STORE")
        return known

    def known_at(self, pointer: Pointer, known: Sequence[Known]) -> Sequence[Known]:
        """Read its versions again if the pointer needs one that is newer than those read before."""
        is_covered = all(ref.version <= known[-1].version for ref in pointer.needed.values())
        return known if is_covered else self.known()

    def one(self, version: int) -> Known:
        """Return one of its versions; raises `UsageError` if it does not exist."""
        known = self.known()
        for entry in known:
            if entry.version == version:
                return entry
        newest = ", ".join(str(entry.version) for entry in known[-5:])
        message = f"version {version} of {self.name!r} does not exist"
        raise UsageError(message, help=f"the newest are {newest}; see `streamlearn versions MODEL`")

    def nodes(self) -> tuple[list[Node], str]:
        """Return the live nodes, or the reason why they are unknown."""
        if self.registry is None:
            return [], "no registry was named"
        try:
            return self._acknowledged(self.registry.nodes()), ""
        except RegistryUnreachable as error:
            return [], error.message

    def missing(self, nodes: Sequence[Node]) -> list[Node]:
        """Return the nodes that are silent and that no live node has replaced; none if they are unknown."""
        from streamlearn.versions.pointer.registry import missing

        if self.registry is None:
            return []
        try:
            return missing(self._acknowledged(self.registry.silent()), nodes)
        except RegistryUnreachable:
            return []

    def _acknowledged(self, nodes: list[Node]) -> list[Node]:
        """Return nodes with the moves that they have acknowledged since their heartbeat, also silent ones.

        A node acknowledges each move at once, so its acknowledgement counts until its next heartbeat.
        """
        assert self.registry is not None
        with suppress(RegistryUnreachable):
            newest = self.registry.pointer()
            if newest is None:
                return nodes
            after = (range(node.seq + 1, min(node.seq + _MOVES_AFTER, newest.seq) + 1) for node in nodes)
            seqs = sorted({newest.seq, *(seq for few in after for seq in few)})[-_MOVES_READ:]
            acks = [{ack.boot_id: ack for ack in self.registry.acks(seq)} for seq in seqs]
            for of_move in acks:
                nodes = [_with_ack(node, of_move.get(node.boot_id)) for node in nodes]
        return nodes

    def move(
        self, decide: Decision, *, what: str, by: str, reason: str = "", wait_s: float = 0.0
    ) -> tuple[Moved, Sequence[Known]]:
        """Move its pointer, wait for nodes as `Mover.move` does, and return the result and the history it was based on.

        `decide` gets the current pointer and the current history. Only a rollback, which must be fast, relies on the
        registry's summaries: others could make nodes serve a rejected version that a stranger calls passed there. Even
        a rollback takes its target from the store, and once the move is written it is checked against all versions
        after the target.
        """
        if what == "rollback":
            return self._roll_back(decide, by=by, reason=reason, wait_s=wait_s)
        deciding = replace(self, url="", is_alone=True)
        known = deciding.known()

        def decided(current: Pointer) -> Pointer:
            return decide(current, deciding.known_at(current, known))

        moved = self.mover.move(decided, by=by, what=what, reason=reason, wait_s=wait_s)
        return moved, deciding.known_at(moved.pointer, known)

    def _roll_back(self, decide: Decision, *, by: str, reason: str, wait_s: float) -> tuple[Moved, Sequence[Known]]:
        from streamlearn.versions.pointer.moves import rollback

        known: Sequence[Known] = ()

        def decided(current: Pointer) -> Pointer:
            nonlocal known
            known = self.known()
            while True:
                pointer = decide(current, self.known_at(current, known))
                target = pointer.active_version
                if not self.history.distrust(range(target, target + 1)):
                    return pointer
                known = self.known()

        moved = self.mover.move(decided, by=by, what="rollback", reason=reason, wait_s=wait_s)
        if not self.history.distrust(range(moved.pointer.active_version, sys.maxsize)):
            return moved, self.known_at(moved.pointer, known)
        try:
            known = self.known()
        except StoreUnreachable as error:
            return replace(moved, said=moved.said or f"newer versions could not be checked: {error.message}"), known

        def again(current: Pointer) -> Pointer:
            is_newest = current.seq == moved.pointer.seq
            return rollback(current, known, current.active_version) if is_newest else current

        if again(moved.pointer).taints != moved.pointer.taints:  # the registry hid versions or reverts
            moved = self.mover.move(again, by=by, what="rollback", reason=reason, wait_s=wait_s)
        return moved, known

    def close(self) -> None:
        """Close its registry, if it was opened."""
        registry = self.__dict__.get("registry")
        if registry is not None:
            registry.close()


def _with_ack(node: Node, ack: Ack | None) -> Node:
    """Return a node as it is since an acknowledgement that is newer than its heartbeat.

    Both times are of the node's clock. A later heartbeat has a lower number if the store refuted the move.
    """
    if ack is None or ack.seq <= node.seq or ack.wall_ms <= node.wall_ms:
        return node
    return structs.replace(node, seq=ack.seq, active=ack.version)
