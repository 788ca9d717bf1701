"""TableComparison: the same parts of one table in two versions, compared key by key. It knows no files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.table import Changes

__all__ = ["TableComparison"]

Indices = npt.NDArray[np.int64]
Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class TableComparison:
    """The indices of keys in the arrays of two versions.

    Attributes:
        created: Keys that only the later one has; indices in the later.
        gone: Keys that only the earlier one has; indices in the earlier.
        changed: Keys with another row, state or use; indices in the earlier and in the later.
        moved: Those of `changed` with another row.
    """

    created: Indices
    gone: Indices
    changed: tuple[Indices, Indices]
    moved: tuple[Indices, Indices]

    @classmethod
    def of(cls, earlier: Changes, later: Changes) -> TableComparison:
        """Compare all that is known of each key, bit by bit."""
        _, old, new = np.intersect1d(earlier.keys, later.keys, assume_unique=True, return_indices=True)
        row = np.zeros(len(old), bool)
        for name in ("rows", "scales"):
            row |= _differ(getattr(earlier, name), getattr(later, name), (old, new))
        any_field = row.copy()
        for name in ("state", "ticks", "counts"):
            any_field |= _differ(getattr(earlier, name), getattr(later, name), (old, new))
        return cls(
            created=_without(len(later.keys), new),
            gone=_without(len(earlier.keys), old),
            changed=(old[any_field], new[any_field]),
            moved=(old[row], new[row]),
        )


def _differ(earlier: Array | None, later: Array | None, at: tuple[Indices, Indices]) -> npt.NDArray[np.bool_]:
    if earlier is None or later is None or not len(at[0]) or not earlier[:1].nbytes:
        return np.zeros(len(at[0]), bool)
    old, new = (
        np.ascontiguousarray(array[indices]).reshape(len(indices), -1).view(np.uint8)
        for array, indices in ((earlier, at[0]), (later, at[1]))
    )
    differs: npt.NDArray[np.bool_] = (old != new).any(axis=1)
    return differs


def _without(count: int, taken: Indices) -> Indices:
    is_left = np.ones(count, bool)
    is_left[taken] = False
    return np.flatnonzero(is_left)
