"""Staged: the versions that one set of tables holds, and who reads them. It does not know why it holds them."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from streamlearn.errors import TableBusy, VersionRefused
from streamlearn.table import TableSet
from streamlearn.table.pin import Pin
from streamlearn.versions.format.record import VersionRef
from streamlearn.versions.format.writer import Committed

__all__ = ["Staged"]


class Staged:
    """A set of tables with the versions in it.

    One thread stages and retires; any number of them enter, and one moves what is active.

    Args:
        tables: The tables, empty.

    Attributes:
        tables: The tables.
        versions: Versions whose rows are there, oldest first.
        ready: Those that may be read.
        active: The one that is read when none is named.
        answered: Those that were active at some time.
    """

    def __init__(self, tables: TableSet) -> None:
        self.tables = tables
        self.versions: dict[VersionRef, Committed] = {}
        self.ready: dict[int, VersionRef] = {}
        self.active: VersionRef | None = None
        self.answered: frozenset[VersionRef] = frozenset()
        self._lock = threading.Lock()
        self._readers = 0
        self._is_open = True

    @property
    def refs(self) -> tuple[VersionRef, ...]:
        """The versions whose rows are there, oldest first."""
        return tuple(self.versions)

    @property
    def newest(self) -> VersionRef | None:
        """The version that the next one follows."""
        return next(reversed(self.versions), None)

    @property
    def readers(self) -> int:
        """Who is inside."""
        return self._readers

    @property
    def is_open(self) -> bool:
        """Whether readers may enter."""
        return self._is_open

    @property
    def bytes(self) -> int:
        """The memory of the tables."""
        return sum(table.stats().bytes for table in self.tables.tables.values())

    def is_ready(self, ref: VersionRef | None) -> bool:
        """Whether a version may be read."""
        return ref is not None and self.ready.get(ref.version) == ref

    def are_ready(self, refs: Iterable[VersionRef]) -> bool:
        """Whether all of them may be read."""
        return all(self.is_ready(ref) for ref in refs)

    def add(self, version: Committed) -> None:
        """Note that its rows are there."""
        self.versions = self.versions | {version.ref: version}

    def make_ready(self, ref: VersionRef) -> None:
        """Let a version be read."""
        with self._lock:
            self.ready = self.ready | {ref.version: ref}

    def activate(self, ref: VersionRef) -> bool:
        """Let readers that name no version read this one; one store. Gives whether it may be read."""
        with self._lock:
            if not self.is_ready(ref):
                return False
            self.tables.activate(ref.version)
            self.active, self.answered = ref, self.answered | {ref}
            return True

    def retire(self, ref: VersionRef, *, wait_ms_max: int, threads: int) -> bool:
        """Keep a version no longer; gives whether it is gone. One that is read, active or the newest stays."""
        with self._lock:
            if ref in (self.active, self.newest):
                return False
            was_ready = self.is_ready(ref)
            self.ready = {version: one for version, one in self.ready.items() if one != ref}
        try:
            self.tables.retire(ref.version, wait_ms_max=wait_ms_max, threads=threads)
        except (TableBusy, VersionRefused):
            if was_ready:
                self.make_ready(ref)
            return False
        self.versions = {one: version for one, version in self.versions.items() if one != ref}
        self.answered -= {ref}
        return True

    def enter(self, version: int | None) -> tuple[VersionRef, Pin] | None:
        """Begin to read a version, or the active one; None when nobody may enter.

        Raises:
            VersionRefused: The version is not here.
        """
        with self._lock:
            if not self._is_open or self.active is None:
                return None
            ref = self.active if version is None else self.ready.get(version)
            if ref is None:
                there = ", ".join(str(one) for one in sorted(self.ready))
                message = f"this node does not keep version {version}"
                raise VersionRefused(message, help=f"ask for one of {there}, or do not name a version")
            pin = self.tables.pin(ref.version)
            self._readers += 1
            return ref, pin

    def leave(self) -> None:
        """End what `enter` began; its pin is closed."""
        with self._lock:
            self._readers -= 1

    def open(self) -> None:
        """Let readers enter."""
        with self._lock:
            self._is_open = True

    def close(self) -> None:
        """Let nobody enter any more; who is inside goes on."""
        with self._lock:
            self._is_open = False

    def free(self) -> None:
        """Let go of the tables, which nobody reads and nobody can enter any more, whoever still knows of this."""
        assert not self._is_open
        assert not self._readers
        del self.tables
