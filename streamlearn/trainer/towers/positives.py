"""Positives: who chose which item, as far as retrieval needs it; and which of them the towers never learn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamlearn.samples import FeatureColumns
from streamlearn.trainer.columns import join_features

__all__ = ["Positives", "are_held_out"]

Int64s = npt.NDArray[np.int64]
Uint64s = npt.NDArray[np.uint64]
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

    def __len__(self) -> int:
        return len(self.keys)

    def thinned(self, most: int) -> Positives:
        """Return at most so many, spread evenly, with their requests alone."""
        if len(self) <= most:
            return self
        chosen = np.linspace(0, len(self) - 1, most).astype(np.int64)
        requests, index = np.unique(self.user_index[chosen], return_inverse=True)
        return Positives(self.users.take(requests), len(requests), index, self.keys[chosen])

    @classmethod
    def joined(cls, parts: Sequence[Positives]) -> Positives:
        """Return the positives of several parts."""
        begins = np.cumsum([0, *(part.requests for part in parts)])
        index = [part.user_index + begin for part, begin in zip(parts, begins[:-1], strict=True)]
        keys = np.concatenate([np.zeros(0, np.uint64), *(part.keys for part in parts)])
        users = join_features([part.users for part in parts])
        return cls(users, int(begins[-1]), np.concatenate([np.zeros(0, np.int64), *index]), keys)
