"""Compared: the same parts of one table in two versions, key by key. It knows no files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.table import Changes

__all__ = ["Compared"]

Places = npt.NDArray[np.int64]
Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Compared:
    """Where keys are in the arrays of two versions.

    Attributes:
        created: Keys the later one alone has; places in the later.
        gone: Keys the earlier one alone has; places in the earlier.
        changed: Keys whose row, state or use is another; places in the earlier and in the later.
        moved: Those of them whose row itself is another.
    """

    created: Places
    gone: Places
    changed: tuple[Places, Places]
    moved: tuple[Places, Places]

    @classmethod
    def of(cls, earlier: Changes, later: Changes) -> Compared:
        """Compare all that is known of each key, bit by bit."""
        _, mine, theirs = np.intersect1d(earlier.keys, later.keys, assume_unique=True, return_indices=True)
        row = np.zeros(len(mine), bool)
        for name in ("rows", "scales"):
            row |= _differ(getattr(earlier, name), getattr(later, name), (mine, theirs))
        other = row.copy()
        for name in ("state", "ticks", "counts"):
            other |= _differ(getattr(earlier, name), getattr(later, name), (mine, theirs))
        return cls(
            created=_without(len(later.keys), theirs),
            gone=_without(len(earlier.keys), mine),
            changed=(mine[other], theirs[other]),
            moved=(mine[row], theirs[row]),
        )


def _differ(earlier: Array | None, later: Array | None, at: tuple[Places, Places]) -> npt.NDArray[np.bool_]:
    if earlier is None or later is None or not len(at[0]) or not earlier[:1].nbytes:
        return np.zeros(len(at[0]), bool)
    mine, theirs = (
        np.ascontiguousarray(one[places]).reshape(len(places), -1).view(np.uint8)
        for one, places in ((earlier, at[0]), (later, at[1]))
    )
    found: npt.NDArray[np.bool_] = (mine != theirs).any(axis=1)
    return found


def _without(count: int, taken: Places) -> Places:
    left = np.ones(count, bool)
    left[taken] = False
    return np.flatnonzero(left)
