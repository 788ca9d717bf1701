"""Figures: numbers about a version, computed while it is written, for its manifest. They judge nothing.

Rows are read back from the files just written, one file at a time. This needs no second copy of a table, and verifies
the files. A judge sees the manifest alone, now or after a restart.
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

# Suffixes of metrics: how many numbers are NaN or infinite, how many of those are NaN, and the root mean square of the
# others.
NOT_FINITE, NAN, RMS = ".not_finite", ".nan", ".rms"
# Infix of the metrics of the first keys with such numbers: how many there are in the key's row.
KEY = ".key."
_KEYS_MAX = 5
_NAME_CHARS_MAX = 150
_FILE_BYTES_MAX = 1 << 30


@dataclass
class _Sums:
    """Sums over the numbers of a table or tensor."""

    count: int = 0
    not_finite: int = 0
    nan: int = 0
    keys: dict[int, int] = field(default_factory=dict)
    square: float = 0.0
    rounding_square: float = 0.0
    rounding_max: float = 0.0

    def add(self, numbers: npt.NDArray[Any]) -> None:
        flat = numbers.reshape(-1)
        is_finite = np.isfinite(flat)
        not_finite = len(flat) - int(np.count_nonzero(is_finite))
        finite = flat if not not_finite else flat[is_finite]
        self.count += len(flat)
        self.not_finite += not_finite
        self.nan += int(np.count_nonzero(np.isnan(flat))) if not_finite else 0
        with np.errstate(over="ignore"):
            self.square += float(np.square(np.abs(finite), dtype=np.float64).sum())

    def add_rows(self, keys: npt.NDArray[np.uint64], numbers: npt.NDArray[np.float32]) -> None:
        """Add rows, and keep the smallest keys of those that are not finite."""
        before = self.not_finite
        self.add(numbers)
        if self.not_finite > before:
            bad = (~np.isfinite(numbers)).sum(axis=1)
            at = np.flatnonzero(bad)
            counts = self.keys | dict(zip(keys[at].tolist(), bad[at].tolist(), strict=True))
            self.keys = dict(sorted(counts.items())[:_KEYS_MAX])

    def add_rounding(self, stored: npt.NDArray[np.float32], exact: npt.NDArray[np.float32]) -> None:
        error = np.abs(stored.astype(np.float64) - exact)
        error = error[np.isfinite(error)]
        if len(error):
            self.rounding_square += float(np.square(error).sum())
            self.rounding_max = max(self.rounding_max, float(error.max()))

    def metrics(self, name: str) -> dict[str, float]:
        """The metrics of the table or tensor with this name. The RMS is capped where it overflows."""
        rms = math.sqrt(min(self.square, 1e300) / max(1, self.count - self.not_finite))
        metrics = {f"{name}{RMS}": rms, f"{name}{NOT_FINITE}": float(self.not_finite)}
        if self.nan:
            metrics[f"{name}{NAN}"] = float(self.nan)
        return metrics | {f"{name}{NOT_FINITE}{KEY}{key}": float(count) for key, count in self.keys.items()}


def row_figures(store: Store, head: Head, files: Iterable[FileEntry]) -> dict[str, float]:
    """Figures of the rows of a version, by table, from the files that shards wrote.

    `rows.TABLE.count` rows, `rows.TABLE.rms` of their numbers, `rows.TABLE.not_finite` numbers. If there are such
    numbers: how many are NaN (`rows.TABLE.nan`) and the first keys (`rows.TABLE.not_finite.key.KEY`). For rows that
    are rounded: the rounding error, as `rounding.TABLE.max` and `rounding.TABLE.rms`. Raises `VersionDefect` if a file
    differs from its shard's description.
    """
    entries = list(files)
    exact_of = {(entry.table, entry.shard, entry.number): entry for entry in entries if entry.kind == "optimizer"}
    figures: dict[str, float] = {}
    for table in head.tables:
        sums, rows = _Sums(), 0
        is_rounded = table.row_type != "float32"
        for entry in entries:
            if entry.kind == "rows" and entry.table == table.name and entry.rows:
                exact = exact_of.get((entry.table, entry.shard, entry.number)) if is_rounded else None
                rows += entry.rows
                pair = [entry] if exact is None else [entry, exact]
                data = [(file, fetch(store, head.folder, file, bytes_max=_FILE_BYTES_MAX)) for file in pair]
                _add(sums, table, data, head.folder)
        figures[f"rows.{table.name}.count"] = float(rows)
        if rows:
            figures |= sums.metrics(f"rows.{table.name}")
            if is_rounded:
                figures[f"rounding.{table.name}.max"] = sums.rounding_max
                figures[f"rounding.{table.name}.rms"] = math.sqrt(sums.rounding_square / max(1, sums.count))
    return figures


def tensor_figures(tensors: Mapping[str, npt.NDArray[Any]]) -> dict[str, float]:
    """Figures of dense tensors: `dense.NAME.rms` and `dense.NAME.not_finite`; how many are NaN, if any are."""
    figures: dict[str, float] = {}
    for name, tensor in tensors.items():
        if tensor.dtype.kind in "fc":
            sums = _Sums()
            sums.add(tensor)
            figures |= sums.metrics(f"dense.{_short(name)}")
    return figures


def metric_figures(metrics: Mapping[str, float]) -> dict[str, float]:
    """The same metrics, with `metric.NAME.not_finite` in place of each that is NaN or infinite."""
    figures: dict[str, float] = {}
    for name, value in metrics.items():
        if math.isfinite(value):
            figures[name] = value
            continue
        figures[f"metric.{_short(name)}{NOT_FINITE}"] = 1.0
        if math.isnan(value):
            figures[f"metric.{_short(name)}{NAN}"] = 1.0
    return figures


def _add(sums: _Sums, table: TableRecord, files: list[tuple[FileEntry, memoryview]], folder: str) -> None:
    """Add a file of rows. If they are rounded, the second file has the numbers before rounding."""
    entry, data = files[0]
    stored = read_rows(table, entry, data, None, folder)
    if len(files) == 1:
        for changes in stored:
            sums.add_rows(changes.keys, changes.floats())
        return
    for rounded, exact in zip(stored, read_rows(table, entry, data, files[1], folder), strict=True):
        numbers = exact.floats()
        sums.add_rows(exact.keys, numbers)
        sums.add_rounding(rounded.floats(), numbers)


def _short(name: str) -> str:
    if len(name) <= _NAME_CHARS_MAX:
        return name
    return f"{name[:_NAME_CHARS_MAX]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
