"""TowerItems: the items of a library, as towers learn from them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from streamlearn.features import FeatureSpec
from streamlearn.library.library import Library
from streamlearn.samples import FeatureColumns

__all__ = ["TowerItems", "columns_for"]

Uint64s = npt.NDArray[np.uint64]


class TowerItems:
    """The items of a library, by key, with the columns of the item side that `features` names."""

    def __init__(self, library: Library, features: FeatureSpec) -> None:
        self.library = library
        self._names = {*(slot.name for slot in features.slots), *(column.name for column in features.dense)}

    def __len__(self) -> int:
        return len(self.library)

    def sample(self, count: int, seed: int) -> tuple[Uint64s, FeatureColumns]:
        """Return the keys and columns of items drawn uniformly, each once; fewer than `count` if some were drawn twice.

        The same items and seed give the same ones.
        """
        drawn = self.library.sample(count, seed)
        keys, first = np.unique(drawn.keys, return_index=True)
        return keys, columns_for(drawn.features, self._names).take(first)

    def slices(self, size: int) -> Iterator[tuple[Uint64s, FeatureColumns]]:
        """Yield the keys and columns of all items, at most `size` at once."""
        view = self.library.view()
        for begin in range(0, len(view), size):
            items = view.items(slice(begin, begin + size))
            yield items.keys, columns_for(items.features, self._names)


def columns_for(features: FeatureColumns, names: set[str]) -> FeatureColumns:
    """Return some columns of a side's features."""
    slots = {name: slot for name, slot in features.slots.items() if name in names}
    return FeatureColumns(slots, {name: numbers for name, numbers in features.dense.items() if name in names})
