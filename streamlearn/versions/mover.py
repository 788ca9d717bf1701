"""Mover: one move of the pointer as operators make it: into the store, to the registry, until nodes have acted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import RegistryUnreachable
from streamlearn.versions.pointer import Pointer
from streamlearn.versions.pointer_log import PointerLog
from streamlearn.versions.registry import Node, Note, Registry, replaced

__all__ = ["Acted", "Moved", "Mover"]

# How long acks alone are waited for, before it is looked whether nodes have acted on a later move.
_LOOK_S = 1.0
# As `node_ttl_s` says of itself.
_BEATS_OF_TTL = 3


@dataclass(frozen=True)
class Acted:
    """That a node has acted.

    Attributes:
        node: Its name.
        boot_id: Of its life.
        version: What it answers with.
        ms: From the moment the move was in the store until the node's word was here.
        own_ms: From when the node heard of it until it had acted, by its own clock.
    """

    node: str
    boot_id: str
    version: int
    ms: float
    own_ms: float


@dataclass(frozen=True)
class Moved:
    """What became of a move.

    Attributes:
        pointer: Where the pointer stands now.
        acted: The nodes that have acted, in the order of their words.
        silent: Those that have not, within the time they were given.
        said: Why nodes could not be asked; empty when they were.
        store_ms: Until the move was in the store.
        starting: Nodes that answer nobody yet, and read the pointer again before they do.
    """

    pointer: Pointer
    acted: tuple[Acted, ...]
    silent: tuple[Node, ...]
    said: str
    store_ms: float
    starting: tuple[Node, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether every node has acted."""
        return not self.silent and not self.said


class Mover:
    """Moves the pointer of a model.

    Args:
        log: The pointer's log.
        registry: Where nodes are; None where there is no registry, and nodes look at the store.
        clock: What time is taken by.
    """

    def __init__(self, log: PointerLog, registry: Registry | None, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._log, self._registry, self._clock = log, registry, clock

    def move(
        self, decide: Callable[[Pointer], Pointer], *, by: str, what: str, reason: str = "", wait_s: float = 0.0
    ) -> Moved:
        """Move it, and wait until every node that answers has acted.

        Args:
            decide: The decision, from where the pointer stands.
            by: Who moves it.
            what: What it is called in the audit log, such as "rollback".
            reason: Why.
            wait_s: How long nodes are waited for; 0 does not wait.

        Raises:
            MoveRefused: It may not be moved that way.
            StoreUnreachable: The store did not answer. The pointer may have moved all the same.
        """
        begin_s = self._clock.monotonic_s()
        pointer = self._log.move(decide, by=by, reason=reason)
        moved_s = self._clock.monotonic_s()
        store_ms = (moved_s - begin_s) * 1e3
        if self._registry is None:
            return Moved(pointer, (), (), "", store_ms)
        try:
            self._registry.announce(pointer)
            self._registry.note(_note(pointer, what))
            # One that starts reads the pointer again before it answers; one that drains may answer still.
            found = self._registry.nodes() if wait_s > 0 else []
        except RegistryUnreachable as error:
            return Moved(pointer, (), (), error.message, store_ms)
        nodes = {one.boot_id: one for one in found if one.state != "starting"}
        starting = tuple(one for one in found if one.state == "starting")
        acted: dict[str, Acted] = {}
        said = ""
        try:
            self._forget(self._registry, found, nodes)
            self._wait(self._registry, pointer, nodes, acted, (moved_s, wait_s))
        except RegistryUnreachable as error:
            said = error.message
        silent = tuple(one for boot_id, one in nodes.items() if boot_id not in acted)
        return Moved(pointer, tuple(acted.values()), silent, said, store_ms, starting)

    def _wait(
        self,
        registry: Registry,
        pointer: Pointer,
        wanted: dict[str, Node],
        acted: dict[str, Acted],
        time_s: tuple[float, float],
    ) -> None:
        moved_s, wait_s = time_s
        while wanted.keys() - acted.keys():
            left_s = moved_s + wait_s - self._clock.monotonic_s()
            if left_s <= 0:
                break
            words = registry.wait_acks(pointer.seq, len(acted) + 1, min(left_s, _LOOK_S))
            ms = (self._clock.monotonic_s() - moved_s) * 1e3
            for word in words:
                acted.setdefault(word.boot_id, Acted(word.name, word.boot_id, word.version, ms, word.took_ms))
            if wanted.keys() - acted.keys():
                found = registry.nodes()
                self._forget(registry, found, wanted)
                # A node that heard of a later move before it had acted says nothing of this one.
                for one in found:
                    if one.boot_id in wanted and one.seq > pointer.seq:
                        acted.setdefault(one.boot_id, Acted(one.name, one.boot_id, one.active, ms, ms))

    @staticmethod
    def _forget(registry: Registry, found: Sequence[Node], wanted: dict[str, Node]) -> None:
        """Wait no more for nodes in whose place others are, though the registry has not forgotten them yet."""
        for boot_id in replaced(found, registry.settings.node_ttl_s * 1_000 / _BEATS_OF_TTL):
            wanted.pop(boot_id, None)


def _note(pointer: Pointer, what: str) -> Note:
    version = 0 if pointer.active is None else pointer.active.version
    return Note(
        wall_ms=pointer.wall_ms, by=pointer.by, what=what, seq=pointer.seq, version=version, reason=pointer.reason
    )
