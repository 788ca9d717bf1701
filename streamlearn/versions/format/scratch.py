"""Scratch: parts of one table as versions had them, read from files for a moment, within a memory limit.

Compaction, reverts, `diff` and exports read whole versions through it, range of parts by range. The number of parts
that fit is estimated from the files; a range that does not fit after all is halved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import msgspec

from streamlearn.errors import Oversize, TableFull, VersionDefect
from streamlearn.features import TableSpec
from streamlearn.table import Changes, TableOptions, TableSet, Upkeep
from streamlearn.versions.format.chain import Chain
from streamlearn.versions.format.fetch import fetch
from streamlearn.versions.format.loading import load
from streamlearn.versions.format.manifest import PARTS, FileEntry, Manifest, TableRecord
from streamlearn.versions.format.shard_files import UpkeepGathered, no_upkeep, shards_of
from streamlearn.versions.format.writer import Committed
from streamlearn.versions.store.defect import defective
from streamlearn.versions.store.settings import ScanSettings, checked

__all__ = [
    "Parts", "Progress", "Scratch", "Shard", "record_of", "row_bytes", "scan_table", "shards_in", "table_of",
    "upkeep_at",
]  # fmt: skip

Parts: TypeAlias = tuple[int, int]
"""The first part, and the one after the last."""
Progress: TypeAlias = Callable[[int, int], None]
"""Takes the amounts done and to do, in bytes of files or in parts of tables."""

# Memory of a row in a table beyond its numbers, if the index was sized for it and has grown since.
_ROW_OVERHEAD_BYTES = 160
_EXPORTED_PARTS = 16
_SLACK_ROWS = 1_024


@dataclass(frozen=True)
class Shard:
    """A shard as (number, count of shards), and the parts it owned."""

    number: tuple[int, int]
    parts: Parts


class Scratch:
    """Parts of one table of one version, or of two versions side by side.

    The chains are of one model, with equal tables. `training` reads the rows of training with state and use, if the
    table learns; else only the rows of serving are read.
    """

    def __init__(self, chains: Sequence[Chain], table: str, settings: ScanSettings, *, training: bool = True) -> None:
        self._records = [record_of(chain.manifest, table) for chain in chains]
        self._chains, self._settings = chains, checked(settings)
        # Prefetched files take memory beyond the table, so there is at most one.
        self._limits = msgspec.structs.replace(chains[0].store.loading, fetch_threads=1)
        if len(chains) > 1 and self._records[0] != self._records[1]:
            what = f"table {table!r} is {self._records[1]}, but in version {chains[0].version} it is {self._records[0]}"
            raise defective(chains[1].head.folder, "incompatible", what)
        self._training = training and self._records[0].optimizer is not None
        # If the second version follows the first by deltas, it is staged on top: shared files are read once.
        self._following = _following(chains[0], chains[1]) if len(chains) > 1 else None

    def exports(self, parts: Parts) -> Iterator[tuple[int, tuple[Changes, ...]]]:
        """Yield all rows of the parts, a few parts at a time, unordered within those, for each version side by side.

        Returns:
            The first part that is still to come, and the rows of each version.

        Raises:
            VersionDefect: A file is damaged or missing.
            Oversize: A single part does not fit into `scan_bytes_max`.
        """
        pending = list(reversed(self._ranges(parts)))
        while pending:
            begin, end = pending.pop()
            try:
                loaded = self._loaded((begin, end))
            except TableFull:
                if end - begin == 1:
                    message = f"part {begin} of table {self._records[0].name!r} does not fit into "
                    message += f"scan_bytes_max of {self._settings.scan_bytes_max} bytes"
                    raise Oversize(message, help="raise scan_bytes_max") from None
                middle = (begin + end) // 2
                pending += [(middle, end), (begin, middle)]
                continue
            yield from self._exported(loaded, (begin, end))

    def _exported(self, loaded: list[tuple[TableSet, int]], parts: Parts) -> Iterator[tuple[int, tuple[Changes, ...]]]:
        # The export covers all parts; those that are not loaded are empty and cost nothing.
        exports = [tables.changed(None, version, parts=_EXPORTED_PARTS) for tables, version in loaded]
        try:
            for number, changes in enumerate(zip(*exports, strict=True)):
                if parts[0] // _EXPORTED_PARTS <= number <= (parts[1] - 1) // _EXPORTED_PARTS:
                    yield min((number + 1) * _EXPORTED_PARTS, parts[1]), changes
        finally:
            for export in exports:
                export.close()

    def _loaded(self, parts: Parts) -> list[tuple[TableSet, int]]:
        """Load the parts, and return for each version the tables that have it, and its number."""
        earlier = self._chains[0]
        tables = self._table(self._room_rows if self._following or len(self._chains) == 1 else self._room_rows // 2)
        self._load(earlier, tables, parts)
        if len(self._chains) == 1:
            return [(tables, earlier.version)]
        if self._following is not None:
            try:
                self._load(self._following, tables, parts)
            except VersionDefect:
                # The later version may have its own base after the damage; if not, loading it reports the defect.
                self._following = None
                del tables  # before two tables take its room
                return self._loaded(parts)
            return [(tables, earlier.version), (tables, self._chains[1].version)]
        other = self._table(self._room_rows // 2)
        self._load(self._chains[1], other, parts)
        return [(tables, earlier.version), (other, self._chains[1].version)]

    def _load(self, chain: Chain, tables: TableSet, parts: Parts) -> None:
        load(chain, tables, training=self._training, parts=parts, rows_only=True, settings=self._limits)

    def _table(self, rows_max: int) -> TableSet:
        return table_of(self._records[0], rows_max, training=self._training)

    @property
    def _room_rows(self) -> int:
        """Rows that fit into memory."""
        room_bytes = min(self._settings.scan_bytes_max, max(self._settings.scan_bytes_min, self._shard_bytes // 2))
        return room_bytes // row_bytes(self._records[0], training=self._training)

    @property
    def _shard_bytes(self) -> int:
        """Bytes of this table in the base of the largest shard."""
        by_shard: dict[int, int] = {}
        for entry in self._files(self._chains[-1].links[:1], ("rows", "optimizer") if self._training else ("rows",)):
            by_shard[entry.shard] = by_shard.get(entry.shard, 0) + entry.bytes
        return max(by_shard.values(), default=0)

    def _files(self, links: Sequence[Committed], kinds: Sequence[str]) -> list[FileEntry]:
        name = self._records[0].name
        return [entry for link in links for entry in link.manifest.files if entry.table == name and entry.kind in kinds]

    def _ranges(self, parts: Parts) -> list[Parts]:
        """Divide the parts into ranges that are likely to fit."""
        bases = [link for chain in self._chains for link in chain.links[:1]]
        longest = max((chain.links for chain in self._chains), key=len)
        deltas = [sum(entry.rows for entry in self._files([link], ("rows",))) for link in longest[1:]]
        rows = sum(_rows_within(entry, parts) for entry in self._files(bases, ("rows",)))
        likely = rows + 2 * max(deltas, default=0) * (parts[1] - parts[0]) // PARTS + _SLACK_ROWS
        count = min(-(-likely // max(1, self._room_rows)), parts[1] - parts[0])
        ends = [parts[0] + (parts[1] - parts[0]) * number // count for number in range(count + 1)]
        return list(pairwise(ends))


def scan_table(
    chains: Sequence[Chain],
    table: str,
    parts: Parts = (0, PARTS),
    *,
    scan: ScanSettings | None = None,
    progress: Progress | None = None,
    training: bool = True,
) -> Iterator[tuple[Changes, ...]]:
    """Yield all rows of some parts of a table, of each version side by side; see `Scratch`.

    Progress is reported in parts of all tables. For that, callers scan the ranges of parts in order, and all tables of
    a range before the next range.
    """
    names = [record.name for record in chains[0].manifest.tables]
    before = len(names) * parts[0] + names.index(table) * (parts[1] - parts[0])
    for done, versions in Scratch(chains, table, scan or ScanSettings(), training=training).exports(parts):
        yield versions
        if progress is not None:
            progress(before + done - parts[0], len(names) * PARTS)


def table_of(record: TableRecord, rows_max: int, *, training: bool) -> TableSet:
    """Make an empty table with the options of a version's; without training it stores rows as versions do."""
    options = TableOptions(
        TableSpec(record.name, record.dim, record.initial_range),
        rows_max=max(1, rows_max),
        optimizer=record.optimizer if training else None,
        row_type="float32" if training else record.row_type,
        seed=record.seed,
        tick_ms=record.tick_ms,
    )
    return TableSet([options])


def row_bytes(record: TableRecord, *, training: bool) -> int:
    """Estimate the memory of a row in such a table."""
    state = 0 if record.optimizer is None or not training else record.optimizer.state_width(record.dim)
    return 4 * (record.dim + state) + _ROW_OVERHEAD_BYTES


def record_of(manifest: Manifest, table: str) -> TableRecord:
    """Return the record of a table in a manifest; raises `VersionDefect` if there is none."""
    for record in manifest.tables:
        if record.name == table:
            return record
    raise defective(manifest.folder, "incompatible", f"it has no table {table!r}")


def shards_in(manifest: Manifest) -> list[Shard]:
    """Return the shards that wrote a version, in the order of their parts."""
    first = manifest.tables[0].name if manifest.tables else None
    entries = [entry for entry in manifest.of_kind("rows") if entry.table == first]
    shards = {Shard((entry.shard, entry.shards), entry.parts) for entry in entries}
    return sorted(shards or {Shard((0, 1), (0, PARTS))}, key=lambda shard: shard.parts)


def upkeep_at(chain: Chain, table: str) -> Iterator[tuple[Shard, Upkeep]]:
    """Yield the upkeep of a table at a version, by the shards that last wrote some; raises `VersionDefect`."""
    written = [link for link in chain.links if shards_of(link.manifest, table, (0, PARTS))]
    if not written:
        return

    def fetched(link: Committed, entries: list[FileEntry]) -> list[tuple[FileEntry, memoryview]]:
        bytes_max = chain.store.loading.file_bytes_max
        return [(entry, fetch(chain.store, link.folder, entry, bytes_max=bytes_max)) for entry in entries]

    for files in shards_of(written[-1].manifest, table, (0, PARTS)):
        shard = Shard((files[0].shard, files[0].shards), files[0].parts)
        gathered = UpkeepGathered(shard.parts, no_upkeep())
        for link in written:
            if link.manifest.kind == "revert":
                gathered = UpkeepGathered(shard.parts, no_upkeep())
            shards = shards_of(link.manifest, table, shard.parts)
            gathered.add([(entries[0], fetched(link, entries)) for entries in shards], link.folder)
        yield shard, gathered.upkeep()


def _following(earlier: Chain, later: Chain) -> Chain | None:
    """Return the deltas from one version to a later one; None if they are not complete."""
    if later.version < earlier.version:
        return None
    try:
        return Chain.find(earlier.store, earlier.model, later.version, since=earlier.ref)
    except VersionDefect:
        return None


def _rows_within(entry: FileEntry, parts: Parts) -> int:
    """Estimate the records of a file that belong to the parts."""
    shared = max(0, min(entry.parts[1], parts[1]) - max(entry.parts[0], parts[0]))
    return -(-entry.rows * shared // (entry.parts[1] - entry.parts[0]))
