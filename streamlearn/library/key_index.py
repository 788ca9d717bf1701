"""KeyIndex: which row belongs to which key. It knows nothing of what is in the rows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["KeyIndex"]

Int64s = npt.NDArray[np.int64]
Uint64s = npt.NDArray[np.uint64]
# A longer tail is merged: that copies all keys, so it is worth many new ones.
_TAIL_MAX = 1_024


class KeyIndex:
    """Distinct keys in their order, each with its row. New keys stand in a short tail of their own for a while."""

    def __init__(self, keys: Uint64s | None = None) -> None:
        """Begin with ascending keys, whose rows are their places."""
        self._keys = np.zeros(0, np.uint64) if keys is None else keys
        self._rows = np.arange(len(self._keys))
        self._tail, self._tail_rows = np.zeros(0, np.uint64), np.zeros(0, np.int64)

    def __len__(self) -> int:
        return len(self._keys) + len(self._tail)

    @property
    def keys(self) -> Uint64s:
        """All keys, ascending."""
        self._settle()
        return self._keys

    @property
    def rows(self) -> Int64s:
        """The row of each key, in the order of `keys`."""
        self._settle()
        return self._rows

    @property
    def size_bytes(self) -> int:
        """The memory of all keys and rows."""
        return self._keys.nbytes + self._rows.nbytes + self._tail.nbytes + self._tail_rows.nbytes

    def find(self, keys: Uint64s) -> Int64s:
        """Return the row of each key; -1 for keys that are not there."""
        found, order = np.full(len(keys), -1, np.int64), np.argsort(keys)
        ordered = keys[order]  # a sorted search stays in the cache
        for known, rows in ((self._keys, self._rows), (self._tail, self._tail_rows)):
            if len(known):
                at = np.minimum(np.searchsorted(known, ordered), len(known) - 1)
                is_there = known[at] == ordered
                found[order[is_there]] = rows[at[is_there]]
        return found

    def at(self, ranks: Int64s) -> Int64s:
        """Return the rows of keys by their places in the order."""
        if not len(self._tail):
            return self._rows[ranks]
        places = np.searchsorted(self._keys, self._tail) + np.arange(len(self._tail))
        before = np.searchsorted(places, ranks)  # how many keys of the tail are smaller
        at = np.minimum(before, len(places) - 1)
        is_tail = places[at] == ranks
        rows = self._tail_rows[at]
        rows[~is_tail] = self._rows[(ranks - before)[~is_tail]]
        return rows

    def add(self, keys: Uint64s, rows: Int64s) -> None:
        """Add ascending keys that are not there."""
        at = np.searchsorted(self._tail, keys)
        self._tail, self._tail_rows = np.insert(self._tail, at, keys), np.insert(self._tail_rows, at, rows)
        if len(self._tail) > _TAIL_MAX:
            self._settle()

    def keep(self, is_kept: npt.NDArray[np.bool_]) -> None:
        """Keep some keys, by their places in the order."""
        self._settle()
        self._keys, self._rows = self._keys[is_kept], self._rows[is_kept]

    def _settle(self) -> None:
        if len(self._tail):
            at = np.searchsorted(self._keys, self._tail)
            self._keys, self._rows = np.insert(self._keys, at, self._tail), np.insert(self._rows, at, self._tail_rows)
            self._tail, self._tail_rows = self._tail[:0], self._tail_rows[:0]
