"""A set of tables that share versions: sealing, committing, staging, activating, rolling back and exporting."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any

from streamlearn.errors import ConfigError, UsageError
from streamlearn.native import native
from streamlearn.table.arguments import THREADS_MAX, UINT64_MAX, whole
from streamlearn.table.changes import Changes
from streamlearn.table.options import TableOptions
from streamlearn.table.pin import At, Pin, native_at
from streamlearn.table.source import ColumnArrays, PackShape
from streamlearn.table.table import Table

__all__ = ["TableSet"]

_RETIRE_WAIT_MS_MAX = 1000


class TableSet:
    """The tables of one model, and their versions.

    Writes go to the open version. `seal` closes it under a number and `commit` keeps it; `stage` does all of that with
    the changes of a version made elsewhere. Retained versions stay readable until they are retired. `activate` selects
    the version that readers follow, older or newer. `tables` holds the tables by name.

    Raises:
        TypeError: `options` is not a sequence of `TableOptions`.
        UsageError: Two tables have the same name.
        ConfigError: An option is out of its bounds.

    Examples:
        >>> import numpy as np
        >>> from streamlearn.features import TableSpec
        >>> from streamlearn.table import Adagrad, TableOptions
        >>> options = TableOptions(TableSpec("main", 4, 0.05), rows_max=1_000_000, optimizer=Adagrad())
        >>> tables = TableSet([options])
        >>> keys = np.array([1, 2, 3], np.uint64)
        >>> tables["main"].push(keys, np.ones((3, 4), np.float32), now_ms=0)
        Pushed(learned=3, created=3, waiting=0)
        >>> tables.seal(1)
        >>> tables.commit(1)
        >>> tables.activate(1)
        >>> tables["main"].lookup(keys, at="active").shape
        (3, 4)
    """

    def __init__(self, options: Sequence[TableOptions]) -> None:
        if not isinstance(options, Sequence) or not all(isinstance(table, TableOptions) for table in options):
            message = f"options: expected a list of TableOptions, got {options!r:.200}"
            raise TypeError(message)
        names = [table.spec.name for table in options]
        if len(set(names)) != len(names):
            message = f"tables are named {', '.join(names)}"
            raise UsageError(message, help="give every table its own name")
        try:
            self._set = native.TableSet(list(options))
        except (ValueError, OverflowError) as error:
            message = f"tables {', '.join(names)}: {error}"
            raise ConfigError(message, help="see streamlearn.table.TableOptions") from None
        self.tables = {
            name: Table(self._set, at, table) for at, (name, table) in enumerate(zip(names, options, strict=True))
        }

    def __getitem__(self, name: str) -> Table:
        if name not in self.tables:
            message, help = f"no table is named {name!r}", f"tables are {', '.join(self.tables)}"
            if not name:
                help += "; for changes that do not name their table, use `Changes.load(path, table=...)`"
            raise UsageError(message, help=help)
        return self.tables[name]

    def __contains__(self, name: object) -> bool:
        return name in self.tables

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the tables, in order."""
        return iter(self.tables)

    def __len__(self) -> int:
        """Return the number of tables."""
        return len(self.tables)

    def __repr__(self) -> str:
        versions = f"retained={self.retained}, sealed={self.sealed}, active={self.active}"
        return f"TableSet({', '.join(self.tables)}; {versions})"

    @property
    def native(self) -> Any:
        """The native set."""
        return self._set

    @property
    def dims(self) -> dict[str, int]:
        """The length of a row by table."""
        return {table.name: table.dim for table in self.tables.values()}

    def pack_flat(self, at: At, columns: Sequence[ColumnArrays], shape: PackShape, out: Any) -> None:
        """Write a flat matrix; see `Packing`."""
        native.pack_flat((self._set, native_at(self._set, at)), columns, shape, out)

    def pack_sequences(self, at: At, columns: Sequence[ColumnArrays], shape: PackShape, out: Any) -> None:
        """Write a sequence block; see `Packing`."""
        native.pack_sequences((self._set, native_at(self._set, at)), columns, shape, out)

    @property
    def retained(self) -> list[int]:
        """The retained versions, oldest first."""
        versions: list[int] = self._set.retained
        return versions

    @property
    def sealed(self) -> int | None:
        """The version that is sealed but not committed."""
        version: int | None = self._set.sealed
        return version

    @property
    def active(self) -> int | None:
        """The version that readers follow."""
        version: int | None = self._set.active
        return version

    @property
    def retiring(self) -> int:
        """The number of retired versions whose rows wait for an earlier reader to finish."""
        count: int = self._set.retiring
        return count

    def seal(self, version: int) -> None:
        """Close the open version once running writes have ended; sealing it again changes nothing.

        Raises:
            TableBusy: Another version is sealed and not committed.
            VersionRefused: The number does not follow the newest one.
        """
        self._set.seal(_version(version))

    def commit(self, version: int) -> None:
        """Keep the sealed version; any other number raises `VersionRefused`."""
        self._set.commit(_version(version))

    def abandon(self, version: int) -> None:
        """Give up the sealed version: its writes return to the open version, and the next seal includes them.

        Giving up the same version again changes nothing. Its number may stay unused.

        Raises:
            VersionRefused: It is not the sealed version.
            TableBusy: A pin or an export holds it.
        """
        self._set.abandon(_version(version))

    def discard(self, *, threads: int = 1) -> None:
        """Drop the open version, and a sealed one that is not committed. Running exports end with `TableBusy`.

        Only rows go back. Counts of keys without a row and the position of expiry stay; `Table.restore` takes them back
        to a `Table.upkeep` from the step of the version.

        Raises:
            TableBusy: The sealed version is pinned.
        """
        self._set.discard(_threads(threads))

    def stage(
        self, version: int, parent: int | None, changes: Changes | Iterable[Changes], *, threads: int = 1
    ) -> None:
        """Build a version from changes made elsewhere and retain it, not yet active. An error leaves nothing of it.

        `parent` is the version that the changes are based on; None for the first version, which holds everything. Each
        key may occur once.

        Raises:
            VersionRefused: The parent is not the newest version, or a key occurs twice.
            TableBusy: A version is sealed and not committed or is being staged, or there were writes since the last
                version. While staging runs, other writes, seals and discards raise it.
            TableFull: All rows are in use.
        """
        changes = [changes] if isinstance(changes, Changes) else changes
        version, threads = _version(version), _threads(threads)
        self._set.begin_staging(None if parent is None else _version(parent))
        try:
            for part in changes:
                self[part.table].stage(part, threads=threads)
            self._set.end_staging(version)
        except BaseException:
            self._set.drop_staging(threads)
            raise

    def activate(self, version: int) -> None:
        """Make readers follow a retained version, older or newer, which is one atomic store.

        Raises:
            VersionRefused: It is not retained.
        """
        self._set.activate(_version(version))

    def retire(self, version: int, *, wait_ms_max: int = _RETIRE_WAIT_MS_MAX, threads: int = 1) -> None:
        """Retire a version; if it lies between two others, its changes become part of the next one.

        Its rows are free once earlier readers have finished. The call waits for them at most `wait_ms_max`; the next
        call frees the others, see `retiring`.

        Raises:
            VersionRefused: It is not retained, is active, or is the newest.
            TableBusy: A pin or an export holds it.
        """
        wait_ms_max = whole("wait_ms_max", wait_ms_max, 0, UINT64_MAX)
        self._set.retire(_version(version), wait_ms_max, _threads(threads))

    def sweep(self, *, wait_ms_max: int = 0, threads: int = 1) -> None:
        """Free rows that no version needs any more, of versions that were given up, or retired while a reader ran.

        The call waits for earlier readers at most `wait_ms_max`; the next call frees the others.
        """
        self._set.sweep(whole("wait_ms_max", wait_ms_max, 0, UINT64_MAX), _threads(threads))

    def pin(self, version: int) -> Pin:
        """Hold a retained or sealed version, to read it for any length of time.

        Raises:
            VersionRefused: It is not retained.
        """
        return Pin(self._set.pin(_version(version)))

    def changed(self, since: int | None, upto: int, *, parts: int = 64) -> Generator[Changes, None, None]:
        """Yield the changes from one version to another while writers continue.

        Both versions are held from this call until the last changes are taken or the iterator is dropped. `since` None
        yields the whole of `upto`, which may be sealed. `parts` of a table's 1,024 parts come at once, which bounds
        memory.

        Raises:
            VersionRefused: A version is not retained.
            TableBusy: The exported version has been discarded.
        """
        # Not a generator itself, so that both versions are held from the call on.
        export = self._set.changed(None if since is None else _version(since), _version(upto))
        return self._exported(export, whole("parts", parts, 1, native.TABLE_PARTS))

    def _exported(self, export: Any, parts: int) -> Generator[Changes, None, None]:
        try:
            for number, table in enumerate(self.tables.values()):
                for begin in range(0, native.TABLE_PARTS, parts):
                    exported = export.read(number, begin, min(begin + parts, native.TABLE_PARTS))
                    yield Changes.of(table.options, exported)
        finally:
            # Even if a traceback still refers to it.
            export.close()


def _version(number: int) -> int:
    return whole("version", number, 0, UINT64_MAX)


def _threads(count: int) -> int:
    return whole("threads", count, 1, THREADS_MAX)
