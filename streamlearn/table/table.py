"""One table of a set: lookups, pushes and expiry. The set owns the versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from streamlearn.errors import ConfigError, UsageError
from streamlearn.native import native
from streamlearn.table.arguments import INT64_MAX, INT64_MIN, THREADS_MAX, UINT64_MAX, flat, instance, number_of, whole
from streamlearn.table.changes import DTYPES, Changes
from streamlearn.table.options import Expiry, TableOptions
from streamlearn.table.pin import At, native_at

__all__ = ["Expired", "PushOptions", "Pushed", "RowArrays", "Table", "TableStats", "Upkeep"]

Float32s = npt.NDArray[np.float32]
Uint64s = npt.NDArray[np.uint64]
Uint32s = npt.NDArray[np.uint32]

# The largest count of keys without a row.
_THRESHOLD_MAX = 15
# Ticks wrap around at this number, so ages are known up to half of it.
_TICKS = 1 << 24


class PushOptions(NamedTuple):
    """The arguments of `Table.push` beside keys and gradients."""

    counts: Any
    admit: Sequence[tuple[int, int]]
    now_ms: int
    rate_scale: float


class RowArrays(NamedTuple):
    """Rows to put, as `floats` or as stored `numbers`, and what is stored beside them."""

    floats: Any = None  # float32[n, dim]
    numbers: Any = None  # uint8, the rows as their type stores them
    scales: Any = None  # float32[n], the scales of int8 numbers
    state: Any = None  # float32[n, state], the optimizer's state
    ticks: Any = None  # uint32[n], last uses
    counts: Any = None  # uint8[n], counts of uses


@dataclass(frozen=True)
class Pushed:
    """The result of a push, in distinct keys."""

    learned: int  # keys whose rows learned
    created: int  # keys among them that were new
    waiting: int  # keys that have not occurred often enough to get a row


@dataclass(frozen=True)
class Expired:
    """The result of a call of `Table.expire`, in keys."""

    scanned: int  # keys that were checked
    idle: int  # keys that left because they were unused
    rare: int  # keys that left because they were rarely used
    over: int  # keys that left because there were too many


@dataclass(frozen=True)
class TableStats:
    """The size of a table and the memory that it uses."""

    keys: int  # keys of the newest version
    gone: int  # keys that only older versions have
    rows: int  # rows in use, including older images
    images: int  # images that only some readers see
    slots: int  # slots of the index, of which `keys + gone` are in use
    free_rows: int  # rows that can be reused
    waiting_rows: int  # rows that wait for readers to finish
    embedding_bytes: int
    state_bytes: int  # optimizer state
    use_bytes: int  # last uses and counts of rows
    index_bytes: int
    images_bytes: int  # records of images, without their rows
    touched_bytes: int  # lists of keys that versions touched
    sketch_bytes: int  # counts of keys without a row
    bytes: int  # the sum

    @property
    def load(self) -> float:
        """The share of the index that is in use."""
        return (self.keys + self.gone) / self.slots if self.slots else 0.0


@dataclass(frozen=True, eq=False)
class Upkeep:
    """The state of a table beside its rows, which is saved with a version."""

    pages: Mapping[int, bytes]  # by part, the counts of keys without a row, as bytes in a format of their own
    next_part: int  # the part that expiry checks next
    hands: Uint64s  # uint64[1024]: the position of expiry in each part


class Table:
    """One table of a `TableSet`, which makes it.

    Several threads may call it at once. Readers never wait for writers; two writers wait for each other only if they
    write to the same of the 1,024 parts.
    """

    def __init__(self, native_set: Any, number: int, options: TableOptions) -> None:
        self.options = options
        self._set = native_set
        self._number = number

    def __len__(self) -> int:
        """Return the number of keys in the newest version."""
        return self.stats().keys

    def __bool__(self) -> bool:
        """Return True: an empty table counts as a table."""
        return True

    def __repr__(self) -> str:
        return f"Table({self.name!r}, keys={len(self)}, {self.options.row_type}, dim={self.dim})"

    @property
    def name(self) -> str:
        """The name of the table."""
        return self.options.spec.name

    @property
    def dim(self) -> int:
        """The length of a row."""
        return self.options.spec.dim

    @property
    def state_width(self) -> int:
        """How many numbers of optimizer state a row has."""
        optimizer = self.options.optimizer
        return 0 if optimizer is None else optimizer.state_width(self.dim)

    def lookup(self, keys: Uint64s, *, at: At = "newest", out: Float32s | None = None, threads: int = 1) -> Float32s:
        """Return the rows of keys in `out`, a float32[n, dim], or in a new array.

        `keys` is uint64[n]; any value is a key. A key without a row returns its initial row, and stores nothing.

        Raises:
            VersionRefused: `at` is "active" and no version is active.
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
        """Update rows with their gradients. Gradients of the same key are first summed in their order.

        Args:
            keys: uint64[n].
            gradients: float32[n, dim].
            now_ms: Table time, stored as the last use of the rows.
            counts: uint32[n]. How often each key occurred; once by default.
            admit: Pairs `(end, threshold)` for runs of keys: keys before `end` get a row after `threshold` occurrences,
                1 to 15. Keys after the last run get one at once.
            rate_scale: The factor of the optimizer's rate.
            threads: How many threads share the work; the result does not depend on it.

        Raises:
            TableFull: All rows are in use. Discard what is not committed.
            UsageError: There is a threshold above 1, but the table does not count keys without a row.
        """
        keys = flat("keys", keys, np.uint64, (None,))
        gradients = flat("gradients", gradients, np.float32, (len(keys), self.dim))
        counts = None if counts is None else flat("counts", counts, np.uint32, (len(keys),))
        runs = self._runs_of(admit, len(keys))
        now_ms, rate_scale = whole("now_ms", now_ms, INT64_MIN, INT64_MAX), number_of("rate_scale", rate_scale)
        threads = whole("threads", threads, 1, THREADS_MAX)
        return self.push_checked(keys, gradients, PushOptions(counts, runs, now_ms, rate_scale), threads)

    def push_checked(self, keys: Uint64s, gradients: Float32s, options: PushOptions, threads: int) -> Pushed:
        """Do what `push` does, with arguments that the caller has checked; gradients are one dimension."""
        return Pushed(*self._set.push(self._number, keys, gradients, options, threads))

    def _runs_of(self, admit: Sequence[tuple[int, int]], keys_count: int) -> list[tuple[int, int]]:
        """Check the admission thresholds of runs of keys."""
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
        """Set rows to given values, such as those of another system; the last row of a repeated key counts.

        `keys` is uint64[n]; `rows` is float32[n, dim], stored in the table's row type; `state` is float32[n, state],
        and starts fresh by default. With the table time `now_ms` each row counts as used once. Without it existing rows
        keep their use, and new ones count as never used, so expiry by age does not apply to them.

        Raises:
            TableFull: All rows are in use.
        """
        keys = flat("keys", keys, np.uint64, (None,))
        rows = flat("rows", rows, np.float32, (len(keys), self.dim))
        state = None if state is None else flat("state", state, np.float32, (len(keys), self.state_width))
        threads = whole("threads", threads, 1, THREADS_MAX)
        arrays = RowArrays(rows, state=state)
        if now_ms is not None:
            tick = whole("now_ms", now_ms, INT64_MIN, INT64_MAX) // self.options.tick_ms % _TICKS
            ticks, used = np.full(len(keys), tick, np.uint32), np.ones(len(keys), np.uint8)
            arrays = arrays._replace(ticks=ticks, counts=used)
        self._set.put(self._number, keys, arrays, False, threads)

    def apply(self, changes: Changes, *, threads: int = 1) -> None:
        """Set rows and remove keys as an export states.

        Rows have this table's row type, or float32. A table without an optimizer ignores their state. Without ticks and
        counts existing rows keep theirs, and new ones count as never used.

        Raises:
            UsageError: The changes name another table; an empty name fits every table.
            TableFull: All rows are in use.
        """
        self._apply(changes, False, threads)

    def stage(self, changes: Changes, *, threads: int = 1) -> None:
        """Apply changes to a version that is being staged, which may hold each key once. Call `TableSet.stage`.

        Raises:
            VersionRefused: The open version has the key already.
            TableFull: All rows are in use.
        """
        self._apply(changes, True, threads)

    def _apply(self, changes: Changes, refuse_twice: bool, threads: int) -> None:
        self._check_changes(changes)
        keys, threads = flat("keys", changes.keys, np.uint64, (None,)), whole("threads", threads, 1, THREADS_MAX)
        gone = None if changes.gone is None else flat("gone", changes.gone, np.uint64, (None,))
        arrays = RowArrays(*self._rows_of(changes), self._state_of(changes), *_uses_of(changes))
        self._set.put(self._number, keys, arrays, refuse_twice, threads)
        if gone is not None and len(gone):
            self._set.remove(self._number, gone, refuse_twice, threads)

    def _check_changes(self, changes: Changes) -> None:
        instance("changes", changes, Changes, "Changes")
        if changes.table not in ("", self.name):
            message = f"changes of table {changes.table!r} were given to table {self.name!r}"
            raise UsageError(message, help="if they belong to this one, give `dataclasses.replace(changes, table='')`")

    def _rows_of(self, changes: Changes) -> tuple[Any, Any, Any]:
        """Return the rows as floats, or as stored numbers with their scales."""
        shape, stored = (len(changes.keys), self.dim), DTYPES[self.options.row_type]
        given = getattr(changes.rows, "dtype", None)
        is_stored = given == stored
        if given in (np.float16, np.int8) and not is_stored:
            expected = "float32" if stored == "<f4" else f"float32 or {self.options.row_type}"
            message = (
                f"rows: expected a C-contiguous {expected} array, got {given} array; "
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
        """Return the optimizer's state; None if there is none, or the table does not learn."""
        if changes.state is None or not self.state_width or changes.state.shape[1:] == (0,):
            return None
        shape = (len(changes.keys), self.state_width)
        if len(changes.state) == shape[0] and changes.state.shape[1:] != shape[1:]:
            message = (
                f"state: expected the shape {shape}, got {changes.state.shape}, which belongs to another optimizer; "
                "`dataclasses.replace(changes, state=None)` drops it, so that the optimizer starts from zero"
            )
            raise ValueError(message)
        return flat("state", changes.state, np.float32, shape)

    def remove(self, keys: Uint64s, *, threads: int = 1) -> int:
        """Remove keys, uint64[n], and return how many of them had a row; unknown keys are ignored."""
        keys, threads = flat("keys", keys, np.uint64, (None,)), whole("threads", threads, 1, THREADS_MAX)
        removed: int = self._set.remove(self._number, keys, False, threads)
        return removed

    def expire(self, expiry: Expiry, *, now_ms: int, budget_keys: int) -> Expired:
        """Check about `budget_keys` keys, at most once each, from where the last call ended, and remove expired ones.

        `now_ms` is table time.

        Raises:
            ConfigError: An age of `expiry` is beyond the range of the table's ticks.
        """
        self._check_expiry(expiry)
        now_ms = whole("now_ms", now_ms, INT64_MIN, INT64_MAX)
        budget_keys = whole("budget_keys", budget_keys, 0, UINT64_MAX)
        return Expired(*self._set.expire(self._number, expiry, now_ms, budget_keys))

    def _check_expiry(self, expiry: Expiry) -> None:
        instance("expiry", expiry, Expiry, "an Expiry")
        # An age is at most one tick less than half the range, and a key leaves when its age is longer than the limit.
        limit_ms = (_TICKS // 2 - 1) * self.options.tick_ms
        for name in ("idle_ms", "rare_idle_ms"):
            age_ms = getattr(expiry, name)
            if age_ms is not None and age_ms >= limit_ms:
                message = f"expiry of table {self.name!r}: {name} is {age_ms}, and with a tick_ms of "
                message += f"{self.options.tick_ms} ages must be below {limit_ms}"
                raise ConfigError(message, help="lower it, or create the table with a longer `TableOptions.tick_ms`")

    def upkeep(self, *, changed_only: bool = False) -> Upkeep:
        """Return the state beside the rows. Call it at a step boundary, before the next write.

        With `changed_only`, pages that have not changed since the last call are left out.
        """
        pages = dict(self._set.take_pages(self._number, 0, native.TABLE_PARTS, changed_only))
        return Upkeep(pages, *self._set.hands(self._number, 0, native.TABLE_PARTS))

    def restore(self, upkeep: Upkeep) -> None:
        """Continue from a saved state; parts without a page have counted nothing.

        Raises:
            ValueError: A page does not fit a table with these options; all counts are then 0.
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
        """Return the table's size and the memory that it uses."""
        return TableStats(**self._set.size(self._number))


def _uses_of(changes: Changes) -> tuple[Any, Any]:
    """Return the last uses and counts of rows, or None for both."""
    shape = (len(changes.keys),)
    if (changes.ticks is None) != (changes.counts is None):
        missing = "counts" if changes.counts is None else "ticks"
        message = f"{missing}: missing; give both ticks and counts, or neither"
        raise ValueError(message)
    if changes.ticks is None or changes.counts is None:
        return None, None
    ticks = flat("ticks", changes.ticks, np.uint32, shape)
    if len(ticks) and int(ticks.max()) >= _TICKS:
        bound = f"expected 0 to {_TICKS - 1}, got {int(ticks.max())}"
        message = f"ticks: {bound}; ticks wrap around: give `ticks % {_TICKS}`"
        raise ValueError(message)
    return ticks, flat("counts", changes.counts, np.uint8, shape)
