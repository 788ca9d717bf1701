"""Derivation: the columns that features do not hold. Serving makes the same from the same layout."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.features import PackColumn, PackSide
from streamlearn.features.pack import PackPlan
from streamlearn.native import native
from streamlearn.samples import FeatureColumns, SlotColumns

__all__ = ["key_numbers", "with_derived"]

_FLOAT32_MAX = np.finfo(np.float32).max


def with_derived(
    pack: PackPlan, user: FeatureColumns, item: FeatureColumns, request_index: npt.NDArray[Any]
) -> tuple[FeatureColumns, FeatureColumns]:
    """Return the features of both sides with derived columns; `request_index` has the user of each item."""
    return _added(pack.user, user, user, request_index), _added(pack.item, item, user, request_index)


def _added(side: PackSide, own: FeatureColumns, user: FeatureColumns, index: npt.NDArray[Any]) -> FeatureColumns:
    derived = [column for column in side.flat if column.of]
    if not derived:
        return own

    def keys(name: str) -> npt.NDArray[Any]:
        return own.slots[name].keys if name in own.slots else user.slots[name].keys[index]

    def numbers(name: str) -> npt.NDArray[Any]:
        return own.dense[name] if name in own.dense else user.dense[name][index]

    slots, dense = dict(own.slots), dict(own.dense)
    for column in derived:
        first, second = column.of
        if column.pooling == "key":
            dense[column.name] = key_numbers(keys(first))
        elif column.table:
            crossed = native.cross_keys(keys(first), keys(second), native.slot_salt(column.name))
            slots[column.name] = SlotColumns(crossed)
        elif first in own.slots:
            dense[column.name] = _counts(column, own, user, index)
        else:
            with np.errstate(over="ignore"):
                product = numbers(first) * numbers(second)
            dense[column.name] = np.clip(product, -_FLOAT32_MAX, _FLOAT32_MAX)  # as finite as what it is made from
    return FeatureColumns(slots, dense)


def key_numbers(keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.float32]:
    """Return the first 48 bits of each key as two numbers from 0 to 1, which float32 holds exactly."""
    parts = np.stack([keys >> np.uint64(40), keys >> np.uint64(16) & np.uint64(0xFFFFFF)], axis=1)
    return (parts / (1 << 24)).astype(np.float32)


def _counts(column: PackColumn, own: FeatureColumns, user: FeatureColumns, index: npt.NDArray[Any]) -> Any:
    slot, within = column.of
    lists = user.slots[within]
    assert lists.offsets is not None  # it has several values
    counted = native.count_keys(own.slots[slot].keys, index, lists.offsets, lists.keys)
    return counted.reshape(-1, 1)
