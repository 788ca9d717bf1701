"""A set of tables under one count of versions: sealing, committing, staging, activating, rolling back, exporting."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any

from streamlearn.errors import ConfigError, UsageError
from streamlearn.native import native
from streamlearn.table.arguments import THREADS_MAX, UINT64_MAX, whole
from streamlearn.table.changes import Changes
from streamlearn.table.options import TableOptions
from streamlearn.table.pin import At, Pin, native_at
from streamlearn.table.table import Table

__all__ = ["TableSet"]

_RETIRE_WAIT_MS_MAX = 1000


class TableSet:
    """The tables of one model, and their versions.

    What is written belongs to the version that is open. `seal` closes it under a number and `commit` keeps it;
    `stage` does all of that with the changes of a version that was made elsewhere. Kept versions stay readable until
    they are retired. `activate` says which one readers follow, older or newer.

    Args:
        options: The tables, in the order the native core knows them by.

    Raises:
        TypeError: They are no sequence of `TableOptions`.
        UsageError: Two tables have one name.
        ConfigError: An option is out of its bounds.

    Attributes:
        tables: The tables by name.

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
        names = _names(options)
        if len(set(names)) != len(names):
            message = f"tables are named {', '.join(names)}"
            raise UsageError(message, help="give every table its own name")
        self._set = _made(options)
        made = [Table(self._set, number, one) for number, one in enumerate(options)]
        self.tables: dict[str, Table] = {table.name: table for table in made}

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
        """The names of the tables, in order."""
        return iter(self.tables)

    def __len__(self) -> int:
        """How many tables there are."""
        return len(self.tables)

    def __repr__(self) -> str:
        versions = f"retained={self.retained}, sealed={self.sealed}, active={self.active}"
        return f"TableSet({', '.join(self.tables)}; {versions})"

    @property
    def native(self) -> Any:
        """What the native core takes."""
        return self._set

    @property
    def dims(self) -> dict[str, int]:
        """Length of a row by table."""
        return {table.name: table.dim for table in self.tables.values()}

    def pack_flat(self, at: At, columns: Sequence[tuple[Any, ...]], shape: tuple[int, int, int, int], out: Any) -> None:
        """Write a flat matrix; `Packing` says of what."""
        native.pack_flat((self._set, native_at(self._set, at)), columns, shape, out)

    def pack_sequences(
        self, at: At, columns: Sequence[tuple[Any, ...]], shape: tuple[int, int, int, int, int], out: Any
    ) -> None:
        """Write a sequence block; `Packing` says of what."""
        native.pack_sequences((self._set, native_at(self._set, at)), columns, shape, out)

    @property
    def retained(self) -> list[int]:
        """Versions that are kept, oldest first."""
        versions: list[int] = self._set.retained
        return versions

    @property
    def sealed(self) -> int | None:
        """The version that is closed and not yet committed."""
        version: int | None = self._set.sealed
        return version

    @property
    def active(self) -> int | None:
        """The version that readers follow."""
        version: int | None = self._set.active
        return version

    @property
    def retiring(self) -> int:
        """Versions that were retired while a reader of before was still at work; their rows wait for it."""
        count: int = self._set.retiring
        return count

    def seal(self, version: int) -> None:
        """Close the version that is open, when running writes have ended; sealing it again changes nothing.

        Raises:
            TableBusy: Another version is sealed and not committed.
            VersionRefused: The number does not follow the newest one.
        """
        self._set.seal(_version(version))

    def commit(self, version: int) -> None:
        """Keep the sealed version.

        Raises:
            VersionRefused: It is not the sealed one.
        """
        self._set.commit(_version(version))

    def abandon(self, version: int) -> None:
        """Give up the sealed version: what it wrote belongs to the open one again, and the next one sealed says it all.

        Giving up the same version again changes nothing. Its number is not needed any more.

        Raises:
            VersionRefused: It is not the sealed one.
            TableBusy: A pin or an export holds it.
        """
        self._set.abandon(_version(version))

    def discard(self, *, threads: int = 1) -> None:
        """Drop everything that is not committed, sealed or open. Exports under way end with `TableBusy`.

        Rows alone go back. How often keys without a row were seen and where expiry is stay as they are, and go back
        with `Table.restore` of the `Table.upkeep` that was asked for at the same step as the version.

        Raises:
            TableBusy: The sealed version is pinned.
        """
        self._set.discard(_threads(threads))

    def stage(
        self, version: int, parent: int | None, changes: Changes | Iterable[Changes], *, threads: int = 1
    ) -> None:
        """Make a version of what was exported elsewhere; it is kept, and not yet active. On an error nothing of it is.

        Args:
            version: Its number.
            parent: The version the changes were made against; None for the first, which holds everything.
            changes: Rows and keys that are gone, each key once.
            threads: How many threads share the work.

        Raises:
            VersionRefused: The parent is not the newest version, or a key is given twice.
            TableBusy: A version is sealed and not committed, or is being staged, or something was written since the
                last one. Meanwhile whoever else writes, seals or discards is told so.
            TableFull: All rows are taken.
        """
        changes = [changes] if isinstance(changes, Changes) else changes
        version, threads = _version(version), _threads(threads)
        self._set.begin_staging(None if parent is None else _version(parent))
        try:
            for one in changes:
                self[one.table].stage(one, threads=threads)
            self._set.end_staging(version)
        except BaseException:
            self._set.drop_staging(threads)
            raise

    def activate(self, version: int) -> None:
        """Make readers follow a version that is kept, older or newer; one store of an integer.

        Raises:
            VersionRefused: It is not kept.
        """
        self._set.activate(_version(version))

    def retire(self, version: int, *, wait_ms_max: int = _RETIRE_WAIT_MS_MAX, threads: int = 1) -> None:
        """Keep a version no longer; of a version between two others, its changes become the next one's.

        Its rows are used again once the readers of before have passed. Readers are waited for no longer than
        `wait_ms_max`; what is left then goes with the next call, see `retiring`.

        Raises:
            VersionRefused: It is not kept, is active, or is the newest.
            TableBusy: A pin or an export holds it.
        """
        wait_ms_max = whole("wait_ms_max", wait_ms_max, 0, UINT64_MAX)
        self._set.retire(_version(version), wait_ms_max, _threads(threads))

    def sweep(self, *, wait_ms_max: int = 0, threads: int = 1) -> None:
        """Use rows again that no version needs any more: of versions retired beside a reader, or given up.

        Args:
            wait_ms_max: How long readers of before are waited for; what is left goes with the next call.
            threads: How many threads share the work.
        """
        self._set.sweep(whole("wait_ms_max", wait_ms_max, 0, UINT64_MAX), _threads(threads))

    def pin(self, version: int) -> Pin:
        """Hold a version, kept or sealed, to read it however long that takes.

        Raises:
            VersionRefused: It is not kept.
        """
        return Pin(self._set.pin(_version(version)))

    def changed(self, since: int | None, upto: int, *, parts: int = 64) -> Generator[Changes, None, None]:
        """What changed from one version to another, while writers go on.

        Both versions are held until the last changes were taken, or the iterator is let go of.

        Args:
            since: The earlier version; None gives everything there is in the later one.
            upto: The later version, kept or sealed.
            parts: How many of a table's 1,024 parts come at once: what bounds the memory this takes.

        Raises:
            VersionRefused: A version is not kept.
            TableBusy: What was to be exported has been discarded.
        """
        # Both versions are held from here on, and not from when the first changes are asked for.
        export = self._set.changed(None if since is None else _version(since), _version(upto))
        return self._exported(export, whole("parts", parts, 1, native.TABLE_PARTS))

    def _exported(self, export: Any, parts: int) -> Generator[Changes, None, None]:
        try:
            for number, table in enumerate(self.tables.values()):
                for begin in range(0, native.TABLE_PARTS, parts):
                    found = export.read(number, begin, min(begin + parts, native.TABLE_PARTS))
                    yield Changes.of(table.options, found)
        finally:
            # Also where a traceback still knows of it.
            export.close()


def _names(options: Sequence[TableOptions]) -> list[str]:
    """The tables' names."""
    if not isinstance(options, Sequence) or not all(isinstance(one, TableOptions) for one in options):
        message = f"options: expected a list of TableOptions, got {options!r:.200}"
        raise TypeError(message)
    return [one.spec.name for one in options]


def _made(options: Sequence[TableOptions]) -> Any:
    try:
        return native.TableSet([_settings(one) for one in options])
    except (ValueError, OverflowError) as error:
        message = f"tables {', '.join(one.spec.name for one in options)}: {error}"
        raise ConfigError(message, help="see streamlearn.table.TableOptions") from None


def _version(number: int) -> int:
    return whole("version", number, 0, UINT64_MAX)


def _threads(count: int) -> int:
    return whole("threads", count, 1, THREADS_MAX)


def _settings(options: TableOptions) -> tuple[Any, ...]:
    spec, optimizer, admission = options.spec, options.optimizer, options.admission
    rule = None
    if optimizer is not None:
        kind = type(optimizer).__struct_config__.tag
        rule = (kind, optimizer.numbers(), optimizer.weight_decay, optimizer.clip_norm, optimizer.clip_value)
    counted = None if admission is None else (admission.width_counters, admission.window_ms)
    initial = (options.seed, spec.initial_range)
    return (spec.dim, options.row_type, rule, counted, initial, options.tick_ms, options.rows_max)
