"""Items: what towers ask of a library, and a small one in memory that holds the items shown so far."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from streamlearn.features import FeatureSpec
from streamlearn.samples import FeatureColumns, SlotColumns
from streamlearn.trainer.columns import join_features

__all__ = ["Items", "ShownItems", "columns_for"]

Uint64s = npt.NDArray[np.uint64]
ITEMS_MAX = 1 << 17


class Items(Protocol):
    """The items of a library, as towers learn from them: by key, with the columns of the item side."""

    def __len__(self) -> int: ...

    def sample(self, count: int, seed: int) -> tuple[Uint64s, FeatureColumns]:
        """Return the keys and columns of items drawn uniformly, each once; fewer than `count` if some were drawn twice.

        The same items and seed give the same ones.
        """

    def slices(self, size: int) -> Iterator[tuple[Uint64s, FeatureColumns]]:
        """Yield the keys and columns of all items, at most `size` at once."""

    def add(self, keys: Uint64s, columns: FeatureColumns) -> None:
        """Take note of items that were shown; a key may repeat."""


class ShownItems:
    """The first `ITEMS_MAX` items that were shown, with the columns that they had then."""

    def __init__(self, features: FeatureSpec) -> None:
        self._slots, self._dense = features.slots_of("item"), features.dense_of("item")
        self._empty: dict[str, npt.NDArray[Any]] = {"keys": np.zeros(0, np.uint64)}
        for slot in self._slots:
            self._empty[f"{slot.name}/keys"] = np.zeros(0, np.uint64)
            if slot.multi:
                self._empty[f"{slot.name}/offsets"] = np.zeros(1, np.int32)
            if slot.pooling == "weighted":
                self._empty[f"{slot.name}/weights"] = np.zeros(0, np.float32)
        self._empty |= {f"{column.name}/dense": np.zeros((0, column.width), np.float32) for column in self._dense}
        self._state: tuple[Uint64s, FeatureColumns]
        self._known: set[int]
        self.load({})

    def __len__(self) -> int:
        return len(self._state[0])

    def sample(self, count: int, seed: int) -> tuple[Uint64s, FeatureColumns]:
        """See `Items`."""
        keys, columns = self._state
        if not len(keys):
            return keys, columns
        drawn = np.unique(np.random.default_rng(seed).integers(0, len(keys), count))
        return keys[drawn], columns.take(drawn)

    def slices(self, size: int) -> Iterator[tuple[Uint64s, FeatureColumns]]:
        """See `Items`."""
        keys, columns = self._state
        for begin in range(0, len(keys), size):
            part = slice(begin, min(begin + size, len(keys)))
            yield keys[part], columns.take(part)

    def add(self, keys: Uint64s, columns: FeatureColumns) -> None:
        """See `Items`."""
        distinct, first = np.unique(keys, return_index=True)
        at = [row for key, row in zip(distinct.tolist(), first.tolist(), strict=True) if key not in self._known]
        at = sorted(at)[: ITEMS_MAX - len(self)]
        if at:
            known, before = self._state
            self._known.update(keys[at].tolist())
            # One assignment, so that other threads see keys with their columns.
            self._state = np.concatenate([known, keys[at]]), join_features([before, columns.take(np.array(at))])

    def tensors(self) -> dict[str, npt.NDArray[Any]]:
        """Return all it holds, for a version."""
        keys, columns = self._state
        found: dict[str, npt.NDArray[Any]] = {"keys": keys}
        for name, slot in columns.slots.items():
            parts = {"keys": slot.keys, "offsets": slot.offsets, "weights": slot.weights}
            found |= {f"{name}/{part}": array for part, array in parts.items() if array is not None}
        return found | {f"{name}/dense": numbers for name, numbers in columns.dense.items()}

    def load(self, tensors: Mapping[str, npt.NDArray[Any]]) -> None:
        """Continue from what a version holds; without tensors it is empty."""
        given = self._empty | dict(tensors)
        slots = {
            slot.name: SlotColumns(
                given[f"{slot.name}/keys"], given.get(f"{slot.name}/offsets"), given.get(f"{slot.name}/weights")
            )
            for slot in self._slots
        }
        dense = {column.name: given[f"{column.name}/dense"] for column in self._dense}
        self._state, self._known = (given["keys"], FeatureColumns(slots, dense)), set(given["keys"].tolist())


def columns_for(features: FeatureColumns, names: set[str]) -> FeatureColumns:
    """Return some columns of a side's features."""
    slots = {name: slot for name, slot in features.slots.items() if name in names}
    return FeatureColumns(slots, {name: numbers for name, numbers in features.dense.items() if name in names})
