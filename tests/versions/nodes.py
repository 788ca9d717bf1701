"""A trainer, a pointer, a registry and nodes that follow: what every version's rows must be is noted when it is cut."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from msgspec import structs

from streamlearn.errors import StreamlearnError
from streamlearn.settings.versions import ReplicaSettings
from streamlearn.table import RowType, TableSet
from streamlearn.testing import ManualClock, MemoryRegistry, wait_until
from streamlearn.versions import Committed, Pointer, PointerLog, Replica, Store, Verdict, VersionRef, write_verdict
from streamlearn.versions.pointer.moves import Canary
from streamlearn.versions.replica.hooks import Hooks
from streamlearn.versions.store.defect import defective
from streamlearn.versions.store.interface import Entry, FileFound, FileWriter, Stored
from streamlearn.versions.store.settings import LoadSettings
from tests.versions.history import MODEL, Trainer, rows_of, serving

__all__ = ["FAST", "Reader", "SpiedHooks", "SpiedStore", "World", "exact"]

# Waits of threads; what is due is told by the clock a node was given.
FAST: dict[str, Any] = {"beat_s": 0.05, "store_poll_s": 0.01, "retry_first_ms": 1, "retry_ms_max": 10, "drain_s": 0.0}

Rows = dict[tuple[str, int], bytes]


def exact(rows: Rows) -> Rows:
    """What a float32 node must have."""
    return rows


class SpiedStore(Store):
    """Another store, whose reads can be watched, held up and refused.

    Args:
        inner: The store.
    """

    def __init__(self, inner: Store) -> None:
        super().__init__(inner.url, inner.settings)
        self.inner = inner
        self.reads: list[str] = []
        self.on_read: Callable[[str], None] = lambda path: None
        self.on_list: Callable[[str], None] = lambda folder: None

    def read(self, path: str, *, bytes_max: int, sha256: str | None = None) -> memoryview:
        self.reads.append(path)
        self.on_read(path)
        return self.inner.read(path, bytes_max=bytes_max, sha256=sha256)

    def entries(self, folder: str) -> list[Entry]:
        self.on_list(folder)
        return self.inner.entries(folder)

    def size(self, path: str) -> int | None:
        self.on_list(path)
        return self.inner.size(path)

    def writer(self, prefix: str, suffix: str) -> FileWriter:
        return self.inner.writer(prefix, suffix)

    def create(self, path: str, data: bytes) -> Stored:
        return self.inner.create(path, data)

    def remove(self, path: str) -> None:
        self.inner.remove(path)

    def leftovers(self, folder: str) -> list[str]:
        return self.inner.leftovers(folder)

    def sweep(self, folder: str, name: str) -> None:
        self.inner.sweep(folder, name)

    def walk(self, folder: str) -> list[FileFound]:
        return self.inner.walk(folder)

    def prune(self, folder: str) -> None:
        self.inner.prune(folder)


class SpiedHooks(Hooks):
    """Hooks that note what they are told, and refuse what they are to."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []
        self.refused: dict[int, StreamlearnError] = {}
        self.loaded: set[VersionRef] = set()
        self.unreadable = 0
        self.ready: dict[VersionRef, TableSet] = {}

    def load(self, version: Committed, parent: VersionRef | None) -> None:
        # Each version follows one that was loaded, also if that was never ready.
        assert parent in self.loaded or (parent is None and version.manifest.kind == "base")
        if version.manifest.version == self.unreadable:
            raise defective(version.folder, "corrupted", "its items are damaged")
        self.loaded.add(version.ref)

    def stage(self, version: Committed, tables: TableSet) -> None:
        number = version.ref.version
        assert version.ref in self.loaded
        self.told.append(("stage", number))
        if number in self.refused:
            raise self.refused[number]
        # The rows are there, though nobody else reads them yet.
        assert tables.retained[-1] == number or number in tables.retained
        self.ready[version.ref] = tables

    def activate(self, version: VersionRef, canary: Canary | None) -> None:
        assert version in self.ready
        self.told.append(("activate", version.version))
        if canary is not None:
            assert canary.version in self.ready
            self.told.append(("canary", canary.version.version))

    def retire(self, version: VersionRef) -> None:
        self.loaded.discard(version)
        if self.ready.pop(version, None) is not None:
            self.told.append(("retire", version.version))


@dataclass
class World:
    """Everything about a model but the nodes.

    Attributes:
        store: Where its versions are.
        trainer: Who writes them.
        truth: The rows of each version.
        refs: The versions, by number; of two of one number the later.
    """

    store: Store
    registry: MemoryRegistry | None = field(default_factory=lambda: MemoryRegistry(MODEL))
    clock: ManualClock = field(default_factory=ManualClock)
    truth: dict[VersionRef, Rows] = field(default_factory=dict)
    refs: dict[int, VersionRef] = field(default_factory=dict)
    row_type: RowType = "float32"
    trainer: Trainer = field(init=False)
    log: PointerLog = field(init=False)

    def __post_init__(self) -> None:
        self.trainer = Trainer(self.store)
        self.log = PointerLog(self.store, MODEL, clock=self.clock)

    def cut(self, *versions: int, shards: int = 1) -> None:
        """Write versions in which keys come, learn, go and come back."""
        for version in versions:
            self.trainer.forget(version + 100, 60)
            self.trainer.learn(version, 120)
            self.trainer.learn(version, 20, "side")
            self.note(self.trainer.cut(version, shards))

    def note(self, committed: Committed) -> VersionRef:
        """Remember the rows of a version the trainer stands at; its judge has nothing against it."""
        ref = committed.ref
        write_verdict(self.store, committed.folder, Verdict(version=ref, outcome="passed"))
        self.truth[ref] = rows_of(self.trainer.tables, ref.version)
        self.refs[ref.version] = ref
        return ref

    def serve(self, version: int | VersionRef, **said: Any) -> Pointer:
        """Move the pointer, in the store and then in the registry."""
        ref = self.refs[version] if isinstance(version, int) else version
        pointer = self.move(lambda now: structs.replace(now, active=ref, previous=now.active, **said))
        if self.registry is not None and not self.registry.is_away:
            self.registry.announce(pointer)
        return pointer

    def move(self, decide: Callable[[Pointer], Pointer]) -> Pointer:
        """Move the pointer in the store alone."""
        return self.log.move(decide, by="test")

    def node(self, name: str = "node-1", **said: Any) -> Replica:
        """A node that was not started."""
        settings = {key: said.pop(key) for key in list(said) if key in ReplicaSettings.__struct_fields__}
        given: dict[str, Any] = {
            "name": name, "registry": self.registry, "clock": self.clock, "settings": ReplicaSettings(**settings),
        }  # fmt: skip
        store, make = said.pop("store", self.store), said.pop("make", lambda: serving(self.row_type))
        store.loading = LoadSettings(fetch_threads=1)
        return Replica(store, MODEL, make, **(given | said))

    def check(self, node: Replica, version: int | None = None, named: Callable[[Rows], Rows] = exact) -> None:
        """What a node answers with is what the trainer had at that version."""
        with node.reading() as read:
            assert version in (None, read.version)
            assert rows_of(read.tables, read.version) == named(self.truth[read.ref])

    def check_all(self, node: Replica) -> None:
        """So is every version it could answer with."""
        for ref in node.status().staged:
            with node.reading(ref.version) as read:
                assert read.ref == ref
                assert rows_of(read.tables, read.version) == self.truth[ref]


class Reader(threading.Thread):
    """Reads all rows again and again, and compares each reading with what the trainer had.

    Args:
        world: What must be.
        node: Who is read.
    """

    def __init__(self, world: World, node: Replica) -> None:
        super().__init__(daemon=True)
        self._world, self._node = world, node
        self.ended = threading.Event()
        self.seen: list[VersionRef] = []
        self.wrong: list[str] = []

    def run(self) -> None:
        while not self.ended.is_set():
            try:
                with self._node.reading() as read:
                    self.seen.append(read.ref)
                    if rows_of(read.tables, read.version) != self._world.truth[read.ref]:
                        self.wrong.append(f"rows of {read.ref} are not those of the trainer")
            except Exception as error:
                self.wrong.append(repr(error))
                return

    def saw(self, version: int) -> None:
        """Wait until its newest whole reading is of a version; being served is not yet being read."""
        wait_until(lambda: self.wrong or (self.seen and self.seen[-1].version == version), f"a reading of {version}")

    def stop(self) -> list[VersionRef]:
        """End it; gives the versions it saw, each run of one once."""
        self.ended.set()
        self.join(240)
        assert not self.is_alive()
        assert self.wrong == []
        assert self.seen
        return [ref for at, ref in enumerate(self.seen) if at == 0 or self.seen[at - 1] != ref]
