"""What enters a library and what leaves it: updates of items, items with their features, and the state at a cut."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec import UNSET, UnsetType

from streamlearn.events import take_rows
from streamlearn.features import FeatureSpec
from streamlearn.library.columns import Columns, features_in, ids_in
from streamlearn.samples import FeatureColumns
from streamlearn.samples.item_ids import ItemIds
from streamlearn.versions.format.manifest import RetrievalRecord

__all__ = ["WRITTEN", "ItemUpdates", "LibraryCut", "LibraryItems", "LibraryView"]

Int64s: TypeAlias = npt.NDArray[np.int64]
Uint64s: TypeAlias = npt.NDArray[np.uint64]
WRITTEN = np.uint64(1 << 63)
"""The bit of an origin that the topic of items has, and samples have not: of equal times, the topic counts."""


@dataclass(frozen=True, eq=False)
class ItemUpdates:
    """N statements on items, which may repeat and come in any order.

    Attributes:
        key: uint64[N].
        event_ms: int64[N]. The event time from which on it is so.
        origin: uint64[N]. Orders statements of one time; the same for the same statement. See `WRITTEN`.
        is_removal: bool[N]. Whether the item is removed; only the topic of items does so.
        features: The features as columns, see `columns_of`; those of a removal do not count.
    """

    key: Uint64s
    ids: ItemIds
    event_ms: Int64s
    origin: Uint64s
    is_removal: npt.NDArray[np.bool_]
    features: Columns

    def __len__(self) -> int:
        return len(self.key)

    def take(self, rows: Int64s) -> ItemUpdates:
        """Return some statements, in the given order."""
        ids, features = self.ids.take(rows), take_rows(self.features, rows)
        return ItemUpdates(self.key[rows], ids, self.event_ms[rows], self.origin[rows], self.is_removal[rows], features)


class LibraryItems(NamedTuple):
    """Items with all that describes them by themselves, as samples have it: keys and numbers of the item side."""

    keys: Uint64s
    features: FeatureColumns


@dataclass(frozen=True, eq=False)
class LibraryView:
    """All items of a library as they were at one moment, in the order of their keys; it never changes.

    Attributes:
        keys: uint64[N], ascending.
        rows: int64[N]. The row of each item's features.
    """

    spec: FeatureSpec
    keys: Uint64s
    rows: Int64s
    numbers: Int64s
    features: Columns
    ids: Columns

    def __len__(self) -> int:
        return len(self.keys)

    def items(self, at: Int64s | slice = slice(None)) -> LibraryItems:
        """Return some items, by their places in the order."""
        keys = self.keys[at]
        return LibraryItems(keys, features_in(self.spec, take_rows(self.features, self.rows[at]), keys))

    def ids_of(self, at: Int64s | slice = slice(None)) -> ItemIds:
        """Return the ids of some items."""
        return ids_in(take_rows(self.ids, self.numbers[at]))


@dataclass(frozen=True, eq=False)
class LibraryCut:
    """What changed in a library since the newest committed version.

    Attributes:
        tensors: The items and their state as a version holds them.
        upserted: The keys of items that are new, or have other features; ascending.
        size: The number of items in the library.
        committed: Notes that a committed version holds the cut.
        vectors: Returns the vectors that a sealed version changes, given the keys of the towers' rows that it changes.
            The thread that writes the version calls it. None if nothing makes vectors.
        record: What the manifest says of retrieval.
        metrics: Returns what the manifest's metrics say of retrieval; called after `vectors`, by the same thread.
    """

    tensors: dict[str, npt.NDArray[Any]]
    upserted: Uint64s
    size: int
    committed: Callable[[], None]
    vectors: Callable[[int, Uint64s], Mapping[str, npt.NDArray[Any]]] | None = None
    record: RetrievalRecord | UnsetType = UNSET
    metrics: Callable[[], Mapping[str, float]] = dict

    def __bool__(self) -> bool:
        """Whether anything changed."""
        return len(self.tensors["key"]) + len(self.tensors["gone"]) > 0
