"""Frequency: how often each item is among the positives of a step, estimated as items come.

It holds, by a hash of the item, the step in which it last came and the mean number of steps between two times, as in
"Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations" (Yi and others, 2019).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Frequency"]

Float32s = npt.NDArray[np.float32]
Uint64s = npt.NDArray[np.uint64]
_BITS = 18
# 2⁶⁴ by the golden ratio: the high bits of multiples are spread evenly.
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
# The share of the newest number of steps in the mean.
_NEWEST = np.float32(0.1)


class Frequency:
    """Estimates the chance that an item is among the positives of a step. Items of one hash are taken for one.

    Attributes:
        last: float32[2^18]. The step of the towers in which an item last came, from 1; 0 for one that never did.
        interval: float32[2^18]. The mean number of steps between two times.
    """

    def __init__(self) -> None:
        self.load({})

    def tensors(self) -> dict[str, npt.NDArray[Any]]:
        """Return a copy of both arrays, for a version."""
        return {"last": self.last.copy(), "interval": self.interval.copy()}

    def load(self, tensors: Mapping[str, npt.NDArray[Any]]) -> None:
        """Continue from both arrays; without them, no item has ever come."""
        none = np.zeros(1 << _BITS, np.float32)
        self.last: Float32s = np.array(tensors.get("last", none), np.float32)
        self.interval: Float32s = np.array(tensors.get("interval", none), np.float32)

    def chances(self, keys: Uint64s, step: int, *, come: int) -> Float32s:
        """Return the chances of items, of which the first `come` are among the positives of this step."""
        at = _places(keys)
        # An item that has not come for longer than its mean has become rarer.
        steps: Float32s = np.maximum(self.interval[at], np.float32(step) - self.last[at])
        steps[:come] = self._intervals(at[:come], step)
        chances: Float32s = np.reciprocal(np.maximum(steps, np.float32(1.0)))
        return chances

    def see(self, keys: Uint64s, step: int) -> None:
        """Note the items among the positives of a step."""
        at = _places(keys)
        self.interval[at] = self._intervals(at, step)
        self.last[at] = step

    def _intervals(self, at: npt.NDArray[np.int64], step: int) -> Float32s:
        mean, since = self.interval[at], np.float32(step) - self.last[at]
        intervals: Float32s = np.where(self.last[at] > 0, mean + _NEWEST * (since - mean), since)
        return intervals


def _places(keys: Uint64s) -> npt.NDArray[np.int64]:
    return ((keys * _SPREAD) >> np.uint64(64 - _BITS)).astype(np.int64)
