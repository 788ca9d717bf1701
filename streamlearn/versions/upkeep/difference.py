"""Diff: what is another in one version than in another, table by table and tensor by tensor, from files alone."""

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
from streamlearn.versions.format.manifest import PARTS, VersionRef
from streamlearn.versions.format.scratch import Progress, Scratch
from streamlearn.versions.store.defect import defective
from streamlearn.versions.store.interface import Store
from streamlearn.versions.store.settings import LoadSettings, ScanSettings, checked
from streamlearn.versions.upkeep.table_diff import Compared

__all__ = ["DenseMove", "Diff", "RowMove", "TableDiff", "diff"]

Array = npt.NDArray[Any]

_TOP_MAX = 100_000


@dataclass(frozen=True)
class RowMove:
    """How far a row moved.

    Attributes:
        key: Its key.
        norm: L2 norm of the difference; infinite where a row is not finite.
        is_nan: Whether a number of it is NaN, in one of the versions.
    """

    key: int
    norm: float
    is_nan: bool = False


@dataclass(frozen=True)
class TableDiff:
    """What is another in a table.

    Attributes:
        table: Its name.
        keys: Keys in the first version, and in the second.
        created: Keys that only the second has.
        gone: Keys that only the first has.
        changed: Keys whose row is another; of a table that learns, as training has it.
        touched: Keys whose row is the same, and its optimizer state or use is another.
        norm: L2 norm over all rows that changed.
        largest: The rows that moved farthest, farthest first; of equal ones the smaller key.
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
    """How far a tensor moved.

    Attributes:
        name: Its name.
        norm: L2 norm of the difference; None where it is in one of the two only, or of another shape.
        norm_before: L2 norm in the first version; None where it is not there.
        norm_after: L2 norm in the second version; None where it is not there.
        number_max: The largest difference of one number; None where there is none.
        is_nan: Whether a number of it is NaN, in one of the versions.
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

    Attributes:
        before: The first version.
        after: The second one.
        tables: By table, in their order.
        dense: By tensor, farthest first; those in one of the two only come first.
        metrics: By name, of the first and of the second version; None where one does not have it.
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
    limits: LoadSettings | None = None,
    progress: Progress | None = None,
) -> Diff:
    """Compare two versions.

    Args:
        store: Where they are.
        model: The model.
        before: The one that is first; it may be the older or the newer one.
        after: The other.
        top: How many of the rows that moved farthest are named, of each table.
        scan: How much memory may be taken for rows; dense weights are held whole, of both.
        limits: Limits of reading.
        progress: Told after every few parts how many are done, of all tables together.

    Raises:
        VersionDefect: There is no such version, or something of a chain is not what it is to be.
        Oversize: Not even one part fits into `scan_bytes_max`.
    """
    if not 0 <= top <= _TOP_MAX:
        message = f"top is {top}"
        raise UsageError(message, help=f"ask for 0 to {_TOP_MAX} keys")
    reading, memory = checked(limits or store.loading), checked(scan or ScanSettings())
    chains = [Chain.find(store, model, version, settings=reading) for version in (before, after)]
    first, second = chains
    names = [[record.name for record in chain.manifest.tables] for chain in chains]
    if names[0] != names[1]:
        said = f"its tables are {names[1]}, but those of version {before} are {names[0]}"
        raise defective(second.head.folder, "incompatible", said)
    # The older one first, so that the newer is read on top of it.
    is_turned = first.version > second.version
    ordered = chains[::-1] if is_turned else chains
    tables = []
    for number, name in enumerate(names[0]):
        found = _Tally(name, top)
        for done, pair in Scratch(ordered, name, memory, reading).exports((0, PARTS)):
            found.add(*(pair[::-1] if is_turned else pair))
            if progress is not None:
                progress(number * PARTS + done, len(names[0]) * PARTS)
        tables.append(found.total())
    dense = [load_tensors(store, chain.head, settings=reading) for chain in chains]
    metrics = [chain.manifest.metrics for chain in chains]
    both = {name: (metrics[0].get(name), metrics[1].get(name)) for name in sorted({*metrics[0], *metrics[1]})}
    return Diff(first.ref, second.ref, tuple(tables), tuple(_moves(dense[0], dense[1])), both)


class _Tally:
    """What is another in a table, as its parts come."""

    def __init__(self, table: str, top: int) -> None:
        self._table, self._top = table, top
        self._keys = [0, 0]
        self._counts = dict.fromkeys(("created", "gone", "changed", "touched"), 0)
        self._squares = 0.0
        # The smallest of those that are kept is first; of equal norms that with the larger key.
        self._largest: list[tuple[float, int, bool]] = []

    def add(self, before: Changes, after: Changes) -> None:
        """Take the same parts of both."""
        found = Compared.of(before, after)
        self._keys = [self._keys[0] + len(before), self._keys[1] + len(after)]
        self._counts["created"] += len(found.created)
        self._counts["gone"] += len(found.gone)
        self._counts["changed"] += len(found.moved[0])
        self._counts["touched"] += len(found.changed[0]) - len(found.moved[0])
        norms, nans = _norms(before, after, found)
        self._squares += float(np.square(norms).sum())
        self._keep(before.keys[found.moved[0]], norms, nans)

    def total(self) -> TableDiff:
        """All of it."""
        ordered = sorted(self._largest, key=lambda one: (-one[0], -one[1]))
        largest = tuple(RowMove(-key, norm, is_nan) for norm, key, is_nan in ordered)
        norm = float(np.sqrt(self._squares))
        return TableDiff(self._table, (self._keys[0], self._keys[1]), **self._counts, norm=norm, largest=largest)

    def _keep(self, keys: npt.NDArray[np.uint64], norms: npt.NDArray[np.float64], nans: npt.NDArray[np.bool_]) -> None:
        if not self._top:
            return
        # No more than these can be among the farthest; ties at the edge all come along.
        if len(norms) > self._top:
            edge = np.partition(norms, len(norms) - self._top)[len(norms) - self._top]
            at = norms >= edge
            keys, norms, nans = keys[at], norms[at], nans[at]
        for key, norm, is_nan in zip(keys.tolist(), norms.tolist(), nans.tolist(), strict=True):
            if len(self._largest) < self._top:
                heapq.heappush(self._largest, (norm, -key, is_nan))
            else:
                heapq.heappushpop(self._largest, (norm, -key, is_nan))


def _norms(before: Changes, after: Changes, found: Compared) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """How far rows moved, infinity for what is no number, which so is larger than all others; and which have a NaN."""
    mine, theirs = found.moved
    old, new = (_floats(one, at) for one, at in ((before, mine), (after, theirs)))
    with np.errstate(invalid="ignore", over="ignore"):
        norms = np.sqrt(np.square(new - old).sum(axis=1))
    nans: npt.NDArray[np.bool_] = np.logical_or.reduce(np.isnan(new) | np.isnan(old), axis=1)
    return np.where(np.isfinite(norms), norms, np.inf), nans


def _floats(changes: Changes, at: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    rows = changes.rows[at].astype(np.float64)
    return rows if changes.scales is None else rows * changes.scales[at, None].astype(np.float64)


def _moves(before: dict[str, Array], after: dict[str, Array]) -> Iterator[DenseMove]:
    moves = [_move(name, before.get(name), after.get(name)) for name in {*before, *after}]
    yield from sorted(moves, key=lambda one: (one.norm is not None, -(one.norm or 0.0), one.name))


def _move(name: str, before: Array | None, after: Array | None) -> DenseMove:
    norms = [None if one is None else _norm(_wide(one)) for one in (before, after)]
    is_nan = any(bool(np.isnan(_wide(one)).any()) for one in (before, after) if one is not None)
    if before is None or after is None or before.shape != after.shape:
        return DenseMove(name, None, norms[0], norms[1], None, is_nan)
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(_wide(after) - _wide(before))
    return DenseMove(name, _norm(apart), norms[0], norms[1], _told(float(apart.max(initial=0.0))), is_nan)


def _wide(tensor: Array) -> Array:
    return tensor.astype(np.complex128 if tensor.dtype.kind == "c" else np.float64)


def _norm(wide: Array) -> float:
    with np.errstate(invalid="ignore", over="ignore"):
        return _told(float(np.sqrt(np.square(np.abs(wide)).sum())))


def _told(number: float) -> float:
    """The number; infinity for what is none, so that it is larger than all others."""
    return number if np.isfinite(number) else float("inf")
