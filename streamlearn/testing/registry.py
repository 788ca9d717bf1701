"""MemoryRegistry: a registry within one process, for tests; it can be taken away and come back."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import RegistryUnreachable
from streamlearn.settings import RegistrySettings
from streamlearn.versions.known import Known
from streamlearn.versions.pointer import Pointer
from streamlearn.versions.registry import Ack, Node, Note, Registry

__all__ = ["MemoryRegistry"]


class MemoryRegistry(Registry):
    """A registry in memory.

    Args:
        model: Of which model.
        settings: Limits.
        clock: When nodes were heard of.

    Attributes:
        is_away: Set it, and every call raises as if nobody answered.
    """

    def __init__(self, model: str, settings: RegistrySettings | None = None, *, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__("memory://registry", model, settings or RegistrySettings())
        self.is_away = False
        self._clock, self._changed = clock, threading.Condition()
        self._pointer: Pointer | None = None
        self._versions: dict[int, Known] = {}
        self._nodes: dict[str, tuple[float, Node]] = {}
        self._acks: dict[int, dict[str, Ack]] = {}
        self._notes: list[Note] = []

    def announce(self, pointer: Pointer) -> bool:
        """See `Registry`."""
        with self._there():
            is_newer = self._pointer is None or pointer.seq > self._pointer.seq
            self._pointer = pointer if is_newer else self._pointer
            self._changed.notify_all()
            return is_newer

    def pointer(self) -> Pointer | None:
        """See `Registry`."""
        with self._there():
            return self._pointer

    def wait(self, seq: int, timeout_s: float) -> Pointer | None:
        """See `Registry`."""
        with self._there():
            self._changed.wait_for(
                lambda: self.is_away or (self._pointer is not None and self._pointer.seq > seq), timeout_s
            )
        with self._there():
            return self._pointer if self._pointer is not None and self._pointer.seq > seq else None

    def put_versions(self, known: Iterable[Known]) -> None:
        """See `Registry`."""
        with self._there():
            self._versions |= {one.version: one for one in known}

    def versions(self) -> list[Known]:
        """See `Registry`."""
        with self._there():
            return [self._versions[version] for version in sorted(self._versions)]

    def drop_versions(self, versions: Iterable[int]) -> None:
        """See `Registry`."""
        with self._there():
            for version in versions:
                self._versions.pop(version, None)

    def beat(self, node: Node) -> None:
        """See `Registry`."""
        with self._there():
            self._nodes[node.boot_id] = (self._clock.monotonic_s(), node)

    def leave(self, boot_id: str) -> None:
        """See `Registry`."""
        with self._there():
            self._nodes.pop(boot_id, None)

    def nodes(self) -> list[Node]:
        """See `Registry`."""
        with self._there():
            oldest_s = self._clock.monotonic_s() - self.settings.node_ttl_s
            return sorted(
                (node for heard_s, node in self._nodes.values() if heard_s > oldest_s), key=lambda one: one.name
            )

    def ack(self, ack: Ack) -> None:
        """See `Registry`."""
        with self._there():
            self._acks.setdefault(ack.seq, {}).setdefault(ack.boot_id, ack)
            for seq in sorted(self._acks)[: -self.settings.acks_max]:
                del self._acks[seq]
            self._changed.notify_all()

    def acks(self, seq: int) -> list[Ack]:
        """See `Registry`."""
        with self._there():
            return list(self._acks.get(seq, {}).values())

    def wait_acks(self, seq: int, count: int, timeout_s: float) -> list[Ack]:
        """See `Registry`."""
        with self._there():
            self._changed.wait_for(lambda: self.is_away or len(self._acks.get(seq, {})) >= count, timeout_s)
        return self.acks(seq)

    def note(self, note: Note) -> None:
        """See `Registry`."""
        with self._there():
            self._notes = [*self._notes, note][-self.settings.notes_max :]

    def notes(self, count_max: int) -> list[Note]:
        """See `Registry`."""
        with self._there():
            return self._notes[-count_max:]

    def clear(self) -> None:
        """See `Registry`."""
        with self._there():
            self._pointer = None
            for held in (self._versions, self._nodes, self._acks):
                held.clear()
            self._notes = []

    def close(self) -> None:
        """See `Registry`."""

    def _newer(self, seq: int) -> Pointer | None:
        return self._pointer if self._pointer is not None and self._pointer.seq > seq else None

    def _there(self) -> threading.Condition:
        """What every call holds, when the registry answers."""
        if self.is_away:
            message = f"the registry at {self.url} does not answer"
            raise RegistryUnreachable(message, help="start it; the pointer in the store goes on being followed")
        return self._changed
