"""Load: a chain of versions into tables, version by version, each whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
from streamlearn.table import Changes, TableOptions, TableSet, Upkeep
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
    "Loaded",
    "LoadedVersion",
    "load",
    "load_bytes",
    "load_tensors",
    "record_of",
    "stage_version",
    "table_record",
]

_Parts: TypeAlias = tuple[int, int]
_Array: TypeAlias = npt.NDArray[Any]
_WHOLE: _Parts = (0, PARTS)


@dataclass(frozen=True)
class LoadedVersion:
    """What was loaded of one version.

    Attributes:
        version: Its number.
        rows: Rows that were set.
        gone: Keys that were taken away, or were not there.
        bytes: Bytes of files that were read.
        wall_s: How long it took.
    """

    version: int
    rows: int
    gone: int
    bytes: int
    wall_s: float


@dataclass(frozen=True)
class Loaded:
    """What was loaded.

    Attributes:
        manifest: Of the version the tables stand at now.
        ref: What names it; what `Chain.find` takes as `since` when the next ones are to be loaded.
        versions: Each version that was staged, oldest first.
    """

    manifest: Manifest
    ref: VersionRef
    versions: tuple[LoadedVersion, ...]


@dataclass(frozen=True)
class _Job:
    """A file of rows or of keys that are gone, and the optimizer's beside it when it is wanted."""

    table: TableRecord
    entry: FileEntry
    beside: FileEntry | None


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
    """Stage the versions of a chain, one after the other; the last one is kept, and not active yet.

    A version that is passed over is retired when the next is staged, so that memory stays near that of one. On an
    error the tables stand at the last version that was whole; what they had before the call is as it was.

    Args:
        chain: As `Chain.find` gave it; with `since` for tables that stand at that version.
        tables: Where to. Rows are stored in its own row types, which must be those of the files, or float32 on one
            of the two sides.
        training: Load the optimizer's state, use and upkeep too, and the float32 rows that training goes on from.
        parts: Load the keys of these parts alone: the first, and the one after the last.
        rows_only: Load the tables that are given alone, which may be some of the version's, and no upkeep: for who
            looks at rows, and neither serves nor goes on with training.
        settings: Limits.
        clock: What time is taken by.

    Raises:
        UsageError: The tables do not stand where the chain begins, or parts are none.
        VersionDefect: Something is not what it is to be, or not of such tables; `defect` says what.
        VersionRefused: A key is there twice in one version.
        TableFull: All rows are taken.
    """
    limits = checked(settings or chain.store.loading)
    _check_standing(chain, tables)
    if not 0 <= parts[0] < parts[1] <= PARTS:
        message = f"parts are {parts}"
        raise UsageError(message, help=f"give the first part and the one after the last, from 0 to {PARTS}")
    _check_tables(chain.head, tables, training=training, rows_only=rows_only)
    loading = _Loading(chain.store, tables, (training, training and not rows_only), parts, limits)
    found: list[LoadedVersion] = []
    before: VersionRef | None = None
    for link in chain.links:
        begin_s = clock.monotonic_s()
        rows, gone, size = loading.stage(link, chain.since if before is None else before)
        if found:
            # Whoever has pinned it meanwhile keeps it, and retires it.
            with suppress(TableBusy):
                tables.retire(found[-1].version, wait_ms_max=limits.retire_wait_ms_max)
        found.append(LoadedVersion(link.manifest.version, rows, gone, size, clock.monotonic_s() - begin_s))
        before = link.ref
    loading.restore(chain.head)
    return Loaded(chain.manifest, chain.ref, tuple(found))


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
    """Stage one link of a chain for serving; it is kept, and not active yet. On an error nothing of it is.

    Args:
        link: The version.
        tables: Where to.
        parent: The version they stand at; None for a base and empty tables.
        store: Where its files are.
        settings: Limits.
        between: Called before each file is staged; what it raises gives the version up.
        clock: What time is taken by.

    Raises:
        VersionDefect: Something is not what it is to be, or not of such tables; `defect` says what.
        VersionRefused: A key is there twice in one version, or the tables do not stand at its parent.
        TableFull: All rows are taken.
    """
    _check_tables(link, tables, training=False, rows_only=False)
    begin_s = clock.monotonic_s()
    loading = _Loading(store, tables, (False, False), _WHOLE, checked(settings or store.loading))
    loading.between = between or loading.between
    rows, gone, size = loading.stage(link, parent)
    return LoadedVersion(link.manifest.version, rows, gone, size, clock.monotonic_s() - begin_s)


def load_tensors(
    store: Store, version: Committed, kind: FileKind = "dense", *, settings: LoadSettings | None = None
) -> dict[str, _Array]:
    """The tensors of a version: `dense`, or `dense_optimizer`; none when it has no such file.

    Raises:
        VersionDefect: A file is not what it is to be.
    """
    return read_tensors(_fetched(store, version, version.manifest.of_kind(kind), settings), version.folder)


def load_bytes(
    store: Store, version: Committed, kind: FileKind, *, settings: LoadSettings | None = None
) -> dict[str, memoryview]:
    """The named bytes of a version: `marks` or `golden`; none when it has no such file.

    Raises:
        VersionDefect: A file is not what it is to be.
    """
    return read_bytes(_fetched(store, version, version.manifest.of_kind(kind), settings), version.folder)


def table_record(tables: TableSet, name: str, *, row_type: str | None = None) -> TableRecord:
    """What a manifest says of a table.

    Args:
        tables: The tables.
        name: Which.
        row_type: How versions store its rows; as the table does by default.
    """
    return record_of(tables[name].options, row_type=row_type)


def record_of(options: TableOptions, *, row_type: str | None = None) -> TableRecord:
    """What a manifest says of a table of such options; see `table_record`."""
    said = {
        "name": options.spec.name,
        "dim": options.spec.dim,
        "initial_range": options.spec.initial_range,
        "seed": options.seed,
        "row_type": row_type or options.row_type,
        "optimizer": msgspec.to_builtins(options.optimizer),
        "tick_ms": options.tick_ms,
    }
    return from_plain(said, TableRecord)


class _Loading:
    """One call of `load`."""

    def __init__(
        self, store: Store, tables: TableSet, wanted: tuple[bool, bool], parts: _Parts, limits: LoadSettings
    ) -> None:
        self._store, self._tables = store, tables
        self._training, self._has_upkeep = wanted
        self._parts, self._limits = parts, limits
        self._counts = [0, 0, 0]
        self._upkeep: dict[str, UpkeepGathered] = {}
        self.between: Callable[[], None] = lambda: None

    def stage(self, link: Committed, parent: VersionRef | None) -> tuple[int, int, int]:
        """Stage one version, or nothing of it; gives rows, keys that are gone, and bytes."""
        self._counts = [0, 0, 0]
        if self._has_upkeep:
            self._gather(link)
        self._tables.stage(
            link.manifest.version,
            None if parent is None else parent.version,
            self._changes(link),
            threads=self._limits.stage_threads,
        )
        rows, gone, size = self._counts
        return rows, gone, size

    def restore(self, head: Committed) -> None:
        """Let the tables go on with what they knew beside their rows."""
        for name, gathered in self._upkeep.items():
            try:
                self._tables[name].restore(gathered.upkeep())
            except ValueError as error:
                raise defective(head.folder, "corrupted", f"upkeep of table {name!r}: {error}") from None

    def _changes(self, link: Committed) -> Iterator[Changes]:
        jobs = self._jobs(link.manifest)
        self._counts[2] += sum(job.entry.bytes + (job.beside.bytes if job.beside else 0) for job in jobs)
        for changes in in_order(jobs, lambda job: self._read(link, job), threads=self._limits.fetch_threads):
            self.between()
            for one in changes:
                self._counts[0] += len(one)
                self._counts[1] += 0 if one.gone is None else len(one.gone)
                yield one

    def _jobs(self, manifest: Manifest) -> list[_Job]:
        tables = {table.name: table for table in manifest.tables}
        beside = {(one.table, one.shard, one.number): one for one in manifest.of_kind("optimizer")}
        jobs = []
        for entry in (*manifest.of_kind("rows"), *manifest.of_kind("gone")):
            if entry.table in self._tables and entry.rows and _overlap(entry.parts, self._parts):
                assert entry.table is not None
                is_learning = self._training and entry.kind == "rows"
                other = beside.get((entry.table, entry.shard, entry.number)) if is_learning else None
                jobs.append(_Job(tables[entry.table], entry, other))
        return jobs

    def _read(self, link: Committed, job: _Job) -> list[Changes]:
        """Runs in a thread of its own: everything that can be wrong with a file is found here."""
        data = self._fetched(link, job.entry)
        if job.entry.kind == "gone":
            found = read_gone(job.table, job.entry, data, link.folder)
        else:
            beside = None if job.beside is None else (job.beside, self._fetched(link, job.beside))
            found = read_rows(job.table, job.entry, data, beside, link.folder)
        is_whole = self._parts[0] <= job.entry.parts[0] and job.entry.parts[1] <= self._parts[1]
        target = self._tables[job.table.name].options.row_type
        stored = [_as_target(one, target) for one in found]
        return stored if is_whole else [_of_parts(one, self._parts) for one in stored]

    def _fetched(self, link: Committed, entry: FileEntry) -> memoryview:
        return fetch(self._store, link.folder, entry, bytes_max=self._limits.file_bytes_max)

    def _gather(self, link: Committed) -> None:
        """Take the upkeep of a version, all of it before any of its rows."""
        for table in self._tables:
            shards = shards_of(link.manifest, table, self._parts)
            if not shards:
                continue
            if table not in self._upkeep or link.manifest.kind == "revert":
                self._upkeep[table] = UpkeepGathered(self._parts, self._before(link, table))
            self._counts[2] += sum(entry.bytes for shard in shards for entry in shard)
            files = [(one[0], [(entry, self._fetched(link, entry)) for entry in one]) for one in shards]
            self._upkeep[table].add(files, link.folder)

    def _before(self, link: Committed, table: str) -> Upkeep:
        return self._tables[table].upkeep() if link.manifest.kind == "delta" else no_upkeep()


def _fetched(
    store: Store, version: Committed, entries: Sequence[FileEntry], settings: LoadSettings | None
) -> Iterator[tuple[FileEntry, memoryview]]:
    limits = checked(settings or store.loading)

    def one(entry: FileEntry) -> tuple[FileEntry, memoryview]:
        return entry, fetch(store, version.folder, entry, bytes_max=limits.file_bytes_max)

    return in_order(entries, one, threads=limits.fetch_threads)


def _check_standing(chain: Chain, tables: TableSet) -> None:
    newest = tables.retained[-1] if tables.retained else None
    begin = chain.since.version if chain.since is not None else None
    if newest != begin:
        message = f"the tables are at version {newest}, but the chain of version {chain.version} follows {begin}"
        raise UsageError(
            message, help="build the chain with `since`, the `ref` of the last load; or load into empty tables"
        )


def _check_tables(head: Committed, tables: TableSet, *, training: bool, rows_only: bool) -> None:
    """The tables are those that wrote the version, as far as that matters."""
    records = {table.name: table for table in head.manifest.tables if not rows_only or table.name in tables}
    if set(records) != set(tables.tables):
        raise _other(head, f"its tables are {sorted(records)}, not {sorted(tables.tables)}")
    for name, record in records.items():
        mine = table_record(tables, name)
        names = ["dim", "initial_range", "seed", *(["tick_ms"] if training else [])]
        for field in names:
            if getattr(mine, field) != getattr(record, field):
                raise _other(head, f"{field} of table {name!r} is {getattr(record, field)}, not {getattr(mine, field)}")
        if training and type(mine.optimizer) is not type(record.optimizer):
            raise _other(head, f"table {name!r} was learned by {record.optimizer}, not by {mine.optimizer}")
        is_learning = training and record.optimizer is not None
        written = "float32" if is_learning else record.row_type
        if "float32" not in (written, mine.row_type) and written != mine.row_type:
            raise _other(head, f"rows of table {name!r} are {written} and cannot be converted to {mine.row_type}")


def _other(head: Committed, what: str) -> Exception:
    return defective(head.folder, "incompatible", what)


def _overlap(one: _Parts, other: _Parts) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def _as_target(changes: Changes, row_type: str) -> Changes:
    """Rows that a table of this row type takes as they are, or rounds itself."""
    if row_type == "float32" and changes.rows.dtype != np.float32:
        return replace(changes, rows=changes.floats(), scales=None)
    return changes


def _of_parts(changes: Changes, parts: _Parts) -> Changes:
    """Those of a shard's keys alone."""
    kept = _kept(changes.keys, parts)
    arrays = {name: getattr(changes, name) for name in ("rows", "scales", "state", "ticks", "counts")}
    found: dict[str, Any] = {name: None if array is None else array[kept] for name, array in arrays.items()}
    gone = None if changes.gone is None else changes.gone[_kept(changes.gone, parts)]
    return replace(changes, keys=changes.keys[kept], gone=gone, **found)


def _kept(keys: _Array, parts: _Parts) -> _Array:
    found: _Array = native.parts_of(keys)
    return (found >= parts[0]) & (found < parts[1])
