"""Diff: the differences between two versions, table by table and tensor by tensor, from files alone."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.errors import UsageError
from streamlearn.table import Changes
from streamlearn.versions.format.chain import Chain
from streamlearn.versions.format.loading import load_tensors
from streamlearn.versions.format.manifest import VersionRef
from streamlearn.versions.format.scratch import Progress, scan_table
from streamlearn.versions.store.defect import defective
from streamlearn.versions.store.interface import Store
from streamlearn.versions.store.settings import ScanSettings, checked

__all__ = ["DenseMove", "Diff", "RowMove", "TableComparison", "TableDiff", "diff"]

Array = npt.NDArray[Any]
Indices = npt.NDArray[np.int64]

_TOP_MAX = 100_000


@dataclass(frozen=True)
class RowMove:
    """How far the row of a key moved: the L2 norm of its difference, infinite where a row is not finite.

    `is_nan` says whether the row has a NaN in one of the versions.
    """

    key: int
    norm: float
    is_nan: bool = False


@dataclass(frozen=True)
class TableDiff:
    """The differences of a table.

    Attributes:
        keys: The number of keys in the first and in the second version.
        created: Keys that only the second has.
        gone: Keys that only the first has.
        changed: Keys with another row; for a table that learns, another training row.
        touched: Keys with the same row and another optimizer state or use.
        norm: L2 norm over all changed rows.
        largest: The rows that moved farthest, farthest first; of equal ones the smaller key first.
    """

    table: str
    keys: tuple[int, int]
    created: int
    gone: int
    changed: int
    touched: int
    norm: float
    largest: tuple[RowMove, ...]


@dataclass(frozen=True)
class DenseMove:
    """How far a tensor moved, as L2 norms; the norms before and after are None in a version without the tensor.

    `norm`, that of the difference, and `number_max`, the largest difference of one number, are None if only one version
    has the tensor, or its shape changed. `is_nan` says whether it has a NaN in one of the versions.
    """

    name: str
    norm: float | None
    norm_before: float | None
    norm_after: float | None
    number_max: float | None
    is_nan: bool = False


@dataclass(frozen=True)
class Diff:
    """Two versions side by side.

    Tensors (`dense`) that only one version has come first, then the others, farthest first. `metrics` has both values
    of each, None if a version lacks it.
    """

    before: VersionRef
    after: VersionRef
    tables: tuple[TableDiff, ...]
    dense: tuple[DenseMove, ...]
    metrics: dict[str, tuple[float | None, float | None]]


def diff(
    store: Store,
    model: str,
    before: int,
    after: int,
    *,
    top: int = 10,
    scan: ScanSettings | None = None,
    progress: Progress | None = None,
) -> Diff:
    """Compare two versions; the first may be the older or the newer one.

    `top` is the number of rows that are named in each table, those that moved farthest. `scan` limits the memory for
    rows; the dense weights of both versions are held in memory. `progress` takes the number of parts done and of all
    parts, over all tables.

    Raises:
        VersionDefect: There is no such version, or a chain is damaged.
        Oversize: A single part does not fit into `scan_bytes_max`.
    """
    if not 0 <= top <= _TOP_MAX:
        message = f"top is {top}"
        raise UsageError(message, help=f"ask for 0 to {_TOP_MAX} keys")
    memory = checked(scan or ScanSettings())
    chains = [Chain.find(store, model, version) for version in (before, after)]
    first, second = chains
    names = [[record.name for record in chain.manifest.tables] for chain in chains]
    if names[0] != names[1]:
        message = f"its tables are {names[1]}, but those of version {before} are {names[0]}"
        raise defective(second.head.folder, "incompatible", message)
    # The older one first, so that the newer is read on top of it.
    is_turned = first.version > second.version
    ordered = chains[::-1] if is_turned else chains
    tables = []
    for name in names[0]:
        tally = _Tally(name, top)
        for pair in scan_table(ordered, name, scan=memory, progress=progress):
            tally.add(*(pair[::-1] if is_turned else pair))
        tables.append(tally.total())
    dense = [load_tensors(store, chain.head) for chain in chains]
    metrics = [chain.manifest.metrics for chain in chains]
    both = {name: (metrics[0].get(name), metrics[1].get(name)) for name in sorted({*metrics[0], *metrics[1]})}
    return Diff(first.ref, second.ref, tuple(tables), tuple(_moves(dense[0], dense[1])), both)


@dataclass(frozen=True, eq=False)
class TableComparison:
    """The indices of keys in the arrays of two versions.

    Attributes:
        created: Keys that only the later one has; indices in the later.
        gone: Keys that only the earlier one has; indices in the earlier.
        changed: Keys with another row, state or use; indices in the earlier and in the later.
        moved: Those of `changed` with another row.
    """

    created: Indices
    gone: Indices
    changed: tuple[Indices, Indices]
    moved: tuple[Indices, Indices]

    @classmethod
    def of(cls, earlier: Changes, later: Changes) -> TableComparison:
        """Compare all that is known of each key, bit by bit."""
        _, old, new = np.intersect1d(earlier.keys, later.keys, assume_unique=True, return_indices=True)
        row = np.zeros(len(old), bool)
        for name in ("rows", "scales"):
            row |= _differ(getattr(earlier, name), getattr(later, name), (old, new))
        any_field = row.copy()
        for name in ("state", "ticks", "counts"):
            any_field |= _differ(getattr(earlier, name), getattr(later, name), (old, new))
        return cls(
            created=_without(len(later.keys), new),
            gone=_without(len(earlier.keys), old),
            changed=(old[any_field], new[any_field]),
            moved=(old[row], new[row]),
        )


class _Tally:
    """Sums up the differences of a table, part by part."""

    def __init__(self, table: str, top: int) -> None:
        self._table, self._top = table, top
        self._keys = [0, 0]
        self._counts = dict.fromkeys(("created", "gone", "changed", "touched"), 0)
        self._squares = 0.0
        # A heap of (norm, -key, is_nan): its first entry is the next to drop, of equal norms the larger key.
        self._largest: list[tuple[float, int, bool]] = []

    def add(self, before: Changes, after: Changes) -> None:
        """Add the same parts of both versions."""
        comparison = TableComparison.of(before, after)
        changed = len(comparison.moved[0])
        self._keys = [self._keys[0] + len(before), self._keys[1] + len(after)]
        self._counts["created"] += len(comparison.created)
        self._counts["gone"] += len(comparison.gone)
        self._counts["changed"] += changed
        self._counts["touched"] += len(comparison.changed[0]) - changed
        norms, nans = _norms(before, after, comparison)
        self._squares += float(np.square(norms).sum())
        self._keep(before.keys[comparison.moved[0]], norms, nans)

    def total(self) -> TableDiff:
        """The sum."""
        ordered = sorted(self._largest, key=lambda entry: (-entry[0], -entry[1]))
        largest = tuple(RowMove(-key, norm, is_nan) for norm, key, is_nan in ordered)
        norm = float(np.sqrt(self._squares))
        return TableDiff(self._table, (self._keys[0], self._keys[1]), **self._counts, norm=norm, largest=largest)

    def _keep(self, keys: npt.NDArray[np.uint64], norms: npt.NDArray[np.float64], nans: npt.NDArray[np.bool_]) -> None:
        if not self._top:
            return
        # Only the largest norms can be among the farthest, with all ties at the edge.
        if len(norms) > self._top:
            edge = np.partition(norms, len(norms) - self._top)[len(norms) - self._top]
            at = norms >= edge
            keys, norms, nans = keys[at], norms[at], nans[at]
        for key, norm, is_nan in zip(keys.tolist(), norms.tolist(), nans.tolist(), strict=True):
            push = heapq.heappush if len(self._largest) < self._top else heapq.heappushpop
            push(self._largest, (norm, -key, is_nan))


def _differ(earlier: Array | None, later: Array | None, at: tuple[Indices, Indices]) -> npt.NDArray[np.bool_]:
    if earlier is None or later is None or not len(at[0]) or not earlier[:1].nbytes:
        return np.zeros(len(at[0]), bool)
    old, new = (
        np.ascontiguousarray(array[indices]).reshape(len(indices), -1).view(np.uint8)
        for array, indices in ((earlier, at[0]), (later, at[1]))
    )
    differs: npt.NDArray[np.bool_] = (old != new).any(axis=1)
    return differs


def _without(count: int, taken: Indices) -> Indices:
    is_left = np.ones(count, bool)
    is_left[taken] = False
    return np.flatnonzero(is_left)


def _norms(
    before: Changes, after: Changes, comparison: TableComparison
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """How far rows moved, with infinity in place of NaN so that it counts as the largest; and which rows have a NaN."""
    old, new = (_floats(changes, at) for changes, at in zip((before, after), comparison.moved, strict=True))
    with np.errstate(invalid="ignore", over="ignore"):
        norms = np.sqrt(np.square(new - old).sum(axis=1))
    nans: npt.NDArray[np.bool_] = np.logical_or.reduce(np.isnan(new) | np.isnan(old), axis=1)
    return np.where(np.isfinite(norms), norms, np.inf), nans


def _floats(changes: Changes, at: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    rows = changes.rows[at].astype(np.float64)
    return rows if changes.scales is None else rows * changes.scales[at, None].astype(np.float64)


def _moves(before: dict[str, Array], after: dict[str, Array]) -> Iterator[DenseMove]:
    moves = [_move(name, before.get(name), after.get(name)) for name in {*before, *after}]
    yield from sorted(moves, key=lambda move: (move.norm is not None, -(move.norm or 0.0), move.name))


def _move(name: str, before: Array | None, after: Array | None) -> DenseMove:
    old, new = (None if tensor is None else _wide(tensor) for tensor in (before, after))
    norms = [None if tensor is None else _norm(tensor) for tensor in (old, new)]
    is_nan = any(bool(np.isnan(tensor).any()) for tensor in (old, new) if tensor is not None)
    if old is None or new is None or old.shape != new.shape:
        return DenseMove(name, None, norms[0], norms[1], None, is_nan)
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(new - old)
    return DenseMove(name, _norm(apart), norms[0], norms[1], _or_inf(float(apart.max(initial=0.0))), is_nan)


def _wide(tensor: Array) -> Array:
    return tensor.astype(np.complex128 if tensor.dtype.kind == "c" else np.float64)


def _norm(wide: Array) -> float:
    with np.errstate(invalid="ignore", over="ignore"):
        return _or_inf(float(np.sqrt(np.square(np.abs(wide)).sum())))


def _or_inf(number: float) -> float:
    """The number, or infinity in place of NaN, so that it counts as the largest."""
    return number if np.isfinite(number) else float("inf")
