"""A small trainer that writes its versions: what tests load back, and damage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from streamlearn.errors import TableBusy
from streamlearn.features import TableSpec
from streamlearn.native import native
from streamlearn.table import Adagrad, Admission, Changes, RowType, TableOptions, TableSet
from streamlearn.table.options import Adam
from streamlearn.testing import ManualClock
from streamlearn.versions import Committed, Cut, Head, Store, VersionWriter, table_record
from streamlearn.versions.format.manifest import FileEntry, Position
from streamlearn.versions.store.settings import FileSettings

__all__ = ["MODEL", "OPTIONS", "PARTS", "Trainer", "everything", "rows_of", "serving", "split"]

MODEL = "ctr"
_READS_MAX = 100
PARTS = native.TABLE_PARTS
OPTIONS = (
    TableOptions(
        TableSpec("main", 4, 0.5), rows_max=20_000, optimizer=Adagrad(rate=0.5), seed=3,
        tick_ms=1_000, admission=Admission(width_counters=64),
    ),
    TableOptions(TableSpec("side", 3, 0.1), rows_max=20_000, optimizer=Adam(), seed=4, tick_ms=1_000),
)  # fmt: skip

Keys = npt.NDArray[np.uint64]
Cell = tuple[bytes, bytes, int, int]


def split(shards: int) -> list[tuple[int, int]]:
    """The parts of each of so many shards."""
    ends = [PARTS * shard // shards for shard in range(shards + 1)]
    return list(pairwise(ends))


@dataclass
class Trainer:
    """Writes versions, each by so many shards as are asked for."""

    store: Store
    run: int = 1
    row_type: RowType = "float32"
    settings: FileSettings | None = field(default_factory=lambda: FileSettings(file_bytes_max=65_536))
    fingerprint: str = "features"
    labels: tuple[str, ...] | None = None
    tables: TableSet = field(default_factory=lambda: TableSet(OPTIONS))
    last: Committed | None = None
    metrics: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.store.files = self.settings or self.store.files

    def learn(self, seed: int, count: int = 40, table: str = "main") -> None:
        """Let some rows learn."""
        chance = np.random.default_rng(seed)
        keys = chance.integers(0, 200, count).astype(np.uint64) * np.uint64(0x9E37_79B9_7F4A_7C15)
        gradients = chance.standard_normal((count, self.tables[table].dim), np.float32)
        admit = [(count, 2)] if table == "main" and seed % 2 else []
        self.tables[table].push(keys, gradients, now_ms=seed * 1_000, admit=admit)

    def forget(self, seed: int, count: int = 10, table: str = "main") -> None:
        """Take some keys away."""
        chance = np.random.default_rng(seed)
        keys = chance.integers(0, 200, count).astype(np.uint64) * np.uint64(0x9E37_79B9_7F4A_7C15)
        self.tables[table].remove(keys)

    def head(self, version: int, **changed: Any) -> Head:
        """What a version says of itself."""
        names = [table.spec.name for table in OPTIONS]
        said: dict[str, Any] = {
            "model": MODEL, "run": self.run, "version": version, "kind": "delta" if self.last else "base",
            "parent": self.last.ref if self.last else None, "fingerprint": self.fingerprint, "labels": self.labels,
            "windows": "windows",
            "tables": tuple(table_record(self.tables, name, row_type=self.row_type) for name in names),
        }  # fmt: skip
        return Head(**(said | changed))

    def cut(self, version: int, shards: int = 1, **changed: Any) -> Committed:
        """Write what was learned since the last version, and commit it."""
        since = self.last.manifest.version if self.last else None
        self.tables.seal(version)
        head = self.head(version, **changed)
        entries = self.write(head, since, shards)
        writer = VersionWriter(self.store, head)
        writer.add_dense({"w": np.arange(6, dtype=np.float32).reshape(2, 3) + version})
        writer.add_dense_optimizer({"m": np.full(3, version, np.float64)})
        writer.add_marks({"page-0": b"marks of %d" % version})
        writer.add_golden({"requests": b"golden of %d" % version})
        writer.add_predictions(predictions_of(version))
        position = Position(topic="file:///samples", topic_id="id", partition=0, offset=version)
        cut = Cut(positions=(position,), watermark_ms=version, metrics={"auc": 0.5} | self.metrics)
        self.last = writer.finish(cut, entries, clock=ManualClock())
        self.tables.commit(version)
        return self.last

    def write(self, head: Head, since: int | None, shards: int) -> list[FileEntry]:
        """What each shard would write, by a writer of its own; entries as they come over a wire."""
        entries: list[FileEntry] = []
        changes = list(self.tables.changed(since, head.version, parts=PARTS))
        for shard, parts in enumerate(split(shards)):
            writer = VersionWriter(self.store, head)
            written = writer.add_rows([of_parts(one, parts) for one in changes], shard=(shard, shards), parts=parts)
            upkeep = self.tables["main"].upkeep()
            written += writer.add_upkeep("main", upkeep, shard=(shard, shards), parts=parts)
            entries += msgspec.json.decode(msgspec.json.encode(written), type=list[FileEntry])
        return entries

    def base(self, of: Committed, **changed: Any) -> Committed:
        """The whole form of a version, as compaction writes it; the tables must stand there."""
        head = self.head(of.manifest.version, kind="base", parent=of.manifest.parent, stands_for=of.ref, **changed)
        entries = self.write(head, None, 1)
        return VersionWriter(self.store, head).finish(Cut(), entries, clock=ManualClock())

    def story(self, versions: Sequence[int]) -> list[Committed]:
        """A base and deltas in which keys come, learn, go and come back."""
        found = []
        for version in versions:
            self.forget(version + 100, 60)
            self.learn(version, 120)
            self.learn(version, 20, "side")
            found.append(self.cut(version))
        return found


def predictions_of(version: int) -> dict[str, npt.NDArray[Any]]:
    """One prediction of a label, in a window of its own."""
    none = np.empty(0, np.int64)
    known = {"begin": np.array([0]), "halved": none, "halvings": none.astype(np.uint8), "lacking": none}
    rows = {"windows": np.array([version]), "counts": np.array([1]), "identity": np.array([version], np.uint64)}
    tensors = {f"click.{name}": tensor for name, tensor in known.items()}
    tensors |= {f"click.rows.{name}": tensor for name, tensor in rows.items()}
    return {"is_whole": np.array([False]), "state": np.frombuffer(b"{}", np.uint8)} | tensors


def of_parts(changes: Changes, parts: tuple[int, int]) -> Changes:
    """Changes of a shard's keys, by a plain loop."""

    def kept(keys: Keys) -> npt.NDArray[np.bool_]:
        found = native.parts_of(keys)
        return np.array([parts[0] <= part < parts[1] for part in found.tolist()], bool)

    at = kept(changes.keys)
    arrays: Mapping[str, Any] = {
        name: None if (array := getattr(changes, name)) is None else array[at]
        for name in ("keys", "rows", "scales", "state", "ticks", "counts")
    }
    assert changes.gone is not None
    return Changes(changes.table, gone=changes.gone[kept(changes.gone)], **arrays)


def serving(row_type: RowType) -> TableSet:
    """Tables of a serving node."""
    return TableSet([msgspec.structs.replace(one, optimizer=None, row_type=row_type) for one in OPTIONS])


def everything(tables: TableSet, version: int) -> dict[tuple[str, int], Cell]:
    """Row, state and use of every key."""
    found: dict[tuple[str, int], Cell] = {}
    for one in tables.changed(None, version):
        for at, key in enumerate(one.keys.tolist()):
            assert one.state is not None
            assert one.ticks is not None
            assert one.counts is not None
            use = int(one.ticks[at]), int(one.counts[at])
            found[one.table, key] = (one.rows[at].tobytes(), one.state[at].tobytes(), *use)
    return found


def rows_of(tables: TableSet, version: int) -> dict[tuple[str, int], bytes]:
    """The row of every key, as float32; read again if a node that discards a damaged version ends the reading."""
    for attempt in range(_READS_MAX):
        try:
            return {
                (one.table, key): one.floats()[at].tobytes()
                for one in tables.changed(None, version)
                for at, key in enumerate(one.keys.tolist())
            }
        except TableBusy:
            if attempt == _READS_MAX - 1:
                raise
    raise AssertionError
