"""The order numbers take on their way into a model: one `PackPlan`, shared by training, serving and models.

A side's flat matrix holds its pooled slots as declared, then its dense columns; its sequence block holds the
rows of its sequence slots side by side, and the mask as the last channel. The native `pack` reads
`to_json()`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamlearn.features.spec import Dense, Slot

__all__ = ["PackColumn", "PackPlan", "PackSide", "pack_side"]


@dataclass(frozen=True)
class PackColumn:
    """Where one slot or dense column stands.

    Attributes:
        name: The slot's or dense column's name.
        table: The slot's table; empty for a dense column.
        pooling: The slot's pooling; "dense" for a dense column.
        at: Its first channel.
        width: How many channels it takes.
    """

    name: str
    table: str
    pooling: str
    at: int
    width: int


@dataclass(frozen=True)
class PackSide:
    """One side's layout.

    Attributes:
        flat: Columns of the (rows, flat_width) float32 matrix.
        flat_width: Its width; 0 when the side has neither pooled slots nor dense columns.
        sequence: Columns of the (rows, sequence_length, sequence_width) float32 block.
        sequence_length: L; 0 when the side has no sequence.
        sequence_width: Channels of the block, the mask (1 where there is a row) last; 0 without a sequence.
    """

    flat: tuple[PackColumn, ...]
    flat_width: int
    sequence: tuple[PackColumn, ...]
    sequence_length: int
    sequence_width: int


@dataclass(frozen=True)
class PackPlan:
    """Both sides' layouts."""

    user: PackSide
    item: PackSide

    def to_json(self) -> dict[str, Any]:
        """Plain values, the same for the same layout: what fingerprints and the native `pack` take."""
        return asdict(self)


def pack_side(slots: Sequence[Slot], dense: Sequence[Dense]) -> PackSide:
    """Lay out one side: pooled slots as declared, then dense columns; sequences apart.

    Args:
        slots: The side's slots in declared order.
        dense: The side's dense columns in declared order.
    """
    pooled = [(slot.name, slot.table, slot.pooling, slot.dim) for slot in slots if slot.pooling != "sequence"]
    plain = [(column.name, "", "dense", column.width) for column in dense]
    flat, flat_width = _place(pooled + plain)
    sequences = [slot for slot in slots if slot.pooling == "sequence"]
    columns, width = _place([(slot.name, slot.table, slot.pooling, slot.dim) for slot in sequences])
    length = sequences[0].length if sequences else 0
    return PackSide(flat, flat_width, columns, length, width + 1 if sequences else 0)


def _place(columns: Sequence[tuple[str, str, str, int]]) -> tuple[tuple[PackColumn, ...], int]:
    placed, at = [], 0
    for name, table, pooling, width in columns:
        placed.append(PackColumn(name, table, pooling, at, width))
        at += width
    return tuple(placed), at
