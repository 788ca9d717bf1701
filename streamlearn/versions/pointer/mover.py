"""Mover: one move of the pointer as operators make it: into the store, to the registry, until nodes have acted."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import RegistryDefect, RegistryUnreachable, StoreError, StreamlearnError
from streamlearn.versions.pointer.moves import Pointer
from streamlearn.versions.pointer.pointer_log import PointerLog
from streamlearn.versions.pointer.rebuild import is_of
from streamlearn.versions.pointer.registry import Node, Note, Registry, replaced

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
        silent: Those that do not serve what the store's newest move wants, after the time they were given.
        said: Why nodes could not be asked, or that none is known; empty when they were asked.
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
        """Whether every node has acted, and one is known or none was to be asked."""
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

        A node has acted when it serves what the newest move in the store wants. Where the registry lost what it knew,
        or knows no node, nodes have a beat to say that they are there.

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
        wait, said = _Wait(self._registry, self._log, pointer, self._clock), ""
        try:
            knew = self._announce(self._registry, pointer)
            self._registry.note(_note(pointer, what))
            if wait_s > 0:
                wait.run(moved_s, wait_s, is_new=not knew)
                said = "" if wait.knows_nodes else "the registry knows of no nodes"
        except (RegistryUnreachable, StoreError) as error:
            said = error.message
        return Moved(pointer, tuple(wait.acted.values()), wait.silent, said, store_ms, wait.starting)

    def _announce(self, registry: Registry, pointer: Pointer) -> bool:
        """Tell the registry of a move. Gives whether it knew the move before, and so the nodes too."""
        held: Pointer | None = None
        with suppress(RegistryDefect):
            held = registry.pointer()
        if not registry.announce(pointer) and not is_of(registry, self._log):
            # What it held was no move of the store, and would keep nodes from hearing of this one.
            registry.clear()
            registry.announce(pointer)
            return False
        return pointer.seq == 1 or (held is not None and held.seq >= pointer.seq - 1)


class _Wait:
    """Which nodes are waited for after a move, and which have acted on it."""

    def __init__(self, registry: Registry, log: PointerLog, pointer: Pointer, clock: Clock) -> None:
        self._registry, self._log, self._pointer, self._clock = registry, log, pointer, clock
        self._beat_s = registry.settings.node_ttl_s / _BEATS_OF_TTL
        self._wanted: dict[str, Node] = {}
        self.acted: dict[str, Acted] = {}
        self.starting: tuple[Node, ...] = ()
        self.knows_nodes = False

    @property
    def silent(self) -> tuple[Node, ...]:
        """Those that have not acted."""
        return tuple(one for boot_id, one in self._wanted.items() if boot_id not in self.acted)

    def run(self, moved_s: float, wait_s: float, *, is_new: bool) -> None:
        """Wait until all have acted, or the time is over.

        Args:
            moved_s: When the pointer was moved.
            wait_s: How long they have from then.
            is_new: Whether nodes may be there that the registry does not know: they say so with their next beat.
        """
        self._see(is_open=True)
        open_s = self._clock.monotonic_s() + (self._beat_s if is_new or not self.knows_nodes else 0.0)
        end_s, heard = moved_s + wait_s, 0
        while (now_s := self._clock.monotonic_s()) < end_s and (self.silent or now_s < open_s):
            is_open, until_s = now_s < open_s, end_s if self.silent else min(end_s, open_s)
            words = self._registry.wait_acks(self._pointer.seq, heard + 1, min(until_s - now_s, _LOOK_S))
            heard, ms = len(words), (self._clock.monotonic_s() - moved_s) * 1e3
            for word in words:
                self.knows_nodes = True
                if word.version == _active(self._pointer):
                    self.acted.setdefault(word.boot_id, Acted(word.name, word.boot_id, word.version, ms, word.took_ms))
            if self.silent or is_open:
                self._see(is_open=is_open)
                self._see_later(ms)

    def _see(self, *, is_open: bool) -> None:
        """Look who is there; who comes later is waited for only while that is open."""
        found = self._registry.nodes()
        self.knows_nodes = self.knows_nodes or bool(found)
        self.starting = tuple(one for one in found if one.state == "starting")
        # One that starts reads the pointer again before it answers; one that drains may answer still.
        self._wanted |= {
            one.boot_id: one for one in found if one.boot_id in self._wanted or (is_open and one.state != "starting")
        }
        # Nor are those waited for in whose place others are, though the registry has not forgotten them yet.
        for boot_id in replaced(found, self._beat_s * 1_000):
            self._wanted.pop(boot_id, None)

    def _see_later(self, ms: float) -> None:
        """A node that heard of a later move before it had acted on this one says nothing of this one."""
        later = [one for one in self.silent if one.seq >= self._pointer.seq]
        # Without the store nobody can say what they are to serve.
        with suppress(StreamlearnError):
            newest = self._log.newest() if later else self._pointer
            for one in later:
                if one.seq <= newest.seq and one.active == _active(newest):
                    self.acted[one.boot_id] = Acted(one.name, one.boot_id, one.active, ms, ms)


def _active(pointer: Pointer) -> int:
    return 0 if pointer.active is None else pointer.active.version


def _note(pointer: Pointer, what: str) -> Note:
    return Note(
        wall_ms=pointer.wall_ms,
        by=pointer.by,
        what=what,
        seq=pointer.seq,
        version=_active(pointer),
        reason=pointer.reason,
    )
