"""StagedVersions: the versions in one set of tables, and the leases of readers. It does not know why it holds them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from streamlearn.errors import NodeNotReady, TableBusy, VersionRefused
from streamlearn.table import TableSet
from streamlearn.table.pin import Pin
from streamlearn.versions.format.record import VersionRef
from streamlearn.versions.format.writer import Committed

__all__ = ["StagedVersions", "VersionLease"]


class StagedVersions:
    """A set of tables and the versions in it.

    One thread stages and retires; any number of threads enter, and one changes the active version.

    Attributes:
        versions: Versions whose rows are there, oldest first.
        ready: Those that may be read, by number.
        active: The version that readers get when they name none.
        answered: Those that were active at some time.
    """

    def __init__(self, tables: TableSet) -> None:
        self.tables = tables
        self.versions: dict[VersionRef, Committed] = {}
        self.ready: dict[int, VersionRef] = {}
        self.active: VersionRef | None = None
        self.answered: frozenset[VersionRef] = frozenset()
        self.readers = 0
        self.is_open = True
        self._lock = threading.Lock()

    @property
    def refs(self) -> tuple[VersionRef, ...]:
        """The versions whose rows are there, oldest first."""
        return tuple(self.versions)

    @property
    def newest(self) -> VersionRef | None:
        """The version that the next one follows."""
        return next(reversed(self.versions), None)

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
        """Record that the rows of a version are there."""
        self.versions = self.versions | {version.ref: version}

    def make_ready(self, ref: VersionRef) -> None:
        """Let a version be read."""
        with self._lock:
            self.ready = self.ready | {ref.version: ref}

    def activate(self, ref: VersionRef) -> bool:
        """Make a version the active one with a single store, if it may be read; returns whether it may."""
        with self._lock:
            if not self.is_ready(ref):
                return False
            self.tables.activate(ref.version)
            self.active, self.answered = ref, self.answered | {ref}
            return True

    def retire(self, ref: VersionRef, *, wait_ms_max: int, threads: int) -> bool:
        """Drop a version, unless it is read, active or the newest; returns whether it is gone."""
        with self._lock:
            if ref in (self.active, self.newest):
                return False
            was_ready = self.is_ready(ref)
            self.ready = {version: other for version, other in self.ready.items() if other != ref}
        try:
            self.tables.retire(ref.version, wait_ms_max=wait_ms_max, threads=threads)
        except (TableBusy, VersionRefused):
            if was_ready:
                self.make_ready(ref)
            return False
        self.versions = {other: version for other, version in self.versions.items() if other != ref}
        self.answered -= {ref}
        return True

    def enter(self, version: int | None) -> tuple[VersionRef, Pin] | None:
        """Begin to read a version, or the active one; None if tables are closed, `VersionRefused` if it is absent."""
        with self._lock:
            if not self.is_open or self.active is None:
                return None
            ref = self.active if version is None else self.ready.get(version)
            if ref is None:
                kept = ", ".join(str(number) for number in sorted(self.ready))
                message = f"this node does not keep version {version}"
                raise VersionRefused(message, help=f"ask for one of {kept}, or do not name a version")
            pin = self.tables.pin(ref.version)
            self.readers += 1
            return ref, pin

    def leave(self) -> None:
        """End what `enter` began; the reader has closed its pin."""
        with self._lock:
            self.readers -= 1

    def open(self) -> None:
        """Let readers enter."""
        with self._lock:
            self.is_open = True

    def close(self) -> None:
        """Let no more readers enter; present readers continue."""
        with self._lock:
            self.is_open = False

    def free(self) -> None:
        """Release the tables, which must be closed and without readers, even while other references to this remain."""
        assert not self.is_open
        assert not self.readers
        del self.tables


class VersionLease:
    """A version that stays readable and the same until the context is left.

    `current` returns the tables that answer, or None before there are any. `wanted` is the number of a version; None
    for the active one. Calls of the tables take `at`.
    """

    __slots__ = ("_current", "_staged", "_wanted", "at", "ref", "tables", "version")

    tables: TableSet
    version: int
    ref: VersionRef
    at: Pin

    def __init__(self, current: Callable[[], StagedVersions | None], wanted: int | None) -> None:
        self._current, self._wanted = current, wanted
        self._staged: StagedVersions | None = None

    def __enter__(self) -> VersionLease:
        staged = self._current()
        entered = None if staged is None else staged.enter(self._wanted)
        while entered is None:
            # Other tables may have replaced these just now.
            before, staged = staged, self._current()
            if staged is None or staged is before:
                message = "this node has no version to answer with"
                raise NodeNotReady(message, help="it is starting or rebuilding its tables; ask another node, or wait")
            entered = staged.enter(self._wanted)
        assert staged is not None
        self._staged, self.tables = staged, staged.tables
        self.ref, self.at = entered
        self.version = self.ref.version
        return self

    def __exit__(self, *exception: object) -> None:
        staged, self._staged = self._staged, None
        assert staged is not None
        self.at.close()
        # A lease that is kept must not keep the tables.
        del self.tables
        staged.leave()
