"""Changes: rows of one table between two versions, or all rows of a version, as arrays, and their files.

Exports return them and staging takes them. Their files move tables between systems; the version store has files of its
own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamlearn.errors import BadRecord
from streamlearn.native import native
from streamlearn.table.arguments import flat
from streamlearn.table.foreign import converted, npz_arrays, row_lists, values
from streamlearn.table.options import RowType, TableOptions

__all__ = ["DTYPES", "Changes", "encode_rows"]

Array = npt.NDArray[np.generic]
Float32s = npt.NDArray[np.float32]
Uint64s = npt.NDArray[np.uint64]

# The types of a row's numbers between tables.
DTYPES: dict[RowType, str] = {"float32": "<f4", "float16": "<f2", "int8": "<i1"}
# The fields of an Arrow table's columns.
_COLUMNS = {"key": "keys", "row": "rows", "scale": "scales", "state": "state", "tick": "ticks", "count": "counts"}
_ARCHIVE, _WRITE = b"PK", "write it with `Changes.save` or `numpy.savez`"
_NAMES = ("keys", "rows", "scales", "state", "ticks", "counts", "gone")


@dataclass(frozen=True, eq=False, repr=False)
class Changes:
    """Rows and removed keys of one table."""

    table: str
    keys: Uint64s  # uint64[n]
    rows: Array  # float32[n, dim], or float16 or int8 for a table of that row type
    scales: Float32s | None = None  # float32[n]: the factors of int8 rows; None for other row types
    state: Float32s | None = None  # float32[n, state]: optimizer state; None starts it fresh
    ticks: npt.NDArray[np.uint32] | None = None  # uint32[n]: the last use, in ticks of table time; None for never
    counts: npt.NDArray[np.uint8] | None = None  # uint8[n]: how often each row was used; None exactly if `ticks` is
    gone: Uint64s | None = None  # uint64[m]: keys that no longer have a row

    def __len__(self) -> int:
        return len(self.keys)

    def __repr__(self) -> str:
        rows, shape = getattr(self.rows, "dtype", type(self.rows).__name__), np.shape(self.rows)
        gone = 0 if self.gone is None else len(self.gone)
        return f"Changes({self.table!r}, keys={len(self)}, gone={gone}, {rows}, dim={shape[-1] if shape else 0})"

    @classmethod
    def of(cls, options: TableOptions, exported: Any) -> Changes:
        """Build the changes from a native export of a table."""
        keys, dim = exported.keys, options.spec.dim
        rows = exported.numbers.view(DTYPES[options.row_type]).reshape(len(keys), dim)
        scales = exported.scales if options.row_type == "int8" else None
        state = exported.state.reshape(len(keys), options.optimizer.state_width(dim) if options.optimizer else 0)
        return cls(options.spec.name, keys, rows, scales, state, exported.ticks, exported.counts, exported.gone)

    def select(self, rows: npt.NDArray[Any], gone: Uint64s | None = None) -> Changes:
        """Return some of the rows, by their indices or by a mask, and these removed keys."""
        arrays: dict[str, Any] = {name: getattr(self, name) for name in _NAMES[:-1] if getattr(self, name) is not None}
        return replace(self, **{name: array[rows] for name, array in arrays.items()}, gone=gone)

    def floats(self) -> Float32s:
        """Return the rows as float32, whatever their row type."""
        rows = self.rows.astype(np.float32, copy=False)
        return rows if self.scales is None else rows * self.scales[:, None]

    def to_arrow(self) -> tuple[pa.Table, pa.Array]:
        """Return the rows as an Arrow table with one record a key, and the removed keys."""
        columns: dict[str, pa.Array] = {"key": pa.array(self.keys), "row": _lists(self.rows)}
        plain = {"scale": self.scales, "tick": self.ticks, "count": self.counts}
        columns |= {name: pa.array(values) for name, values in plain.items() if values is not None}
        if self.state is not None and self.state.shape[1]:
            columns["state"] = _lists(self.state)
        gone = np.empty(0, np.uint64) if self.gone is None else self.gone
        return pa.table(columns, metadata={"table": self.table}), pa.array(gone)

    @classmethod
    def from_arrow(cls, rows: pa.Table | pa.RecordBatch, gone: pa.Array | None = None, *, table: str = "") -> Changes:
        """Read the result of `to_arrow`, or any Arrow table or record batch with the columns `key` and `row`.

        `key` holds whole numbers and `row` lists of numbers, all of one length. `scale`, `state`, `tick` and `count`
        are optional, other columns are ignored. `table` defaults to the name in the metadata.

        Raises:
            TypeError: `rows` is neither a table nor a record batch.
            BadRecord: A column is missing, duplicate, or has nulls, lists of several lengths, or numbers that cannot be
                converted.
        """
        if isinstance(rows, pa.RecordBatch):
            rows = pa.Table.from_batches([rows])
        if not isinstance(rows, pa.Table):
            message = f"rows: expected an Arrow table, got {type(rows).__name__}"
            raise TypeError(message)
        names = [name for name in rows.column_names if name in _COLUMNS]
        missing = {"key", "row"} - set(names)
        if missing or len(set(names)) != len(names):
            columns = ", ".join(rows.column_names)
            message = f"an Arrow table of rows has the columns {columns}; it needs `key` and `row`, once each"
            raise BadRecord(message, help="name the columns `key` and `row`")
        arrays = {
            _COLUMNS[name]: row_lists(name, rows[name]) if name in ("row", "state") else values(name, rows[name])
            for name in names
        }
        if gone is not None:
            arrays["gone"] = values("gone", gone)
        named = (rows.schema.metadata or {}).get(b"table", b"").decode(errors="replace")
        return cls(table=table or named, **converted(arrays))

    def save(self, path: str | Path) -> None:
        """Write the arrays to a NumPy `.npz` file under their names."""
        arrays = {name: getattr(self, name) for name in _NAMES if getattr(self, name) is not None}
        with Path(path).open("wb") as file:
            np.savez(file, table=np.array(self.table), **arrays)

    @classmethod
    def load(cls, path: str | Path, *, table: str = "") -> Changes:
        """Read a NumPy `.npz` file with at least the arrays `keys` and `rows`. `table` replaces the name in it.

        Raises:
            BadRecord: It is not such a file, or has numbers that cannot be converted.
            OSError: It cannot be opened.
        """
        arrays = _read(Path(path))
        named = str(arrays.pop("table", ""))
        unknown = sorted(set(arrays) - set(_NAMES))
        if unknown or not {"keys", "rows"} <= set(arrays):
            message = f"{path} has the arrays {', '.join(sorted(arrays)) or 'none'}"
            raise BadRecord(message, help=f"`keys` and `rows` are required; the known arrays are {', '.join(_NAMES)}")
        return cls(table=table or named, **converted(arrays))


def encode_rows(rows: Float32s, row_type: RowType) -> tuple[Array, Float32s | None]:
    """Encode rows, float32[n, dim], to a row type; returns the numbers, and for int8 the scale of each row.

    Examples:
        >>> numbers, scales = encode_rows(np.array([[1.0, -0.5]], np.float32), "int8")
        >>> numbers.tolist(), scales.tolist()
        ([[127, -63]], [0.007874131202697754])
    """
    given = flat("rows", rows, np.float32, (None, None))
    count, dim = rows.shape
    numbers, scales = native.encode_rows(given, dim, row_type)
    return numbers.view(DTYPES[row_type]).reshape(count, dim), scales if row_type == "int8" else None


def _lists(matrix: Array) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(matrix).reshape(-1)), matrix.shape[1])


def _read(path: Path) -> dict[str, Array]:
    """Read the arrays of an `.npz` file."""
    with path.open("rb") as opened:
        # NumPy would treat another file as a pickle, and explain how to load it, which must not happen.
        head = opened.read(len(_ARCHIVE))
        if head != _ARCHIVE:
            message = f"{path} is not an `.npz` file: it begins with {head!r}"
            raise BadRecord(message, help=_WRITE)
        opened.seek(0)
        try:
            return npz_arrays(opened)
        # Bytes that are not a zip file of arrays, or claim an absurd size, fail in many ways; none is a bug here.
        except Exception as error:
            message = f"{path} is not a file of arrays: {error}"
            raise BadRecord(message, help=_WRITE) from error
