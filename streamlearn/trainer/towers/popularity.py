"""Popularity: how often items were positive lately, by counts that halve every six hours."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

__all__ = ["HALF_LIFE_MS", "Popularity"]

Uint64s = npt.NDArray[np.uint64]
HALF_LIFE_MS = 6 * 3_600_000
# Items that have come less often than so many others are forgotten.
_ITEMS_MAX = 1 << 16


class Popularity:
    """Counts the positives of items.

    Attributes:
        span_ms: How much event time it has counted.
    """

    def __init__(self) -> None:
        self._keys: Uint64s = np.zeros(0, np.uint64)
        self._counts: npt.NDArray[np.float64] = np.zeros(0, np.float64)
        self._now_ms, self.span_ms = 0, 0

    def count(self, keys: Uint64s, now_ms: int) -> None:
        """Count positives of a time; the counts of earlier ones fade."""
        passed_ms = max(0, now_ms - self._now_ms) if self._now_ms else 0
        self._now_ms, self.span_ms = max(self._now_ms, now_ms), self.span_ms + passed_ms
        faded = self._counts * 0.5 ** (passed_ms / HALF_LIFE_MS)
        keys, at = np.unique(np.concatenate([self._keys, keys]), return_inverse=True)
        counts = np.bincount(at, np.concatenate([faded, np.ones(len(at) - len(faded))])).astype(np.float64)
        order = np.argsort(-counts, kind="stable")[:_ITEMS_MAX]
        self._keys, self._counts = keys[order], counts[order]

    def top(self, count: int, are_there: Callable[[Uint64s], npt.NDArray[np.bool_]]) -> Uint64s:
        """Return the items that came most, the first of them first, of those that are there."""
        return self._keys[are_there(self._keys)][:count]
