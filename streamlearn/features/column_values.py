"""The values of computed columns, as events carry them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from streamlearn.features.behaviour import Last, Since
from streamlearn.features.entity import Entity
from streamlearn.features.spec import Dense, Slot

__all__ = ["ColumnArrays", "column_arrays", "described", "row_values"]

ColumnArrays = tuple[npt.NDArray[Any], npt.NDArray[np.int32] | None]
"""The values of all rows, and where each row's begin; None if each row has one value."""


def column_arrays(column: Slot | Dense, evaluated: Sequence[npt.NDArray[Any]], rows: int) -> ColumnArrays:
    """Return a column's values from those of its feature, as the native code evaluates it."""
    if isinstance(column.computed, Last):
        keys, ends = evaluated
        return keys.view(np.int64), np.append(0, ends).astype(np.int32)
    (numbers,) = evaluated
    if isinstance(column.computed, Since):
        # Whole milliseconds; -1 before any interaction.
        is_known, seconds = numbers >= 0, numbers / 1_000
        if isinstance(column, Dense):
            return np.where(is_known, seconds, np.float64(column.default or 0)).astype(np.float32), None
        octaves = np.frexp(np.floor(np.maximum(seconds, 0)))[1]
        return np.where(is_known, octaves, np.int64(column.default or 0)).astype(np.int64), None
    assert isinstance(column, Dense)
    values = numbers.astype(np.float32)
    return values, None if column.width == 1 else np.arange(rows + 1, dtype=np.int32) * np.int32(column.width)


def row_values(column: ColumnArrays) -> list[Any]:
    """Return the value of each row as a plain one, or as a list."""
    values: list[Any] = column[0].tolist()
    return values if column[1] is None else [values[begin:end] for begin, end in pairwise(column[1].tolist())]


def described(entities: Sequence[Entity]) -> str:
    """Return the computed columns of both sides as JSON, as native readers take them."""
    sides = {
        entity.side: {
            "definition": entity.definition,
            "key": entity.slot,
            "columns": [
                {"name": column.name, "form": _form(column), "default": column.default or 0}
                for column in entity.columns
            ],
        }
        for entity in entities
    }
    return msgspec.json.encode(sides).decode()


def _form(column: Slot | Dense) -> str:
    """Return how the values of a feature become those of a column."""
    if isinstance(column.computed, Last):
        return "last"
    if isinstance(column.computed, Since):
        return "octave" if isinstance(column, Slot) else "seconds"
    return "numbers"
