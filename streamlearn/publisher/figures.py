"""Figures: numbers about a version that are taken while it is written, for its manifest. It judges nothing.

Rows are read back from the files just written, one file at a time: no second copy of a table, and what was written is
verified by it. Whatever judges a version, now or after a restart, has its manifest alone.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.versions import Head, Store
from streamlearn.versions.format.fetch import fetch
from streamlearn.versions.format.manifest import FileEntry, TableRecord
from streamlearn.versions.format.row_files import read_rows

__all__ = ["KEY", "NAN", "NOT_FINITE", "RMS", "metric_figures", "row_figures", "tensor_figures"]

# How metrics end that say how many numbers are NaN or infinite, how many of those are NaN, and the root of the mean
# square of the others.
NOT_FINITE, NAN, RMS = ".not_finite", ".nan", ".rms"
# The first keys of such rows, each a metric: how many numbers of the key's row.
KEY = ".key."
_KEYS_MAX = 5
_NAME_CHARS_MAX = 150
_FILE_BYTES_MAX = 1 << 30


@dataclass
class _Sums:
    """Of many numbers."""

    count: int = 0
    not_finite: int = 0
    nan: int = 0
    keys: dict[int, int] = field(default_factory=dict)
    square: float = 0.0
    rounding_square: float = 0.0
    rounding_max: float = 0.0

    def add(self, numbers: npt.NDArray[Any]) -> None:
        flat = numbers.reshape(-1)
        finite = np.isfinite(flat)
        lost = len(flat) - int(np.count_nonzero(finite))
        kept = flat if not lost else flat[finite]
        self.count += len(flat)
        self.not_finite += lost
        self.nan += int(np.count_nonzero(np.isnan(flat))) if lost else 0
        with np.errstate(over="ignore"):
            self.square += float(np.square(np.abs(kept), dtype=np.float64).sum())

    def add_rows(self, keys: npt.NDArray[np.uint64], numbers: npt.NDArray[np.float32]) -> None:
        """Take rows; the smallest keys of those that are not finite are noted."""
        lost = self.not_finite
        self.add(numbers)
        if self.not_finite > lost:
            bad = (~np.isfinite(numbers)).sum(axis=1)
            at = np.flatnonzero(bad)
            found = self.keys | dict(zip(keys[at].tolist(), bad[at].tolist(), strict=True))
            self.keys = dict(sorted(found.items())[:_KEYS_MAX])

    def said(self, name: str) -> dict[str, float]:
        """What it says of a table or a tensor."""
        found = {f"{name}{RMS}": self.rms, f"{name}{NOT_FINITE}": float(self.not_finite)}
        if self.nan:
            found[f"{name}{NAN}"] = float(self.nan)
        return found | {f"{name}{NOT_FINITE}{KEY}{key}": float(count) for key, count in self.keys.items()}

    def add_rounding(self, stored: npt.NDArray[np.float32], exact: npt.NDArray[np.float32]) -> None:
        error = np.abs(stored.astype(np.float64) - exact)
        error = error[np.isfinite(error)]
        if len(error):
            self.rounding_square += float(np.square(error).sum())
            self.rounding_max = max(self.rounding_max, float(error.max()))

    @property
    def rms(self) -> float:
        """Root of the mean square; as large as can be said where it overflows."""
        return math.sqrt(min(self.square, 1e300) / max(1, self.count - self.not_finite))


def row_figures(store: Store, head: Head, files: Iterable[FileEntry]) -> dict[str, float]:
    """Figures of the rows of a version, by table.

    `rows.TABLE.count` rows, `rows.TABLE.rms` of their numbers, `rows.TABLE.not_finite` numbers; where there are such,
    how many are NaN (`rows.TABLE.nan`) and the first keys (`rows.TABLE.not_finite.key.KEY`); and for rows that are
    rounded `rounding.TABLE.max` and `rounding.TABLE.rms`, by how far the numbers are off.

    Args:
        store: Where the files are.
        head: What the version is.
        files: What shards wrote of it.

    Raises:
        VersionDefect: A file is not what its shard said it is.
    """
    given = list(files)
    beside = {(one.table, one.shard, one.number): one for one in given if one.kind == "optimizer"}
    found: dict[str, float] = {}
    for table in head.tables:
        sums, rows = _Sums(), 0
        for entry in given:
            if entry.kind == "rows" and entry.table == table.name and entry.rows:
                other = beside.get((entry.table, entry.shard, entry.number)) if table.row_type != "float32" else None
                rows += entry.rows
                pair = [one for one in (entry, other) if one is not None]
                read = [fetch(store, head.folder, one, bytes_max=_FILE_BYTES_MAX) for one in pair]
                _add(sums, table, list(zip(pair, read, strict=True)), head.folder)
        found[f"rows.{table.name}.count"] = float(rows)
        if rows:
            found |= sums.said(f"rows.{table.name}")
            if table.row_type != "float32":
                found[f"rounding.{table.name}.max"] = sums.rounding_max
                found[f"rounding.{table.name}.rms"] = math.sqrt(sums.rounding_square / max(1, sums.count))
    return found


def tensor_figures(tensors: Mapping[str, npt.NDArray[Any]]) -> dict[str, float]:
    """Figures of dense tensors: `dense.NAME.rms` and `dense.NAME.not_finite`; how many are NaN, where some are."""
    found: dict[str, float] = {}
    for name, tensor in tensors.items():
        if tensor.dtype.kind in "fc":
            sums = _Sums()
            sums.add(tensor)
            found |= sums.said(f"dense.{_short(name)}")
    return found


def metric_figures(metrics: Mapping[str, float]) -> dict[str, float]:
    """The same metrics, where one that is no finite number is `metric.NAME.not_finite` instead."""
    found: dict[str, float] = {}
    for name, value in metrics.items():
        if math.isfinite(value):
            found[name] = value
            continue
        found[f"metric.{_short(name)}{NOT_FINITE}"] = 1.0
        if math.isnan(value):
            found[f"metric.{_short(name)}{NAN}"] = 1.0
    return found


def _add(sums: _Sums, table: TableRecord, files: list[tuple[FileEntry, memoryview]], folder: str) -> None:
    """Take a file of rows, and beside it, where they are rounded, the file with the numbers they were rounded from."""
    entry, data = files[0]
    stored = read_rows(table, entry, data, None, folder)
    if len(files) == 1:
        for one in stored:
            sums.add_rows(one.keys, one.floats())
        return
    for rounded, exact in zip(stored, read_rows(table, entry, data, files[1], folder), strict=True):
        numbers = exact.floats()
        sums.add_rows(exact.keys, numbers)
        sums.add_rounding(rounded.floats(), numbers)


def _short(name: str) -> str:
    if len(name) <= _NAME_CHARS_MAX:
        return name
    return f"{name[:_NAME_CHARS_MAX]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
