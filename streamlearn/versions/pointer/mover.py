"""Mover: an operator's move of the pointer: write it to the store, announce it, and wait until nodes act."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import RegistryDefect, RegistryUnreachable, StoreError, StreamlearnError
from streamlearn.versions.pointer.moves import Pointer
from streamlearn.versions.pointer.pointer_log import PointerLog
from streamlearn.versions.pointer.rebuild import is_of, is_stuck
from streamlearn.versions.pointer.registry import Node, Note, Registry, missing, replaced

__all__ = ["Acted", "Moved", "Mover"]

# Timeout of a wait for acks, after which the nodes' heartbeats are checked for a later move.
_LOOK_S = 1.0
# `node_ttl_s` is this many heartbeats.
_BEATS_OF_TTL = 3


@dataclass(frozen=True)
class Acted:
    """A node that has acted on a move.

    Attributes:
        version: The version it answers with.
        ms: From the write to the store until the node's ack arrived here.
        own_ms: From when the node learned of the move until it had acted, by its own clock.
    """

    node: str
    boot_id: str
    version: int
    ms: float
    own_ms: float


@dataclass(frozen=True)
class Moved:
    """The result of a move.

    Attributes:
        acted: The nodes that have acted, in the order of their acks.
        silent: The nodes that did not follow the store's newest move in time.
        said: Why the nodes are unknown, in words; empty if they were asked, or none were to be asked.
        store_ms: Time until the move was in the store.
        starting: Nodes that do not answer requests yet, and read the pointer again before they do.
    """

    pointer: Pointer
    acted: tuple[Acted, ...]
    silent: tuple[Node, ...]
    said: str
    store_ms: float
    starting: tuple[Node, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether every node has acted, and nodes are known unless none were to be asked."""
        return not self.silent and not self.said


class Mover:
    """Moves the pointer of a model. Without a registry, nodes read the pointer from the store."""

    def __init__(self, log: PointerLog, registry: Registry | None, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._log, self._registry, self._clock = log, registry, clock

    def move(
        self, decide: Callable[[Pointer], Pointer], *, by: str, what: str, reason: str = "", wait_s: float = 0.0
    ) -> Moved:
        """Move the pointer, and wait until every node that answers requests has acted.

        A node has acted when it serves what the store's newest move asks for. If the registry lost its contents, or
        knows no node, nodes get the time of one heartbeat to report.

        `decide` maps the current pointer to the next. `what` is the audit log's name of the move, such as "rollback". A
        `wait_s` of 0 does not wait for nodes.

        Raises:
            MoveRefused: The decision refused the move.
            StoreUnreachable: The store did not answer. The pointer may have moved nevertheless.
        """
        begin_s = self._clock.monotonic_s()
        pointer = self._log.move(decide, by=by, reason=reason)
        moved_s = self._clock.monotonic_s()
        store_ms = (moved_s - begin_s) * 1e3
        if self._registry is None:
            return Moved(pointer, (), (), "", store_ms)
        wait, problem = _Wait(self._registry, self._log, pointer, self._clock), ""
        try:
            is_complete = self._announce(self._registry, pointer)
            self._registry.note(Note.of_move(pointer, what))
            if wait_s > 0:
                wait.run(moved_s, wait_s, is_new=not is_complete)
                problem = "" if wait.knows_nodes else "the registry knows of no nodes"
        except (RegistryUnreachable, StoreError) as error:
            problem = error.message
        return Moved(
            pointer, tuple(wait.acted.values()), (*wait.silent, *wait.missing), problem, store_ms, wait.starting
        )

    def _announce(self, registry: Registry, pointer: Pointer) -> bool:
        """Announce a move, and return whether the registry had the move before it, and so the nodes too."""
        copy: Pointer | None = None
        with suppress(RegistryDefect):
            copy = registry.pointer()
        if not registry.announce(pointer) and (not is_of(registry, self._log) or is_stuck(registry, pointer)):
            # Its pointer is not a move of this store, or has a wrong number, and would hide this move from nodes.
            registry.clear()
            registry.announce(pointer)
            return False
        return pointer.seq == 1 or (copy is not None and copy.seq >= pointer.seq - 1)


class _Wait:
    """The nodes to wait for after a move, and those that have acted on it."""

    def __init__(self, registry: Registry, log: PointerLog, pointer: Pointer, clock: Clock) -> None:
        self._registry, self._log, self._pointer, self._clock = registry, log, pointer, clock
        self._beat_s = registry.settings.node_ttl_s / _BEATS_OF_TTL
        self._expected: dict[str, Node] = {}
        self.acted: dict[str, Acted] = {}
        self.starting: tuple[Node, ...] = ()
        # Nodes that send no heartbeat: they may still answer, but are not waited for.
        self.missing: tuple[Node, ...] = ()
        self.knows_nodes = False

    @property
    def silent(self) -> tuple[Node, ...]:
        """The nodes that have not acted."""
        return tuple(node for boot_id, node in self._expected.items() if boot_id not in self.acted)

    def run(self, moved_s: float, wait_s: float, *, is_new: bool) -> None:
        """Wait until all nodes have acted, or until `wait_s` after the move.

        `is_new` says that the registry may not know all nodes before their next heartbeat.
        """
        self._look(is_open=True)
        open_s = self._clock.monotonic_s() + (self._beat_s if is_new or not self.knows_nodes else 0.0)
        end_s, count = moved_s + wait_s, 0
        while (now_s := self._clock.monotonic_s()) < end_s and (self.silent or now_s < open_s):
            is_open, until_s = now_s < open_s, end_s if self.silent else min(end_s, open_s)
            acks = self._registry.wait_acks(self._pointer.seq, count + 1, min(until_s - now_s, _LOOK_S))
            count, ms = len(acks), (self._clock.monotonic_s() - moved_s) * 1e3
            for ack in acks:
                self.knows_nodes = True
                if ack.version == self._pointer.active_version:
                    self.acted.setdefault(ack.boot_id, Acted(ack.name, ack.boot_id, ack.version, ms, ack.took_ms))
            if self.silent or is_open:
                self._look(is_open=is_open)
                self._look_for_later_move(ms)

    def _look(self, *, is_open: bool) -> None:
        """Read the nodes; a node that appears later is expected only while `is_open`."""
        nodes = self._registry.nodes()
        # One that was starting never answered.
        silent = [node for node in self._registry.silent() if node.state != "starting"]
        self.missing = tuple(node for node in missing(silent, nodes) if node.boot_id not in self._expected)
        self.knows_nodes = self.knows_nodes or bool(nodes) or bool(self.missing)
        self.starting = tuple(node for node in nodes if node.state == "starting")
        # A starting node reads the pointer again before it answers; a draining one may still answer.
        for node in nodes:
            if node.boot_id in self._expected or (is_open and node.state != "starting"):
                self._expected[node.boot_id] = node
        # The registry may still list processes that others have replaced.
        for boot_id in replaced(nodes, self._beat_s * 1_000):
            self._expected.pop(boot_id, None)

    def _look_for_later_move(self, ms: float) -> None:
        """Accept nodes that follow a later move; they send no ack of this one."""
        later = [node for node in self.silent if node.seq >= self._pointer.seq]
        # Without the store, the version they should serve is unknown.
        with suppress(StreamlearnError):
            newest = self._log.newest() if later else self._pointer
            for node in later:
                if node.seq <= newest.seq and node.active == newest.active_version:
                    self.acted[node.boot_id] = Acted(node.name, node.boot_id, node.active, ms, ms)
