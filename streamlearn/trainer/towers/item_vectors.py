"""ItemVectors: the vectors of a library's items as int8 numbers, and which of them a version changes.

A version writes only vectors whose bytes differ, so most items cost nothing although their rows learn all the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from streamlearn.errors import VersionRefused
from streamlearn.library.items import LibraryItems, LibraryView
from streamlearn.native import native
from streamlearn.samples import FeatureColumns
from streamlearn.versions import Chain
from streamlearn.versions.format.library_files import GONE, vectors_in

__all__ = ["ItemVectors", "Tower", "VectorsCut", "are_searchable", "encoded", "places_of"]

Float32s = npt.NDArray[np.float32]
Uint64s = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]
_AT_ONCE = 1 << 14
# Keys are hashes: their highest bits are a fast first test of whether one key may be among others.
_SHIFT = np.uint64(64 - 22)
# Vectors with larger numbers are refused, by `encoded` and by nodes.
_VECTOR_MAX = 1e15
# As many versions can be searched: the newest, the active one, and those between them.
_SEARCHED_MAX = 4


class Tower(Protocol):
    """The item tower."""

    @property
    def has_weights(self) -> bool:
        """Whether vectors depend on more than the rows of their items."""

    @property
    def weights(self) -> Float32s:
        """All weights of now; another array after each change."""

    def vectors(self, items: FeatureColumns, count: int, weights: Float32s, version: int) -> Float32s:
        """Return the vectors of items, float32[count, dim], by the rows of a sealed or committed version."""


@dataclass(frozen=True, eq=False)
class _Rows:
    """The vectors of items by key, ascending."""

    keys: Uint64s
    values: npt.NDArray[np.int8]
    scales: Float32s

    def placed(self, keys: Uint64s, at: npt.NDArray[np.int64]) -> _Rows:
        """Return a row for each key, from its place here; that of a key that is not here means nothing."""
        if np.array_equal(keys, self.keys):
            return _Rows(keys, self.values.copy(), self.scales.copy())
        rows = _Rows(keys, np.empty((len(keys), self.values.shape[1]), np.int8), np.empty(len(keys), np.float32))
        if len(self.keys):
            # "clip" writes in place; all places are valid.
            self.values.take(at, axis=0, out=rows.values, mode="clip")
            self.scales.take(at, out=rows.scales, mode="clip")
        return rows

    def take(self, rows: Any) -> _Rows:
        return _Rows(self.keys[rows], self.values[rows], self.scales[rows])

    def changes(self, gone: Uint64s) -> dict[str, npt.NDArray[Any]]:
        return {"key": self.keys, "row": self.values, "scale": self.scales, GONE: gone}


class ItemVectors:
    """The vectors of all items, as the newest committed version has them; and those of a few versions, to be searched.

    Attributes:
        version: The newest committed version; 0 before one has vectors.
    """

    def __init__(self, dim: int) -> None:
        self.version = 0
        self._blocks: dict[int, Any] = {}
        self._none = _Rows(np.zeros(0, np.uint64), np.zeros((0, dim), np.int8), np.zeros(0, np.float32))
        self._rows, self._weights = self._none, np.zeros(0, np.float32)

    def __len__(self) -> int:
        return len(self._rows.keys)

    def restore(self, chain: Chain | None, tower: Tower) -> None:
        """Take the vectors of a version, whose tower this is, instead of all that are there.

        Raises:
            VersionDefect: They are damaged.
        """
        tensors = None if chain is None else vectors_in(chain.store, chain.links)
        self._rows, self._weights = self._none, np.zeros(0, np.float32)
        self.version, self._blocks = 0, {}
        if tensors is not None and tensors["row"].shape[1:] == self._none.values.shape[1:]:
            self._rows = _Rows(tensors["key"], tensors["row"], tensors["scale"])
            self._weights = tower.weights
            if chain is not None:
                self._set_blocks(chain.version, self._rows.changes(tensors[GONE]))

    def has(self, keys: Uint64s) -> Bools:
        """Return which items have a vector."""
        return places_of(self._rows.keys, keys)[1]

    def blocks(self, version: int) -> Any:
        """Return the vectors of a version, to be searched; raises VersionRefused if they are no longer there."""
        if version not in self._blocks:
            message = f"the vectors of version {version} are no longer in the trainer"
            raise VersionRefused(message, help="compare with a version that was published since the trainer started")
        return self._blocks[version]

    def keep(self, *versions: int) -> None:
        """Forget the vectors of all versions but the newest and these."""
        kept = {self.version, *versions}
        self._blocks = {version: blocks for version, blocks in self._blocks.items() if version in kept}

    def note(self, tower: Tower, items: LibraryView, changed: Uint64s) -> VectorsCut:
        """Return the vectors as of a step boundary, to be made later; `changed` are items that are new or differ."""
        return VectorsCut(self, tower, tower.weights, items, changed)

    def _continue(self, rows: _Rows, weights: Float32s, version: int, changes: dict[str, npt.NDArray[Any]]) -> None:
        self._rows, self._weights = rows, weights
        self._set_blocks(version, changes)

    def _set_blocks(self, version: int, changes: dict[str, npt.NDArray[Any]]) -> None:
        before = self._blocks.get(self.version) or native.Blocks(self._none.values.shape[1])
        self.version = version
        self._blocks[version] = before.apply(changes["key"], changes["row"], changes["scale"], changes[GONE])
        if len(self._blocks) > _SEARCHED_MAX:
            # The first is the active one if versions since then were not promoted.
            del self._blocks[sorted(self._blocks)[1]]


@dataclass(eq=False)
class VectorsCut:
    """The vectors of items as of a step boundary. The thread that writes the version makes them."""

    _newest: ItemVectors
    _tower: Tower
    _weights: Float32s
    _items: LibraryView
    _changed: Uint64s
    _commit: Callable[[], None] = field(default=lambda: None)
    metrics: dict[str, float] = field(default_factory=dict)  # what the version says of its vectors, once made

    def tensors(self, version: int, changed: Uint64s) -> dict[str, npt.NDArray[Any]]:
        """Return what a version changes; `changed` are the keys of tower rows that it changes."""
        before, keys = self._newest._rows, self._items.keys
        at, is_known = places_of(before.keys, keys)
        parts = list(self._parts(version, changed, is_known))
        stale = np.concatenate([np.zeros(0, np.int64), *(places for places, _ in parts)])
        made = _joined([part for _, part in parts], before)
        was = before.take(at[stale]) if len(before.keys) else made
        differ = ~is_known[stale] | (made.scales != was.scales) | (made.values != was.values).any(axis=1)
        gone = before.keys[~places_of(keys, before.keys)[1]]
        now = before.placed(keys, at)
        now.values[stale], now.scales[stale] = made.values, made.scales
        changes = made.take(differ).changes(gone)
        self._commit = lambda: self._newest._continue(now, self._weights, version, changes)
        self.metrics["vectors_changed"] = float(len(changes["key"]))
        return changes

    def committed(self) -> None:
        """Note that a committed version holds them."""
        self._commit()

    def _parts(self, version: int, changed: Uint64s, is_known: Bools) -> Iterator[tuple[npt.NDArray[np.int64], _Rows]]:
        """Yield the places of items whose vectors may have changed, and the vectors that they have now."""
        items, keys = self._items, self._items.keys
        is_all = self._tower.has_weights and self._weights is not self._newest._weights
        is_among, is_changed = _Among(changed), _Among(self._changed)
        for begin in range(0, len(keys), _AT_ONCE):
            part = slice(begin, min(begin + _AT_ONCE, len(keys)))
            of_part = items.items(part)
            is_stale = ~is_known[part] | is_changed(keys[part])
            is_stale |= is_all or _touched(of_part, is_among)
            rows = np.flatnonzero(is_stale)
            if len(rows):
                vectors = self._tower.vectors(of_part.features.take(rows), len(rows), self._weights, version)
                yield rows + begin, _Rows(keys[part][rows], *encoded(self._finite(vectors)))

    def _finite(self, vectors: Float32s) -> Float32s:
        """Return vectors with zeros for those that no node can search, which are counted for the judge."""
        is_fit = are_searchable(vectors)
        if is_fit.all():
            return vectors
        numbers = vectors[~is_fit]
        bad = {".not_finite": ~(np.abs(numbers) <= _VECTOR_MAX), ".nan": np.isnan(numbers)}
        for suffix, are in bad.items():
            name = f"vectors{suffix}"
            self.metrics[name] = self.metrics.get(name, 0.0) + float(np.count_nonzero(are))
        return np.where(is_fit[:, None], vectors, np.float32(0.0))


class _Among:
    """Tells which keys are among some."""

    def __init__(self, keys: Uint64s) -> None:
        self._keys, self._may_be = np.sort(keys), np.zeros(1 << 22, np.bool_)
        self._may_be[keys >> _SHIFT] = True

    def __call__(self, keys: Uint64s) -> Bools:
        are: Bools = self._may_be[keys >> _SHIFT]
        are[are] = places_of(self._keys, keys[are])[1]
        return are


def are_searchable(vectors: Float32s) -> Bools:
    """Return which vectors have only numbers that nodes take."""
    are: Bools = np.all(np.abs(vectors) <= _VECTOR_MAX, axis=1)  # comparisons with NaN are false
    return are


def places_of(keys: Uint64s, wanted: Uint64s) -> tuple[npt.NDArray[np.int64], Bools]:
    """Return the place of each wanted key among ascending ones, and whether it is there."""
    at = np.minimum(np.searchsorted(keys, wanted), max(len(keys) - 1, 0))
    return at, keys[at] == wanted if len(keys) else np.zeros(len(wanted), np.bool_)


def encoded(vectors: Float32s) -> tuple[npt.NDArray[np.int8], Float32s]:
    """Return vectors as int8 numbers and a factor each; the same bytes on any machine."""
    values, scales = native.encode_vectors(np.ascontiguousarray(vectors, np.float32))
    return values, scales


def _touched(items: LibraryItems, is_among: _Among) -> Bools:
    """Return which items have a key that is among the changed ones."""
    touched = np.zeros(len(items.keys), np.bool_)
    for slot in items.features.slots.values():
        if touched.all():
            break
        are = is_among(slot.keys)
        if slot.offsets is None:
            touched |= are
        elif are.any():
            counts = np.concatenate(([0], np.cumsum(are)))
            touched |= counts[slot.offsets[1:]] > counts[slot.offsets[:-1]]
    return touched


def _joined(parts: list[_Rows], before: _Rows) -> _Rows:
    empty = before.take(slice(0, 0))
    columns = [[getattr(part, name) for part in (empty, *parts)] for name in ("keys", "values", "scales")]
    return _Rows(*map(np.concatenate, columns))
