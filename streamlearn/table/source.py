"""Source: where packing reads rows, from tables in this process or from shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from streamlearn.errors import UsageError
from streamlearn.table.pin import At

__all__ = ["ColumnArrays", "PackShape", "RowSource", "dim_of"]


class ColumnArrays(NamedTuple):
    """A column of a matrix or block, and its values: keys of a slot, or dense numbers."""

    name: str
    at: int  # its first channel
    width: int  # its number of channels
    pooling: str  # "dense", or how the rows of a slot's keys are combined
    values: Any  # uint64 keys, or float32[n * width] numbers
    table: int = 0  # the number of the slot's table
    offsets: Any = None  # int32[n+1], where the keys of each row begin; None: one key a row
    weights: Any = None  # float32, one for each key


class PackShape(NamedTuple):
    """The shape of a flat matrix, float32[rows_padded, stride], or of a block, float32[rows_padded, length, stride]."""

    rows: int  # examples or users
    rows_padded: int
    width: int  # channels in use
    stride: int
    length: int = 1


class RowSource(Protocol):
    """Tables whose rows can be packed."""

    @property
    def dims(self) -> Mapping[str, int]:
        """The length of a row by table, in the order of the tables' numbers."""

    def pack_flat(self, at: At, columns: Sequence[ColumnArrays], shape: PackShape, out: Any) -> None:
        """Write a flat matrix of a version."""

    def pack_sequences(self, at: At, columns: Sequence[ColumnArrays], shape: PackShape, out: Any) -> None:
        """Write a sequence block of a version."""


def dim_of(dims: Mapping[str, int], table: str) -> int:
    """Return how many values each row of a table has; raises `UsageError` if the table is unknown."""
    if table not in dims:
        message = f"no table is named {table!r}"
        raise UsageError(message, help=f"tables are {', '.join(dims)}")
    return dims[table]
