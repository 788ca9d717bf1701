"""Scratch: some parts of one table, as versions had them, read from files for a moment and no more than fits.

What works on whole versions without serving or training reads them through this: range of parts by range. How many
parts fit is guessed from the files, and where the guess was too low the range is halved.
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
from streamlearn.versions.store.settings import LoadSettings, ScanSettings, checked

__all__ = ["Parts", "Progress", "Scratch", "Shard", "record_of", "row_bytes", "shards_in", "table_of", "upkeep_at"]

Parts: TypeAlias = tuple[int, int]
Progress: TypeAlias = Callable[[int, int], None]
"""Takes how much is done and how much there is to do, in bytes of files or in parts of tables."""

# What a row takes in a table beside its numbers, when its index was made for it and has grown since.
_BESIDE_ROW_BYTES = 160
_EXPORTED_PARTS = 16
_SLACK_ROWS = 1_024


@dataclass(frozen=True)
class Shard:
    """What a shard owned.

    Attributes:
        number: Which shard, and how many there were.
        parts: Its parts: the first, and the one after the last.
    """

    number: tuple[int, int]
    parts: Parts


class Scratch:
    """Parts of one table of a version, or of two versions beside each other.

    Args:
        chains: Of the versions; of one model, and of tables that are alike.
        table: The table.
        settings: How much memory may be taken.
        limits: Limits of reading.
        training: Read the rows of training with state and use, where the table learns; or those of serving alone.
    """

    def __init__(
        self,
        chains: Sequence[Chain],
        table: str,
        settings: ScanSettings,
        limits: LoadSettings,
        *,
        training: bool = True,
    ) -> None:
        self._records = [record_of(chain.manifest, table) for chain in chains]
        self._chains, self._settings = chains, checked(settings)
        # What is fetched ahead is held beside the table, so no more than one file is.
        self._limits = msgspec.structs.replace(limits, fetch_threads=1)
        if len(chains) > 1 and self._records[0] != self._records[1]:
            said = f"table {table!r} is {self._records[1]}, but in version {chains[0].version} it is {self._records[0]}"
            raise defective(chains[1].head.folder, "incompatible", said)
        self._training = training and self._records[0].optimizer is not None
        # A version that follows the other by deltas is read on top of it, and what both share is read once.
        self._following = _following(chains[0], chains[1], limits) if len(chains) > 1 else None

    def exports(self, parts: Parts) -> Iterator[tuple[int, tuple[Changes, ...]]]:
        """All rows of these parts, of each version side by side, some parts at a time, in no order within those.

        Returns:
            The first part that was not given yet, and the rows.

        Raises:
            VersionDefect: A file is not what it is to be.
            Oversize: Not even one part fits into `scan_bytes_max`.
        """
        waiting = list(reversed(self._ranges(parts)))
        while waiting:
            begin, end = waiting.pop()
            try:
                standing = self._loaded((begin, end))
            except TableFull:
                if end - begin == 1:
                    message = f"part {begin} of table {self._records[0].name!r} does not fit into "
                    message += f"scan_bytes_max of {self._settings.scan_bytes_max} bytes"
                    raise Oversize(message, help="raise scan_bytes_max") from None
                middle = (begin + end) // 2
                waiting += [(middle, end), (begin, middle)]
                continue
            yield from self._exported(standing, (begin, end))

    def _exported(
        self, standing: list[tuple[TableSet, int]], parts: Parts
    ) -> Iterator[tuple[int, tuple[Changes, ...]]]:
        # What is asked for is all parts, of which all others are empty, and cost nothing.
        exports = [tables.changed(None, version, parts=_EXPORTED_PARTS) for tables, version in standing]
        try:
            for at, found in enumerate(zip(*exports, strict=True)):
                if parts[0] // _EXPORTED_PARTS <= at <= (parts[1] - 1) // _EXPORTED_PARTS:
                    yield min((at + 1) * _EXPORTED_PARTS, parts[1]), found
        finally:
            for export in exports:
                export.close()

    def _loaded(self, parts: Parts) -> list[tuple[TableSet, int]]:
        """Tables, and the version in each of them that is meant."""
        earlier = self._chains[0]
        tables = self._table(self._room_rows if self._following or len(self._chains) == 1 else self._room_rows // 2)
        self._load(earlier, tables, parts)
        if len(self._chains) == 1:
            return [(tables, earlier.version)]
        if self._following is not None:
            try:
                self._load(self._following, tables, parts)
            except VersionDefect:
                # The later version may have a base of its own after the damage; where it has none, it says the defect.
                self._following = None
                del tables  # before there is room for two
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
        """Rows that fit."""
        most = min(self._settings.scan_bytes_max, max(self._settings.scan_bytes_min, self._shard_bytes // 2))
        return most // row_bytes(self._records[0], training=self._training)

    @property
    def _shard_bytes(self) -> int:
        """Of the largest shard's files of this table, as a base has them."""
        by_shard: dict[int, int] = {}
        for entry in self._files(self._chains[-1].links[:1], ("rows", "optimizer") if self._training else ("rows",)):
            by_shard[entry.shard] = by_shard.get(entry.shard, 0) + entry.bytes
        return max(by_shard.values(), default=0)

    def _files(self, links: Sequence[Committed], kinds: Sequence[str]) -> list[FileEntry]:
        name = self._records[0].name
        return [entry for link in links for entry in link.manifest.files if entry.table == name and entry.kind in kinds]

    def _ranges(self, parts: Parts) -> list[Parts]:
        """The parts in pieces of which each is likely to fit."""
        links = [link for chain in self._chains for link in chain.links[:1]]
        largest = max((chain.links for chain in self._chains), key=len)
        deltas = [sum(entry.rows for entry in self._files([link], ("rows",))) for link in largest[1:]]
        rows = sum(_rows_within(entry, parts) for entry in self._files(links, ("rows",)))
        likely = rows + 2 * max(deltas, default=0) * (parts[1] - parts[0]) // PARTS + _SLACK_ROWS
        count = min(-(-likely // max(1, self._room_rows)), parts[1] - parts[0])
        ends = [parts[0] + (parts[1] - parts[0]) * at // count for at in range(count + 1)]
        return list(pairwise(ends))


def table_of(record: TableRecord, rows_max: int, *, training: bool) -> TableSet:
    """An empty table like that of versions.

    Args:
        record: What they say of it.
        rows_max: Rows it has room for.
        training: Whether it learns; if not, rows are stored as versions do.
    """
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
    """Memory that a row of such a table is likely to take."""
    state = 0 if record.optimizer is None or not training else record.optimizer.state_width(record.dim)
    return 4 * (record.dim + state) + _BESIDE_ROW_BYTES


def record_of(manifest: Manifest, table: str) -> TableRecord:
    """What a version says of a table.

    Raises:
        VersionDefect: It has no such table.
    """
    for record in manifest.tables:
        if record.name == table:
            return record
    raise defective(manifest.folder, "incompatible", f"it has no table {table!r}")


def shards_in(manifest: Manifest) -> list[Shard]:
    """The shards that wrote a version, in the order of their parts."""
    first = manifest.tables[0].name if manifest.tables else None
    found = {
        Shard((entry.shard, entry.shards), entry.parts) for entry in manifest.of_kind("rows") if entry.table == first
    }
    return sorted(found or {Shard((0, 1), (0, PARTS))}, key=lambda shard: shard.parts)


def upkeep_at(chain: Chain, table: str, limits: LoadSettings) -> Iterator[tuple[Shard, Upkeep]]:
    """What each shard that last wrote upkeep of a table knew at a version; nothing where none ever did.

    Raises:
        VersionDefect: A file is not what it is to be.
    """
    written = [link for link in chain.links if shards_of(link.manifest, table, (0, PARTS))]
    if not written:
        return
    for files in shards_of(written[-1].manifest, table, (0, PARTS)):
        shard = Shard((files[0].shard, files[0].shards), files[0].parts)
        gathered = UpkeepGathered(shard.parts, no_upkeep())
        for link in written:
            if link.manifest.kind == "revert":
                gathered = UpkeepGathered(shard.parts, no_upkeep())
            found = [
                (one[0], [(entry, _fetched(chain, link, entry, limits)) for entry in one])
                for one in shards_of(link.manifest, table, shard.parts)
            ]
            gathered.add(found, link.folder)
        yield shard, gathered.upkeep()


def _fetched(chain: Chain, link: Committed, entry: FileEntry, limits: LoadSettings) -> memoryview:
    return fetch(chain.store, link.folder, entry, bytes_max=limits.file_bytes_max)


def _following(earlier: Chain, later: Chain, limits: LoadSettings) -> Chain | None:
    """The deltas from one version to a later one; None where they are not all there."""
    if later.version < earlier.version:
        return None
    try:
        return Chain.find(earlier.store, earlier.model, later.version, since=earlier.ref, settings=limits)
    except VersionDefect:
        return None


def _rows_within(entry: FileEntry, parts: Parts) -> int:
    """Records of a file that are likely to be of these parts."""
    shared = max(0, min(entry.parts[1], parts[1]) - max(entry.parts[0], parts[0]))
    return -(-entry.rows * shared // (entry.parts[1] - entry.parts[0]))
