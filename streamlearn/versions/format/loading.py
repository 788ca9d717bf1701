"""Load: the versions of a chain into tables, one by one, each whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import TableBusy, UsageError
from streamlearn.native import native
from streamlearn.struct_decoder import from_plain
from streamlearn.table import Changes, TableOptions, TableSet
from streamlearn.versions.format.chain import Chain
from streamlearn.versions.format.fetch import fetch, in_order
from streamlearn.versions.format.manifest import PARTS, FileEntry, FileKind, Manifest, TableRecord, VersionRef
from streamlearn.versions.format.pieces import read_bytes, read_tensors
from streamlearn.versions.format.row_files import read_gone, read_rows
from streamlearn.versions.format.shard_files import UpkeepGathered, no_upkeep, shards_of
from streamlearn.versions.format.writer import Committed
from streamlearn.versions.store.defect import defective
from streamlearn.versions.store.interface import Store
from streamlearn.versions.store.settings import LoadSettings, checked

__all__ = [
    "Loaded", "LoadedVersion", "is_in_parts", "load", "load_bytes", "load_tensors", "record_of", "stage_version",
    "table_record",
]  # fmt: skip

_Parts: TypeAlias = tuple[int, int]
_Array: TypeAlias = npt.NDArray[Any]
_WHOLE: _Parts = (0, PARTS)


@dataclass(frozen=True)
class LoadedVersion:
    """Counts of one loaded version: rows set, keys removed (or absent already), bytes read, and the time it took."""

    version: int
    rows: int
    gone: int
    bytes: int
    wall_s: float


@dataclass(frozen=True)
class Loaded:
    """The result of `load`.

    Attributes:
        manifest: The manifest of the version that the tables now have.
        ref: Its reference, which `Chain.find` takes as `since` for the next load.
    """

    manifest: Manifest
    ref: VersionRef
    versions: tuple[LoadedVersion, ...]


@dataclass(frozen=True)
class _Job:
    """A file of rows or of removed keys, and the matching optimizer file if it is needed."""

    table: TableRecord
    entry: FileEntry
    optimizer: FileEntry | None


def load(
    chain: Chain,
    tables: TableSet,
    *,
    training: bool = False,
    parts: _Parts = _WHOLE,
    rows_only: bool = False,
    settings: LoadSettings | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> Loaded:
    """Stage the versions of a chain one after the other; only the last one is kept, and it is not activated.

    An intermediate version is retired when the next one is staged, so memory stays near that of one version. On an
    error the tables keep the last whole version.

    The tables must have the version `chain.since`, or be empty. Their row types must be those of the files, or float32
    on one of the two sides. `training` also loads optimizer state, use and upkeep, and the float32 rows that training
    continues from. `parts` (the first, and the one after the last) selects keys. `rows_only` loads only the given
    tables, which may be some of the version's, without upkeep.

    Raises:
        UsageError: The tables are not at the version where the chain begins, or `parts` are invalid.
        VersionDefect: A file is damaged or does not match the tables; `defect` names the problem.
        VersionRefused: One version contains a key twice.
        TableFull: A table has no room.
    """
    limits = checked(settings or chain.store.loading)
    _check_standing(chain, tables)
    if not 0 <= parts[0] < parts[1] <= PARTS:
        message = f"parts are {parts}"
        raise UsageError(message, help=f"give the first part and the one after the last, from 0 to {PARTS}")
    _check_tables(chain.head, tables, training=training, rows_only=rows_only)
    has_upkeep = training and not rows_only
    loading = _Loading(chain.store, tables, limits, clock, training=training, has_upkeep=has_upkeep, parts=parts)
    versions: list[LoadedVersion] = []
    parent = chain.since
    for link in chain.links:
        loaded = loading.stage(link, parent)
        if versions:
            # A version that another thread has pinned meanwhile is retired by that thread.
            with suppress(TableBusy):
                tables.retire(versions[-1].version, wait_ms_max=limits.retire_wait_ms_max)
        versions.append(loaded)
        parent = link.ref
    loading.restore(chain.head)
    return Loaded(chain.manifest, chain.ref, tuple(versions))


def stage_version(
    link: Committed,
    tables: TableSet,
    parent: VersionRef | None,
    *,
    store: Store,
    settings: LoadSettings | None = None,
    between: Callable[[], None] | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> LoadedVersion:
    """Stage one link of a chain for serving, without activating it. After an error, nothing of it is kept.

    `parent` is the version the tables have; None for a base and empty tables. `between` is called before each file is
    staged; an exception from it cancels the version.

    Raises:
        VersionDefect: A file is damaged or does not match the tables; `defect` names the problem.
        VersionRefused: The version contains a key twice, or the tables do not have its parent.
        TableFull: A table has no room.
    """
    _check_tables(link, tables, training=False, rows_only=False)
    return _Loading(store, tables, checked(settings or store.loading), clock, between=between).stage(link, parent)


def load_tensors(store: Store, version: Committed, kind: FileKind = "dense") -> dict[str, _Array]:
    """Return the tensors of a version (`dense` or `dense_optimizer`), if any; raises `VersionDefect` for a bad file."""
    return read_tensors(_fetched(store, version, kind), version.folder)


def load_bytes(store: Store, version: Committed, kind: FileKind) -> dict[str, memoryview]:
    """Return the named bytes of a version (`marks` or `golden`), if any; raises `VersionDefect` for a bad file."""
    return read_bytes(_fetched(store, version, kind), version.folder)


def table_record(tables: TableSet, name: str, *, row_type: str | None = None) -> TableRecord:
    """Make the manifest's record of a table; versions store its rows as `row_type`, by default as the table does."""
    return record_of(tables[name].options, row_type=row_type)


def record_of(options: TableOptions, *, row_type: str | None = None) -> TableRecord:
    """Make the manifest's record of a table with these options; see `table_record`."""
    fields = {
        "name": options.spec.name,
        "dim": options.spec.dim,
        "initial_range": options.spec.initial_range,
        "seed": options.seed,
        "row_type": row_type or options.row_type,
        "optimizer": msgspec.to_builtins(options.optimizer),
        "tick_ms": options.tick_ms,
    }
    return from_plain(fields, TableRecord)


class _Loading:
    """One call of `load` or `stage_version`."""

    def __init__(
        self,
        store: Store,
        tables: TableSet,
        limits: LoadSettings,
        clock: Clock,
        *,
        training: bool = False,
        has_upkeep: bool = False,
        parts: _Parts = _WHOLE,
        between: Callable[[], None] | None = None,
    ) -> None:
        self._store, self._tables, self._limits, self._clock = store, tables, limits, clock
        self._training, self._has_upkeep, self._parts = training, has_upkeep, parts
        self._between = between
        self._rows, self._gone, self._bytes = 0, 0, 0
        self._upkeep: dict[str, UpkeepGathered] = {}

    def stage(self, link: Committed, parent: VersionRef | None) -> LoadedVersion:
        """Stage one version or nothing of it, and return its counts."""
        begin_s = self._clock.monotonic_s()
        self._rows, self._gone, self._bytes = 0, 0, 0
        if self._has_upkeep:
            self._gather_upkeep(link)
        version, parent_version = link.manifest.version, None if parent is None else parent.version
        self._tables.stage(version, parent_version, self._changes(link), threads=self._limits.stage_threads)
        return LoadedVersion(version, self._rows, self._gone, self._bytes, self._clock.monotonic_s() - begin_s)

    def restore(self, head: Committed) -> None:
        """Set the gathered upkeep in the tables."""
        for name, gathered in self._upkeep.items():
            try:
                self._tables[name].restore(gathered.upkeep())
            except ValueError as error:
                raise defective(head.folder, "corrupted", f"upkeep of table {name!r}: {error}") from None

    def _changes(self, link: Committed) -> Iterator[Changes]:
        jobs = self._jobs(link.manifest)
        self._bytes += sum(job.entry.bytes + (job.optimizer.bytes if job.optimizer else 0) for job in jobs)
        for batches in in_order(jobs, lambda job: self._read(link, job), threads=self._limits.fetch_threads):
            if self._between is not None:
                self._between()
            for changes in batches:
                self._rows += len(changes)
                self._gone += 0 if changes.gone is None else len(changes.gone)
                yield changes

    def _jobs(self, manifest: Manifest) -> list[_Job]:
        tables = {table.name: table for table in manifest.tables}
        optimizers = {(entry.table, entry.shard, entry.number): entry for entry in manifest.of_kind("optimizer")}
        jobs = []
        for entry in (*manifest.of_kind("rows"), *manifest.of_kind("gone")):
            overlaps = entry.parts[0] < self._parts[1] and self._parts[0] < entry.parts[1]
            if entry.table in self._tables and entry.rows and overlaps:
                assert entry.table is not None
                is_learning = self._training and entry.kind == "rows"
                optimizer = optimizers.get((entry.table, entry.shard, entry.number)) if is_learning else None
                jobs.append(_Job(tables[entry.table], entry, optimizer))
        return jobs

    def _read(self, link: Committed, job: _Job) -> list[Changes]:
        """Read and check a file completely; runs in a fetch thread."""
        data = self._fetch(link, job.entry)
        if job.entry.kind == "gone":
            batches = read_gone(job.table, job.entry, data, link.folder)
        else:
            optimizer = None if job.optimizer is None else (job.optimizer, self._fetch(link, job.optimizer))
            batches = read_rows(job.table, job.entry, data, optimizer, link.folder)
        is_whole = self._parts[0] <= job.entry.parts[0] and job.entry.parts[1] <= self._parts[1]
        row_type = self._tables[job.table.name].options.row_type
        converted = [_as_row_type(changes, row_type) for changes in batches]
        return converted if is_whole else [_in_parts(changes, self._parts) for changes in converted]

    def _fetch(self, link: Committed, entry: FileEntry) -> memoryview:
        return fetch(self._store, link.folder, entry, bytes_max=self._limits.file_bytes_max)

    def _gather_upkeep(self, link: Committed) -> None:
        """Merge the upkeep of a version, all of it before any of its rows."""
        for table in self._tables:
            shards = shards_of(link.manifest, table, self._parts)
            if not shards:
                continue
            if table not in self._upkeep or link.manifest.kind == "revert":
                before = self._tables[table].upkeep() if link.manifest.kind == "delta" else no_upkeep()
                self._upkeep[table] = UpkeepGathered(self._parts, before)
            self._bytes += sum(entry.bytes for shard in shards for entry in shard)
            files = [(shard[0], [(entry, self._fetch(link, entry)) for entry in shard]) for shard in shards]
            self._upkeep[table].add(files, link.folder)


def _fetched(store: Store, version: Committed, kind: FileKind) -> Iterator[tuple[FileEntry, memoryview]]:
    def read(entry: FileEntry) -> tuple[FileEntry, memoryview]:
        return entry, fetch(store, version.folder, entry, bytes_max=store.loading.file_bytes_max)

    return in_order(version.manifest.of_kind(kind), read, threads=store.loading.fetch_threads)


def _check_standing(chain: Chain, tables: TableSet) -> None:
    newest = tables.retained[-1] if tables.retained else None
    begin = chain.since.version if chain.since is not None else None
    if newest != begin:
        message = f"the tables are at version {newest}, but the chain of version {chain.version} follows {begin}"
        help = "build the chain with `since`, the `ref` of the last load; or load into empty tables"
        raise UsageError(message, help=help)


def _check_tables(head: Committed, tables: TableSet, *, training: bool, rows_only: bool) -> None:
    """Check that the tables match those that wrote the version, as far as it matters."""
    records = {table.name: table for table in head.manifest.tables if not rows_only or table.name in tables}
    if set(records) != set(tables.tables):
        raise _incompatible(head, f"its tables are {sorted(records)}, not {sorted(tables.tables)}")
    for name, record in records.items():
        target = table_record(tables, name)
        for field in ("dim", "initial_range", "seed", *(["tick_ms"] if training else [])):
            written, expected = getattr(record, field), getattr(target, field)
            if written != expected:
                raise _incompatible(head, f"{field} of table {name!r} is {written}, not {expected}")
        if training and type(target.optimizer) is not type(record.optimizer):
            raise _incompatible(head, f"table {name!r} was learned by {record.optimizer}, not by {target.optimizer}")
        is_learning = training and record.optimizer is not None
        row_type = "float32" if is_learning else record.row_type
        if "float32" not in (row_type, target.row_type) and row_type != target.row_type:
            what = f"rows of table {name!r} are {row_type} and cannot be converted to {target.row_type}"
            raise _incompatible(head, what)


def _incompatible(head: Committed, what: str) -> Exception:
    return defective(head.folder, "incompatible", what)


def _as_row_type(changes: Changes, row_type: str) -> Changes:
    """Convert rows for a float32 table; other tables take them as they are or round them."""
    if row_type == "float32" and changes.rows.dtype != np.float32:
        return replace(changes, rows=changes.floats(), scales=None)
    return changes


def _in_parts(changes: Changes, parts: _Parts) -> Changes:
    """Select the keys of some parts."""
    gone = None if changes.gone is None else changes.gone[is_in_parts(changes.gone, parts)]
    return changes.select(is_in_parts(changes.keys, parts), gone)


def is_in_parts(keys: _Array, parts: _Parts) -> _Array:
    """Return which keys belong to some parts: the first, and the one after the last."""
    part: _Array = native.parts_of(keys)
    return (part >= parts[0]) & (part < parts[1])
