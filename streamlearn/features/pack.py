"""The layout of a model's inputs: one `PackPlan`, shared by training, serving and models.

A side's flat matrix holds its pooled slots as declared, its crosses, its dense columns, then what is derived from
those. Its sequence block holds the rows of its sequence slots side by side, with the mask as the last channel. The
native `pack` reads `to_json()`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamlearn.features.spec import Dense, Slot

__all__ = ["PackColumn", "PackPlan", "PackSide", "pack_side"]


@dataclass(frozen=True)
class PackColumn:
    """The position of one slot or dense column."""

    name: str
    table: str  # the slot's table; empty for a dense column
    pooling: str  # the slot's pooling; "dense" for a dense column; "key" for 48 bits of a slot's key, as two numbers
    at: int  # the first channel
    width: int  # the number of channels
    of: tuple[str, ...] = ()  # the two columns that a derived one is made from


@dataclass(frozen=True)
class PackSide:
    """The layout of one side."""

    flat: tuple[PackColumn, ...]  # columns of the (rows, flat_width) float32 matrix
    flat_width: int  # 0 without pooled slots and dense columns
    sequence: tuple[PackColumn, ...]  # columns of the (rows, sequence_length, sequence_width) float32 block
    sequence_length: int  # 0 without a sequence
    sequence_width: int  # with the mask (1 where there is a row) as the last channel; 0 without a sequence


@dataclass(frozen=True)
class PackPlan:
    """The layout of both sides."""

    user: PackSide
    item: PackSide

    def to_json(self) -> dict[str, Any]:
        """Return plain values for fingerprints and the native `pack`; equal layouts give equal values."""
        values = asdict(self)
        for side in values.values():
            for column in side["flat"] + side["sequence"]:
                if not column["of"]:  # plans without derived columns have no such field
                    del column["of"]
        return values


def pack_side(slots: Sequence[Slot], dense: Sequence[Dense], derived: Sequence[PackColumn] = ()) -> PackSide:
    """Lay out one side's slots and dense columns, which are in declared order, each before the derived ones."""
    pooled = [_column_of(slot) for slot in slots if slot.pooling != "sequence"]
    plain = [PackColumn(column.name, "", "dense", 0, column.width) for column in dense]
    crosses, others = ([one for one in derived if (one.pooling != "dense") is is_slot] for is_slot in (True, False))
    flat, flat_width = _lay_out([*pooled, *crosses, *plain, *others])
    sequences = [slot for slot in slots if slot.pooling == "sequence"]
    columns, width = _lay_out([*map(_column_of, sequences)])
    length = sequences[0].length if sequences else 0
    return PackSide(flat, flat_width, columns, length, width + 1 if sequences else 0)


def _column_of(slot: Slot) -> PackColumn:
    return PackColumn(slot.name, slot.table, slot.pooling, 0, slot.dim)


def _lay_out(columns: Sequence[PackColumn]) -> tuple[tuple[PackColumn, ...], int]:
    ends = [*accumulate((column.width for column in columns), initial=0)]
    return tuple(replace(column, at=at) for column, at in zip(columns, ends[:-1], strict=True)), ends[-1]
