"""Packing: turns a side's features into the matrix and sequence block of a model, and gradients back into key sums.

Training and serving use the same code. It knows nothing of a model.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from streamlearn.errors import UsageError
from streamlearn.features import PackColumn, PackSide
from streamlearn.native import native
from streamlearn.samples import FeatureColumns
from streamlearn.table.arguments import UINT64_MAX, flat, instance, whole
from streamlearn.table.pin import At
from streamlearn.table.source import ColumnArrays, PackShape, RowSource, dim_of

__all__ = ["Packing", "Scatter"]

Float32s = npt.NDArray[np.float32]
Uint32s = npt.NDArray[np.uint32]
Uint64s = npt.NDArray[np.uint64]

# Offsets have 32 bits.
_ROWS_MAX = (1 << 31) - 1


class Packing:
    """The layout of one side over tables: those of a `TableSet`, or of a parameter server's client."""

    def __init__(self, side: PackSide, tables: RowSource) -> None:
        instance("side", side, PackSide, "`features.pack.user` or `features.pack.item`")
        self.side = side
        self._tables = tables
        dims = tables.dims
        numbers = {name: number for number, name in enumerate(dims)}
        self._flat = [(column, numbers.get(column.table, 0)) for column in side.flat]
        self._sequence = [(column, numbers.get(column.table, 0)) for column in side.sequence]
        for column in (*side.flat, *side.sequence):
            if not column.table:
                continue
            dim = dim_of(dims, column.table)
            if dim != column.width:
                message = (
                    f"slot {column.name!r} takes {column.width} channels, but table {column.table!r} has rows of {dim}"
                )
                raise UsageError(message, help="create the tables from the same features as the layout")

    def flat(self, features: FeatureColumns, rows: int, *, at: At = "newest", out: Float32s | None = None) -> Float32s:
        """Return the flat matrix: pooled rows of slots, then dense columns.

        `rows` is the number of rows in `features`. `out` is float32[padded, stride], at least `rows` by the layout's
        width; the remainder is set to zero. By default a new array of exactly that size is made.
        """
        rows, width = _rows(rows), self.side.flat_width
        out = np.empty((rows, width), np.float32) if out is None else out
        into = flat("out", out, np.float32, (None, None))
        if not width:
            out[...] = 0
            return out
        shape = PackShape(rows, out.shape[0], width, out.shape[1])
        self._tables.pack_flat(at, self._flat_columns(features, rows), shape, into)
        return out

    def sequences(
        self, features: FeatureColumns, rows: int, *, at: At = "newest", out: Float32s | None = None
    ) -> Float32s:
        """Return the sequence block: rows of sequence slots side by side, the newest of each history, and the mask.

        `out` is float32[padded, length, stride]; a shorter length keeps fewer rows. By default a new array of the
        layout's size is made.
        """
        side, rows = self.side, _rows(rows)
        out = np.empty((rows, side.sequence_length, side.sequence_width), np.float32) if out is None else out
        into = flat("out", out, np.float32, (None, None, None))
        if not side.sequence:
            out[...] = 0
            return out
        shape = PackShape(rows, out.shape[0], side.sequence_width, out.shape[2], out.shape[1])
        self._tables.pack_sequences(at, self._sequence_columns(features, rows), shape, into)
        return out

    def _flat_columns(self, features: FeatureColumns, rows: int) -> list[ColumnArrays]:
        return [_column(column, number, features, rows) for column, number in self._flat]

    def _sequence_columns(self, features: FeatureColumns, rows: int) -> list[ColumnArrays]:
        return [_column(column, number, features, rows) for column, number in self._sequence]


class Scatter:
    """Sums the gradients of packed inputs by table and key over one step, the reverse of packing.

    A step has at most `keys_max` keys, counting repeats.
    """

    def __init__(self, tables: RowSource, *, keys_max: int) -> None:
        self._tables = tables
        self._dims = dict(tables.dims)
        self._numbers = {name: number for number, name in enumerate(self._dims)}
        keys_max = whole("keys_max", keys_max, 0, UINT64_MAX)
        self._scatter = native.Scatter(list(self._dims.values()), keys_max)

    def clear(self) -> None:
        """Clear all sums for the next step."""
        self._scatter.clear()

    def flat(self, packing: Packing, features: FeatureColumns, rows: int, gradients: Float32s) -> None:
        """Add the gradient of a flat matrix that `packing` packed, float32[padded, stride]; padding is ignored."""
        given, rows = flat("gradients", gradients, np.float32, (None, None)), self._checked(packing, rows)
        if packing.side.flat_width:
            shape = PackShape(rows, gradients.shape[0], packing.side.flat_width, gradients.shape[1])
            self._scatter.add_flat(packing._flat_columns(features, rows), shape, given)

    def sequences(self, packing: Packing, features: FeatureColumns, rows: int, gradients: Float32s) -> None:
        """Add the gradient of a sequence block that `packing` packed, float32[padded, length, stride].

        Positions without a row are ignored.
        """
        given, rows = flat("gradients", gradients, np.float32, (None, None, None)), self._checked(packing, rows)
        if packing.side.sequence:
            padded, length, stride = gradients.shape
            shape = PackShape(rows, padded, packing.side.sequence_width, stride, length)
            self._scatter.add_sequences(packing._sequence_columns(features, rows), shape, given)

    def gradients(self, table: str) -> tuple[Uint64s, Float32s, Uint32s]:
        """Return a table's distinct keys in order of first occurrence, the sum for each, and how often each occurred.

        Raises:
            UsageError: The table does not exist.
        """
        dim = dim_of(self._dims, table)
        keys, rows, counts = self._scatter.gradients(self._numbers[table])
        return keys, rows.reshape(len(keys), dim), counts

    def _checked(self, packing: Packing, rows: int) -> int:
        if packing._tables is not self._tables:
            message = "these gradients were packed from other tables"
            raise UsageError(message, help="use the same set of tables for packing and for the scatter")
        return _rows(rows)


def _rows(rows: int) -> int:
    return whole("rows", rows, 0, _ROWS_MAX)


def _column(column: PackColumn, number: int, features: FeatureColumns, rows: int) -> ColumnArrays:
    name, has = column.name, features.dense if column.pooling in ("dense", "key") else features.slots
    if name not in has:
        message = f"{name}: the features lack this column; they have {', '.join((*features.slots, *features.dense))}"
        raise ValueError(message)
    if column.pooling in ("dense", "key"):
        numbers = flat(name, features.dense[name], np.float32, (rows, column.width))
        return ColumnArrays(name, column.at, column.width, "dense", numbers)
    values = features.slots[name]
    return ColumnArrays(
        name, column.at, column.width, column.pooling, values.keys, number, values.offsets, values.weights
    )
