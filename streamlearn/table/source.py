"""Source: where packing reads rows, from tables in this process or from shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from streamlearn.table.pin import At

__all__ = ["RowSource"]


class RowSource(Protocol):
    """Tables whose rows can be packed. Columns and shapes are those of the native core."""

    @property
    def dims(self) -> Mapping[str, int]:
        """The length of a row by table, in the order of the tables' numbers."""

    def pack_flat(self, at: At, columns: Sequence[tuple[Any, ...]], shape: tuple[int, int, int, int], out: Any) -> None:
        """Write a flat matrix of a version."""

    def pack_sequences(
        self, at: At, columns: Sequence[tuple[Any, ...]], shape: tuple[int, int, int, int, int], out: Any
    ) -> None:
        """Write a sequence block of a version."""
