"""One table of a set: keys in, rows out, and what rows learn. Versions are the set's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.errors import ConfigError, UsageError
from streamlearn.native import native
from streamlearn.table.arguments import INT64_MAX, INT64_MIN, THREADS_MAX, UINT64_MAX, flat, instance, number_of, whole
from streamlearn.table.changes import DTYPES, Changes
from streamlearn.table.options import Expiry, TableOptions
from streamlearn.table.pin import At, native_at

__all__ = ["Expired", "Pushed", "Table", "TableStats", "Upkeep"]

Float32s = npt.NDArray[np.float32]
Uint64s = npt.NDArray[np.uint64]
Uint32s = npt.NDArray[np.uint32]

# Counts of keys without a row go no further.
_THRESHOLD_MAX = 15
# Ticks go round, and an age is told up to half of that.
_TICKS = 1 << 24


@dataclass(frozen=True)
class Pushed:
    """What a push did.

    Attributes:
        learned: Keys whose rows learned, each once.
        created: Those of them that had no row before.
        waiting: Keys that were not seen often enough to get one.
    """

    learned: int
    created: int
    waiting: int


@dataclass(frozen=True)
class Expired:
    """What expiry did.

    Attributes:
        scanned: Keys that were looked at.
        idle: Keys that left for not being used.
        rare: Keys that left for being used too rarely.
        over: Keys that left because there were too many.
    """

    scanned: int
    idle: int
    rare: int
    over: int


@dataclass(frozen=True)
class TableStats:
    """What a table holds, and the memory that takes.

    Attributes:
        keys: Keys there are in the newest version.
        gone: Keys that are gone in it and still there for an older one.
        rows: Rows in use, those of older images among them.
        images: Images that not every reader sees.
        slots: Places for keys in the index; `keys + gone` of them are taken.
        free_rows: Rows to be used again.
        waiting_rows: Rows that wait for readers to pass.
        embedding_bytes: Bytes of embeddings.
        state_bytes: Bytes of optimizer state.
        use_bytes: Bytes of when and how often rows were used.
        index_bytes: Bytes of the index.
        images_bytes: Bytes of what is known of images beside their rows.
        touched_bytes: Bytes of the lists of keys that versions touched.
        sketch_bytes: Bytes of the counts of keys without a row.
        bytes: All of them.
    """

    keys: int
    gone: int
    rows: int
    images: int
    slots: int
    free_rows: int
    waiting_rows: int
    embedding_bytes: int
    state_bytes: int
    use_bytes: int
    index_bytes: int
    images_bytes: int
    touched_bytes: int
    sketch_bytes: int
    bytes: int

    @property
    def load(self) -> float:
        """How full the index is."""
        return (self.keys + self.gone) / self.slots if self.slots else 0.0


@dataclass(frozen=True, eq=False)
class Upkeep:
    """What a table knows beside its rows, to be saved with a version.

    Attributes:
        pages: How often keys without a row were seen: by part, as bytes of their own format.
        next_part: The part that expiry looks at next.
        hands: uint64[1024]. Where it is in each part.
    """

    pages: Mapping[int, bytes]
    next_part: int
    hands: Uint64s


class Table:
    """One table of a `TableSet`; made by it.

    Calls may come from several threads at once. Readers never wait for writers; two writers wait for each other
    only where they meet in one of the 1,024 parts.

    Attributes:
        options: What it is made of.
    """

    def __init__(self, native_set: Any, number: int, options: TableOptions) -> None:
        self.options = options
        self._set = native_set
        self._number = number

    def __len__(self) -> int:
        """How many keys there are in the newest version."""
        return self.stats().keys

    def __bool__(self) -> bool:
        """A table is there, whether or not it has keys."""
        return True

    def __repr__(self) -> str:
        return f"Table({self.name!r}, keys={len(self)}, {self.options.row_type}, dim={self.dim})"

    @property
    def name(self) -> str:
        """Its name."""
        return self.options.spec.name

    @property
    def dim(self) -> int:
        """Length of a row."""
        return self.options.spec.dim

    @property
    def state_width(self) -> int:
        """Numbers of optimizer state a row has."""
        optimizer = self.options.optimizer
        return 0 if optimizer is None else optimizer.state_width(self.dim)

    def lookup(self, keys: Uint64s, *, at: At = "newest", out: Float32s | None = None, threads: int = 1) -> Float32s:
        """The rows of keys; a key that was never stored has its initial row, and stores nothing.

        Args:
            keys: uint64[n]; any value is a key.
            at: Which version to read.
            out: float32[n, dim] to write into; a new array by default.
            threads: How many threads share the work.

        Returns:
            `out`, or the new array.

        Raises:
            VersionRefused: `at` is "active" and no version is.
        """
        keys = flat("keys", keys, np.uint64, (None,))
        out = np.empty((len(keys), self.dim), np.float32) if out is None else out
        into = flat("out", out, np.float32, (len(keys), self.dim))
        self._set.lookup(self._number, keys, native_at(self._set, at), into, whole("threads", threads, 1, THREADS_MAX))
        return out

    def push(
        self,
        keys: Uint64s,
        gradients: Float32s,
        *,
        now_ms: int,
        counts: Uint32s | None = None,
        admit: Sequence[tuple[int, int]] = (),
        rate_scale: float = 1.0,
        threads: int = 1,
    ) -> Pushed:
        """Let rows learn from their gradients, once a key: gradients of the same key are summed in their order.

        Args:
            keys: uint64[n].
            gradients: float32[n, dim].
            now_ms: Table time, which rows keep as that of their last use.
            counts: How often each key was seen; once by default.
            admit: `(end, threshold)` by runs of keys: those before `end` get a row when they were seen `threshold`
                times, 1 to 15; keys after the last run get one at once.
            rate_scale: What the optimizer's rate is multiplied with.
            threads: How many threads share the work; the result does not depend on it.

        Raises:
            TableFull: All rows are taken; what is not committed is to be discarded.
            UsageError: A threshold is asked for, and the table does not count keys without a row.
        """
        keys = flat("keys", keys, np.uint64, (None,))
        gradients = flat("gradients", gradients, np.float32, (len(keys), self.dim))
        counts = None if counts is None else flat("counts", counts, np.uint32, (len(keys),))
        runs = self._runs_of(admit, len(keys))
        times = (whole("now_ms", now_ms, INT64_MIN, INT64_MAX), number_of("rate_scale", rate_scale))
        threads = whole("threads", threads, 1, THREADS_MAX)
        return Pushed(*self._set.push(self._number, keys, gradients, counts, runs, times, threads))

    def _runs_of(self, admit: Sequence[tuple[int, int]], keys_count: int) -> list[tuple[int, int]]:
        """How often keys are to be seen, by runs of them."""
        runs = []
        for run in admit:
            try:
                end, threshold = run
            except (TypeError, ValueError):
                message = f"admit: expected pairs (end, threshold), got {run!r}"
                raise TypeError(message) from None
            end = whole("admit: end", end, 0, keys_count)
            runs.append((end, whole("admit: threshold", threshold, 1, _THRESHOLD_MAX)))
        if self.options.admission is None and any(threshold > 1 for _, threshold in runs):
            message = f"admit: table {self.name!r} does not count keys that have no row yet"
            raise UsageError(message, help="set an admission in its options: `TableOptions(admission=Admission())`")
        return runs

    def put(
        self,
        keys: Uint64s,
        rows: Float32s,
        *,
        state: Float32s | None = None,
        now_ms: int | None = None,
        threads: int = 1,
    ) -> None:
        """Set rows as they are, such as those of another system; of a key given twice the later row counts.

        Args:
            keys: uint64[n].
            rows: float32[n, dim]; stored in the table's row type.
            state: float32[n, state] of the optimizer; begun anew by default.
            now_ms: Table time, as which each row is once used; by default a row that is there keeps what it has, and a
                new one was never used, so that it has no age for expiry to go by.
            threads: How many threads share the work.

        Raises:
            TableFull: All rows are taken.
        """
        keys = flat("keys", keys, np.uint64, (None,))
        rows = flat("rows", rows, np.float32, (len(keys), self.dim))
        state = None if state is None else flat("state", state, np.float32, (len(keys), self.state_width))
        threads = whole("threads", threads, 1, THREADS_MAX)
        uses: tuple[Any, Any] = (None, None)
        if now_ms is not None:
            tick = whole("now_ms", now_ms, INT64_MIN, INT64_MAX) // self.options.tick_ms % _TICKS
            uses = (np.full(len(keys), tick, np.uint32), np.ones(len(keys), np.uint8))
        self._set.put(self._number, keys, (rows, None, None), state, uses, False, threads)

    def apply(self, changes: Changes, *, threads: int = 1) -> None:
        """Set rows and take keys away as an export says.

        Args:
            changes: What to set; its rows are of this table's row type, or float32. A table without an optimizer
                leaves their state aside. Without ticks and counts a row that is there keeps its own, and a new one
                was never used.
            threads: How many threads share the work.

        Raises:
            UsageError: The changes name another table; no name at all is taken as this one's.
            TableFull: All rows are taken.
        """
        self._apply(changes, False, threads)

    def stage(self, changes: Changes, *, threads: int = 1) -> None:
        """The same into a version that is being staged, which says of each key once what it says.

        `TableSet.stage` is what to call.

        Raises:
            VersionRefused: A key was already written in the version that is open.
            TableFull: All rows are taken.
        """
        self._apply(changes, True, threads)

    def _apply(self, changes: Changes, refuse_twice: bool, threads: int) -> None:
        self._check_changes(changes)
        keys, threads = flat("keys", changes.keys, np.uint64, (None,)), whole("threads", threads, 1, THREADS_MAX)
        gone = None if changes.gone is None else flat("gone", changes.gone, np.uint64, (None,))
        self._set.put(
            self._number,
            keys,
            self._rows_of(changes),
            self._state_of(changes),
            _uses_of(changes),
            refuse_twice,
            threads,
        )
        if gone is not None and len(gone):
            self._set.remove(self._number, gone, refuse_twice, threads)

    def _check_changes(self, changes: Changes) -> None:
        instance("changes", changes, Changes, "Changes")
        if changes.table not in ("", self.name):
            message = f"changes of table {changes.table!r} were given to table {self.name!r}"
            raise UsageError(message, help="if they belong to this one, give `dataclasses.replace(changes, table='')`")

    def _rows_of(self, changes: Changes) -> tuple[Any, Any, Any]:
        """Floats, or stored numbers and their scales."""
        shape, stored = (len(changes.keys), self.dim), DTYPES[self.options.row_type]
        found = getattr(changes.rows, "dtype", None)
        is_stored = found == stored
        if found in (np.float16, np.int8) and not is_stored:
            taken = "float32" if stored == "<f4" else f"float32 or {self.options.row_type}"
            message = (
                f"rows: expected a C-contiguous {taken} array, got {found} array; "
                "`dataclasses.replace(changes, rows=changes.floats(), scales=None)` has them as float32"
            )
            raise TypeError(message)
        rows = flat("rows", changes.rows, stored if is_stored else np.float32, shape)
        has_scales = is_stored and self.options.row_type == "int8"
        if has_scales != (changes.scales is not None):
            some = "none" if changes.scales is None else "some"
            message = f"scales: rows of {changes.rows.dtype} for a table of {self.options.row_type} came with {some}"
            raise ValueError(message)
        if rows.dtype == np.float32:
            return rows, None, None
        scales = None if changes.scales is None else flat("scales", changes.scales, np.float32, shape[:1])
        return None, rows.view(np.uint8), scales

    def _state_of(self, changes: Changes) -> Float32s | None:
        """The optimizer's state; a table that does not learn has no place for it."""
        if changes.state is None or not self.state_width or changes.state.shape[1:] == (0,):
            return None
        shape = (len(changes.keys), self.state_width)
        if len(changes.state) == shape[0] and changes.state.shape[1:] != shape[1:]:
            message = (
                f"state: expected the shape {shape}, got {changes.state.shape}, which belongs to another "
                "optimizer; `dataclasses.replace(changes, state=None)` drops it, so that the optimizer starts "
                "from zero"
            )
            raise ValueError(message)
        return flat("state", changes.state, np.float32, shape)

    def remove(self, keys: Uint64s, *, threads: int = 1) -> int:
        """Take keys away.

        Args:
            keys: uint64[n]; those that are not there change nothing.
            threads: How many threads share the work.

        Returns:
            How many were there.
        """
        keys, threads = flat("keys", keys, np.uint64, (None,)), whole("threads", threads, 1, THREADS_MAX)
        removed: int = self._set.remove(self._number, keys, False, threads)
        return removed

    def expire(self, expiry: Expiry, *, now_ms: int, budget_keys: int) -> Expired:
        """Look at some keys from where the last call ended, and let those leave that are to.

        Args:
            expiry: Which keys leave.
            now_ms: Table time.
            budget_keys: About how many keys are looked at, at most once each.

        Raises:
            ConfigError: An age is longer than the table's ticks can tell.
        """
        self._check_expiry(expiry)
        now_ms = whole("now_ms", now_ms, INT64_MIN, INT64_MAX)
        budget_keys = whole("budget_keys", budget_keys, 0, UINT64_MAX)
        limits = (expiry.idle_ms, expiry.count_min, expiry.rare_idle_ms, expiry.keys_max)
        return Expired(*self._set.expire(self._number, limits, now_ms, budget_keys))

    def _check_expiry(self, expiry: Expiry) -> None:
        instance("expiry", expiry, Expiry, "an Expiry")
        # An age is at most one tick less than half a round, and a key leaves when its age is longer.
        told_ms = (_TICKS // 2 - 1) * self.options.tick_ms
        for name in ("idle_ms", "rare_idle_ms"):
            age_ms = getattr(expiry, name)
            if age_ms is not None and age_ms >= told_ms:
                message = f"expiry of table {self.name!r}: {name} is {age_ms}, and with a tick_ms of "
                message += f"{self.options.tick_ms} ages must be below {told_ms}"
                raise ConfigError(message, help="lower it, or create the table with a longer `TableOptions.tick_ms`")

    def upkeep(self, *, changed_only: bool = False) -> Upkeep:
        """What it knows beside its rows; to be asked for at a step boundary, before anything is written again.

        Args:
            changed_only: Leave out pages that are the same as when they were last asked for.
        """
        pages = dict(self._set.take_pages(self._number, 0, native.TABLE_PARTS, changed_only))
        return Upkeep(pages, *self._set.hands(self._number, 0, native.TABLE_PARTS))

    def restore(self, upkeep: Upkeep) -> None:
        """Go on from what was saved; parts it has no page of have counted nothing.

        Raises:
            ValueError: A page is not one of a table with these options; nothing is counted then.
        """
        parts = native.TABLE_PARTS
        hands = flat("hands", upkeep.hands, np.uint64, (parts,))
        next_part = whole("next_part", upkeep.next_part, 0, parts - 1)
        pages = [(whole("pages: part", part, 0, parts - 1), page) for part, page in upkeep.pages.items()]
        self._set.clear_pages(self._number)
        try:
            for part, page in pages:
                self._set.put_page(self._number, part, page)
        except ValueError:
            self._set.clear_pages(self._number)
            raise
        self._set.set_hands(self._number, 0, next_part, hands)

    def stats(self) -> TableStats:
        """What it holds, and the memory that takes."""
        return TableStats(**self._set.size(self._number))


def _uses_of(changes: Changes) -> tuple[Any, Any]:
    """When and how often rows were used."""
    shape = (len(changes.keys),)
    if (changes.ticks is None) != (changes.counts is None):
        missing = "counts" if changes.counts is None else "ticks"
        message = f"{missing}: missing; give both ticks and counts, or neither"
        raise ValueError(message)
    if changes.ticks is None or changes.counts is None:
        return None, None
    ticks = flat("ticks", changes.ticks, np.uint32, shape)
    if len(ticks) and int(ticks.max()) >= _TICKS:
        message = (
            f"ticks: expected 0 to {_TICKS - 1}, got {int(ticks.max())}; ticks wrap around: give `ticks % {_TICKS}`"
        )
        raise ValueError(message)
    return ticks, flat("counts", changes.counts, np.uint8, shape)
