"""Event features: the columns of decoded events as keys and dense numbers, which samples and the library have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.features import Dense, FeatureSpec, Slot, keys_of
from streamlearn.samples.sample import FeatureColumns, SlotColumns

__all__ = ["feature_columns", "features_of"]

Columns = Mapping[str, npt.NDArray[Any]]


def features_of(spec: FeatureSpec, side: Any, columns: Columns) -> FeatureColumns:
    """Return one side's features: of every impression ("user"), or of every item of all impressions ("item").

    `columns` are those of `EventColumns`. Of a sequence only the newest `length` values are kept: no model sees more.
    """
    prefix = "user" if side == "user" else "items"
    return feature_columns((spec.slots_of(side), spec.dense_of(side)), columns, prefix)


def feature_columns(declared: tuple[Sequence[Slot], Sequence[Dense]], columns: Columns, prefix: str) -> FeatureColumns:
    """Return the features of some slots and dense columns, whose names in `columns` have the prefix."""
    slots = {slot.name: _slot(slot, columns, prefix) for slot in declared[0]}
    dense = {part.name: columns[f"{prefix}.{part.name}"].reshape(-1, part.width) for part in declared[1]}
    return FeatureColumns(slots, dense)


def _slot(slot: Slot, columns: Columns, prefix: str) -> SlotColumns:
    path = f"{prefix}.{slot.name}"
    values, texts_at = columns[path], columns.get(f"{path}$")
    keys = _taken(keys_of(slot, values, offsets=texts_at), columns, path, f"{prefix}.served_keys_{slot.name}")
    if not slot.multi:
        return SlotColumns(keys)
    full = SlotColumns(keys, columns[f"{path}[]"], columns[f"{path}_weights"] if slot.pooling == "weighted" else None)
    return _newest(full, slot.length) if slot.pooling == "sequence" else full


def _taken(keys: npt.NDArray[np.uint64], columns: Columns, path: str, taken_at: str) -> npt.NDArray[np.uint64]:
    """Return keys, with those that a node took from the library in place of the keys of empty texts."""
    taken = columns.get(taken_at)
    if taken is None or not len(taken):
        return keys
    is_taken, offsets = np.diff(columns[f"{taken_at}[]"]) > 0, columns.get(f"{path}[]")
    mixed = keys.copy()
    mixed[is_taken if offsets is None else np.repeat(is_taken, np.diff(offsets))] = taken.view(np.uint64)
    return mixed


def _newest(slot: SlotColumns, length: int) -> SlotColumns:
    """Return the last `length` keys of each row."""
    assert slot.offsets is not None
    begins, ends = slot.offsets[:-1], slot.offsets[1:]
    lengths = np.minimum(ends - begins, length)
    if int(lengths.sum()) == len(slot.keys):
        return slot
    kept = np.arange(len(slot.keys)) >= np.repeat(ends - lengths, ends - begins)
    offsets = np.zeros(len(slot.offsets), np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return SlotColumns(slot.keys[kept], offsets)
