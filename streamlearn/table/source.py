"""Source: where rows come from when a model's inputs are packed: tables of this process, or shards of others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from streamlearn.table.pin import At

__all__ = ["RowSource"]


class RowSource(Protocol):
    """Tables whose rows are read, wherever they are.

    What packs says once which columns it reads; a source says how. Columns and shapes are as the native core takes
    them.
    """

    @property
    def dims(self) -> Mapping[str, int]:
        """Length of a row by table, in the order the tables are numbered."""

    def pack_flat(self, at: At, columns: Sequence[tuple[Any, ...]], shape: tuple[int, int, int, int], out: Any) -> None:
        """Write a flat matrix, as of a version."""

    def pack_sequences(
        self,
        at: At,
        columns: Sequence[tuple[Any, ...]],
        shape: tuple[int, int, int, int, int],
        out: Any,
    ) -> None:
        """Write a sequence block, as of a version."""
