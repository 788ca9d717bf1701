"""MemoryRegistry: a registry within one process, for tests, with simulated outages."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import RegistryUnreachable
from streamlearn.settings.versions import RegistrySettings
from streamlearn.versions.format.version_summary import Known
from streamlearn.versions.pointer.moves import Pointer
from streamlearn.versions.pointer.registry import Ack, Node, Note, Registry, by_name, note_order

__all__ = ["MemoryRegistry"]


class MemoryRegistry(Registry):
    """A registry of one model in memory; `clock` decides when a node without a heartbeat is dropped."""

    def __init__(self, model: str, settings: RegistrySettings | None = None, *, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__("memory://registry", model, settings or RegistrySettings())
        self._is_away = False
        self._clock, self._changed = clock, threading.Condition()
        self._pointer: Pointer | None = None
        self._versions: dict[int, Known] = {}
        self._nodes: dict[str, tuple[float, Node]] = {}
        self._acks: dict[int, dict[str, Ack]] = {}
        self._notes: list[Note] = []

    @property
    def is_away(self) -> bool:
        """Set it to simulate an outage: every call raises RegistryUnreachable, also one that waits."""
        return self._is_away

    @is_away.setter
    def is_away(self, is_away: bool) -> None:
        with self._changed:
            self._is_away = is_away
            self._changed.notify_all()

    def announce(self, pointer: Pointer) -> bool:
        """See `Registry`."""
        with self._open():
            is_newer = self._pointer is None or pointer.seq > self._pointer.seq
            self._pointer = pointer if is_newer else self._pointer
            self._changed.notify_all()
            return is_newer

    def pointer(self) -> Pointer | None:
        """See `Registry`."""
        with self._open():
            return self._pointer

    def wait(self, seq: int, timeout_s: float) -> Pointer | None:
        """See `Registry`."""
        with self._open():
            self._changed.wait_for(lambda: self._is_away or self._newer(seq) is not None, timeout_s)
        with self._open():
            return self._newer(seq)

    def put_versions(self, known: Iterable[Known]) -> None:
        """See `Registry`."""
        with self._open():
            self._versions |= {entry.version: entry for entry in known}

    def versions(self) -> list[Known]:
        """See `Registry`."""
        with self._open():
            return [self._versions[version] for version in sorted(self._versions)]

    def drop_versions(self, versions: Iterable[int]) -> None:
        """See `Registry`."""
        with self._open():
            for version in versions:
                self._versions.pop(version, None)

    def beat(self, node: Node) -> None:
        """See `Registry`."""
        with self._open():
            self._nodes[node.boot_id] = (self._clock.monotonic_s(), node)

    def leave(self, boot_id: str) -> None:
        """See `Registry`."""
        with self._open():
            self._nodes.pop(boot_id, None)

    def nodes(self) -> list[Node]:
        """See `Registry`."""
        with self._open():
            return by_name([node for age_s, node in self._aged() if age_s < self.settings.node_ttl_s])

    def silent(self) -> list[Node]:
        """See `Registry`."""
        with self._open():
            return by_name([node for age_s, node in self._aged() if age_s >= self.settings.node_ttl_s])

    def ack(self, ack: Ack) -> None:
        """See `Registry`."""
        with self._open():
            move_acks = self._acks.setdefault(ack.seq, {})
            if len(move_acks) < self.settings.move_acks_max:
                move_acks.setdefault(ack.boot_id, ack)
            for seq in sorted(self._acks)[: -self.settings.acks_max]:
                del self._acks[seq]
            self._changed.notify_all()

    def acks(self, seq: int) -> list[Ack]:
        """See `Registry`."""
        with self._open():
            return by_name(list(self._acks.get(seq, {}).values()))

    def wait_acks(self, seq: int, count: int, timeout_s: float) -> list[Ack]:
        """See `Registry`."""
        with self._open():
            self._changed.wait_for(lambda: self._is_away or len(self._acks.get(seq, {})) >= count, timeout_s)
        return self.acks(seq)

    def note(self, note: Note) -> None:
        """See `Registry`."""
        with self._open():
            if note not in self._notes:
                self._notes = sorted([*self._notes, note], key=note_order)[-self.settings.notes_max :]

    def notes(self, count_max: int) -> list[Note]:
        """See `Registry`."""
        with self._open():
            return self._notes[max(0, len(self._notes) - count_max) :]

    def clear(self) -> None:
        """See `Registry`."""
        with self._open():
            self._pointer = None
            for content in (self._versions, self._nodes, self._acks, self._notes):
                content.clear()

    def close(self) -> None:
        """See `Registry`."""

    def _newer(self, seq: int) -> Pointer | None:
        return self._pointer if self._pointer is not None and self._pointer.seq > seq else None

    def _aged(self) -> list[tuple[float, Node]]:
        """Return the nodes that are not forgotten, with the time since their last heartbeat."""
        now_s = self._clock.monotonic_s()
        return [(now_s - at_s, node) for at_s, node in self._nodes.values() if now_s - at_s < self.settings.silent_s]

    def _open(self) -> threading.Condition:
        """Return the lock that each call holds; raise RegistryUnreachable during an outage."""
        if self._is_away:
            message = f"the registry at {self.url} does not answer"
            raise RegistryUnreachable(message, help="start it; nodes keep following the pointer in the store")
        return self._changed
