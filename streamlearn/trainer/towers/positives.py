"""Positives: who chose which item, as far as retrieval needs it, and a bounded sample of those learned lately."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.samples import FeatureColumns
from streamlearn.trainer.columns import join_features

__all__ = ["Positives", "SampledPositives", "are_held_out"]

Int64s = npt.NDArray[np.int64]
Uint64s = npt.NDArray[np.uint64]
_ALL = (1 << 64) - 1
# One positive in so many, a power of two. More would cost the towers too much of what they could learn.
_HELD_OUT_ONE_IN = 32


def are_held_out(identity: Uint64s) -> npt.NDArray[np.bool_]:
    """Return which positives the towers never learn, by the hashes of their rows: versions are judged by these.

    A version that has just learned a positive finds it far more often than a later one, which would look worse.
    """
    are: npt.NDArray[np.bool_] = identity & np.uint64(_HELD_OUT_ONE_IN - 1) == 0
    return are


@dataclass(frozen=True, eq=False)
class Positives:
    """P positives of U requests."""

    users: FeatureColumns  # U entries: the columns that the user tower reads
    requests: int  # U
    user_index: Int64s  # int64[P]: the request of each
    keys: Uint64s  # uint64[P]: the key of its item
    identity: Uint64s  # uint64[P]: a hash of its row
    event_time_ms: Int64s  # int64[P]

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, chosen: npt.NDArray[Any]) -> Positives:
        """Return some positives, by their places or a mask, with their requests alone."""
        requests, index = np.unique(self.user_index[chosen], return_inverse=True)
        columns = (self.keys[chosen], self.identity[chosen], self.event_time_ms[chosen])
        return Positives(self.users.take(requests), len(requests), index, *columns)

    @classmethod
    def joined(cls, parts: Sequence[Positives]) -> Positives:
        """Return the positives of several parts, at least one."""
        begins = np.cumsum([0, *(part.requests for part in parts)])
        return cls(
            join_features([part.users for part in parts]),
            int(begins[-1]),
            np.concatenate([part.user_index + begin for part, begin in zip(parts, begins[:-1], strict=True)]),
            *(
                np.concatenate([getattr(part, name) for part in parts])
                for name in ("keys", "identity", "event_time_ms")
            ),
        )


class SampledPositives:
    """A sample of positives, at most `most`: their hashes choose them, so that the same stream gives the same sample.

    `choose` and `add` may run in one thread beside `take` in another.
    """

    def __init__(self, most: int) -> None:
        self._most, self._lock = most, threading.Lock()
        self._parts: list[Positives] = []
        self._share_max = _ALL

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._parts, self._share_max = [], _ALL

    def choose(self, identity: Uint64s) -> npt.NDArray[np.bool_]:
        """Return which positives the sample takes."""
        chosen: npt.NDArray[np.bool_] = identity <= np.uint64(self._share_max)
        return chosen

    def add(self, positives: Positives) -> None:
        """Add positives that were chosen."""
        with self._lock:
            self._parts.append(positives)
            while sum(map(len, self._parts)) > self._most:
                self._share_max //= 2
                self._parts = [part.take(self.choose(part.identity)) for part in self._parts]

    def take(self) -> Positives | None:
        """Return the sample, None if it is empty, and begin another."""
        with self._lock:
            parts, self._parts, self._share_max = [part for part in self._parts if len(part)], [], _ALL
        return Positives.joined(parts) if parts else None
