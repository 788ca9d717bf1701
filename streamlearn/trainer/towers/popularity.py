"""Popularity: how often items were positive lately, by counts that halve every six hours."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

__all__ = ["HALF_LIFE_MS", "Popularity"]

Uint64s = npt.NDArray[np.uint64]
HALF_LIFE_MS = 6 * 3_600_000
_ITEMS_MAX = 1 << 16


class Popularity:
    """Counts the positives of items. Beyond `_ITEMS_MAX` items it forgets those that have come least.

    Attributes:
        span_ms: How much event time it has counted.

    Examples:
        >>> popularity = Popularity()
        >>> popularity.count(np.array([7, 8, 8], np.uint64), np.array([0, 0, 0]))
        >>> popularity.count(np.array([7, 7], np.uint64), np.array([HALF_LIFE_MS, HALF_LIFE_MS]))
        >>> popularity.top(1, lambda keys: keys > 0), popularity.span_ms == HALF_LIFE_MS
        (array([7], dtype=uint64), True)
    """

    def __init__(self) -> None:
        self._keys: Uint64s = np.zeros(0, np.uint64)
        self._counts: npt.NDArray[np.float64] = np.zeros(0, np.float64)
        self._newest_ms: int | None = None
        self.span_ms = 0

    def count(self, keys: Uint64s, event_time_ms: npt.NDArray[np.int64]) -> None:
        """Count positives, at least one."""
        first_ms, last_ms = int(event_time_ms.min()), int(event_time_ms.max())
        was_ms = first_ms if self._newest_ms is None else self._newest_ms
        self._newest_ms = max(was_ms, last_ms)
        self.span_ms += self._newest_ms - was_ms
        more = np.exp2((event_time_ms - self._newest_ms) / HALF_LIFE_MS)
        known = self._counts * 2.0 ** ((was_ms - self._newest_ms) / HALF_LIFE_MS)
        self._keys, at = np.unique(np.concatenate([self._keys, keys]), return_inverse=True)
        self._counts = np.bincount(at, np.concatenate([known, more])).astype(np.float64)
        if len(self._keys) > _ITEMS_MAX:
            kept = np.sort(np.argpartition(-self._counts, _ITEMS_MAX)[:_ITEMS_MAX])
            self._keys, self._counts = self._keys[kept], self._counts[kept]

    def top(self, count: int, are_there: Callable[[Uint64s], npt.NDArray[np.bool_]]) -> Uint64s:
        """Return the items that came most, the first of them first, of those that are there."""
        order = np.argsort(-self._counts, kind="stable")
        return self._keys[order[are_there(self._keys[order])][:count]]
