"""Columns of items: their features as columns by name, and columns that grow while others read them.

Names are those of `EventColumns`: `item.tags` holds the keys of all items one after another, `item.tags[]` where each
item's keys begin, `id$` where each text begins. It does not know what an item is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.events import take_rows
from streamlearn.features import FeatureSpec
from streamlearn.samples import FeatureColumns, SlotColumns
from streamlearn.samples.item_ids import ItemIds

__all__ = [
    "Columns",
    "GrowingColumns",
    "columns_of",
    "features_in",
    "id_columns",
    "ids_in",
    "no_features",
    "rows_differ",
]

Columns = Mapping[str, npt.NDArray[Any]]
_GROWTH = 1.5


class GrowingColumns:
    """Columns to which rows are appended.

    Guaranteed: rows keep their place, and a `view` stays as it is. Numbers of a view that is not shared may be changed.
    """

    def __init__(self, columns: Columns, rows: int = 0) -> None:
        self._arrays, self.rows = dict(columns), rows
        self._used = {name: len(array) for name, array in columns.items()}

    def append(self, rows: Columns, count: int) -> None:
        """Append rows, which have all columns."""
        self.rows += count
        for name, array in self._arrays.items():
            added, used = rows[name], self._used[name]
            if _is_offsets(name):
                added = added[1:] - added[0] + array[used - 1]
            if used + len(added) > len(array):
                grown = np.zeros((int((used + len(added)) * _GROWTH), *array.shape[1:]), array.dtype)
                grown[:used] = array[:used]
                self._arrays[name] = array = grown
            array[used : used + len(added)] = added
            self._used[name] = used + len(added)

    def view(self) -> dict[str, npt.NDArray[Any]]:
        """Return the columns of all rows so far."""
        return {name: array[: self._used[name]] for name, array in self._arrays.items()}

    @property
    def size_bytes(self) -> int:
        """The memory of all columns."""
        return sum(array.nbytes for array in self._arrays.values())


def columns_of(spec: FeatureSpec, features: FeatureColumns) -> dict[str, npt.NDArray[Any]]:
    """Return the features that describe items by themselves as columns, from those of samples."""
    slots, dense = spec.of_library
    columns: dict[str, npt.NDArray[Any]] = {}
    for slot in slots:
        given, path = features.slots[slot.name], f"item.{slot.name}"
        columns[path] = given.keys
        if given.offsets is not None:
            columns[f"{path}[]"] = given.offsets.astype(np.int64)
        if given.offsets is not None and given.weights is not None:
            columns |= {f"{path}_weights": given.weights, f"{path}_weights[]": columns[f"{path}[]"]}
    return columns | {f"item.{column.name}": features.dense[column.name] for column in dense}


def features_in(spec: FeatureSpec, columns: Columns, keys: npt.NDArray[np.uint64]) -> FeatureColumns:
    """Return columns as features of items with these keys, as samples have them."""
    slots, dense = spec.of_library
    found = {spec.item_id: SlotColumns(keys)}
    for slot in slots:
        offsets = columns.get(f"item.{slot.name}[]")
        ends = None if offsets is None else offsets.astype(np.int32)
        found[slot.name] = SlotColumns(columns[f"item.{slot.name}"], ends, columns.get(f"item.{slot.name}_weights"))
    ordered = {slot.name: found[slot.name] for slot in spec.slots_of("item") if slot.name in found}
    return FeatureColumns(ordered, {column.name: columns[f"item.{column.name}"] for column in dense})


def no_features(spec: FeatureSpec) -> dict[str, npt.NDArray[Any]]:
    """Return the columns of one item without features."""
    slots, dense = spec.of_library
    blank, one = np.zeros(1, np.uint64), np.zeros(2, np.int32)
    single = {slot.name: SlotColumns(blank) for slot in slots if not slot.multi}
    none = SlotColumns(blank[:0], one)
    weighted = SlotColumns(blank[:0], one, np.zeros(0, np.float32))
    lists = {slot.name: weighted if slot.pooling == "weighted" else none for slot in slots if slot.multi}
    zeros = {column.name: np.zeros((1, column.width), np.float32) for column in dense}
    return columns_of(spec, FeatureColumns(single | lists, zeros))


def id_columns(ids: ItemIds) -> dict[str, npt.NDArray[Any]]:
    """Return ids as columns."""
    return {"id": ids.values} | ({} if ids.offsets is None else {"id$": ids.offsets.astype(np.int64)})


def ids_in(columns: Columns) -> ItemIds:
    """Return the ids of columns."""
    return ItemIds(columns["id"], columns["id$"].astype(np.int32) if "id$" in columns else None)


def rows_differ(some: Columns, others: Columns, rows: int) -> npt.NDArray[np.bool_]:
    """Return in which rows two sets of columns differ; both have as many rows, and the same columns."""
    differ = np.zeros(rows, np.bool_)
    for name in filter(_is_offsets, some):
        differ |= np.diff(some[name]) != np.diff(others[name])
    alike = np.flatnonzero(~differ)
    mine, theirs = take_rows(some, alike), take_rows(others, alike)
    for name, column in mine.items():
        if _is_offsets(name):
            continue
        wrong = column != theirs[name]
        if (offsets := mine.get(f"{name}[]")) is not None:
            before = np.concatenate(([0], np.cumsum(wrong)))
            wrong = before[offsets[1:]] > before[offsets[:-1]]
        differ[alike] |= wrong.any(axis=1) if wrong.ndim > 1 else wrong
    return differ


def _is_offsets(name: str) -> bool:
    return name.endswith(("[]", "$"))
