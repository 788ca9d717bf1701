"""Rows: predictions of one label, as an array; thinned, and settled once their window is closed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["HALVINGS_MAX", "Rows", "SettledRows", "Uint64s", "joined", "row_type", "settled", "stands_for", "taken"]

HALVINGS_MAX = 60
Rows = npt.NDArray[Any]
Uint64s = npt.NDArray[np.uint64]


def row_type(segments: int) -> np.dtype[Any]:
    """One prediction: 21 bytes, and one for each segment."""
    fields = [
        ("identity", np.uint64),
        ("logit", np.float32),
        ("weight", np.float32),
        ("rate", np.float32),
        ("positive", np.bool_),
        ("codes", np.uint8, (segments,)),
    ]
    return np.dtype(fields)


def taken(rows: Rows, which: npt.NDArray[Any] | slice) -> Rows:
    """Some of the rows; as bytes, for NumPy takes rows of fields by each of their fields."""
    return rows.view(_bytes_of(rows.dtype))[which].view(rows.dtype)


def joined(parts: Sequence[Rows]) -> Rows:
    """Rows one after the other; as bytes, likewise."""
    kind = parts[0].dtype
    return np.concatenate([one.view(_bytes_of(kind)) for one in parts]).view(kind)


def _bytes_of(kind: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype((np.void, kind.itemsize))


def stands_for(identity: Uint64s, halvings: int | Uint64s) -> npt.NDArray[np.bool_]:
    """Whether a row is among those that stand for all, when a half was let go of so many times.

    Identities are mixed first (the last step of SplitMix64), so that no pattern in them is one in who stays.

    Args:
        identity: uint64[n].
        halvings: Of all rows, or uint64[n]; up to `HALVINGS_MAX`.
    """
    mixed = identity.copy()
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed ^= mixed >> np.uint64(shift)
        mixed *= np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    often = np.asarray(halvings, np.uint64)
    # A number is not moved by as many bits as it has.
    kept: npt.NDArray[np.bool_] = (mixed >> (np.uint64(64) - np.maximum(often, np.uint64(1))) == 0) | (often == 0)
    return kept


@dataclass(eq=False)
class SettledRows:
    """The rows of a window that is closed, each identity once, its label final.

    Attributes:
        rows: As `row_type` says, by identity.
        halvings: How often a half of them was let go of.
        is_whole: Whether every row of the window was scored as it was first predicted, as far as is known.
    """

    rows: Rows
    halvings: int
    is_whole: bool

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self.rows.nbytes

    def halve(self) -> None:
        """Let go of half the rows."""
        self.halvings += 1
        self.rows = taken(self.rows, stands_for(self.rows["identity"], self.halvings))


def settled(rows: Rows, corrected: Uint64s, halvings: int, *, lacks: bool) -> tuple[SettledRows, int]:
    """Each identity once, with its first prediction, positive when anything said so; and corrections of none.

    Args:
        rows: All rows of a window, in the order they came.
        corrected: The identities of those that are positive after all.
        halvings: How often a half of both was let go of.
        lacks: Whether rows of it could not be taken.
    """
    found = _once(rows, np.argsort(rows["identity"]))
    corrected = np.unique(corrected)
    place = np.searchsorted(found["identity"], corrected)
    is_there = place < len(found)
    is_there[is_there] = found["identity"][place[is_there]] == corrected[is_there]
    found["positive"][place[is_there]] = True
    unmatched = len(corrected) - int(np.count_nonzero(is_there))
    return SettledRows(found, halvings, is_whole=not (halvings or lacks or unmatched)), unmatched


def _once(rows: Rows, order: npt.NDArray[np.int64]) -> Rows:
    """Rows by identity; of those of one identity the first, positive when any is."""
    ranked = taken(rows, order)
    is_new = ranked["identity"][1:] != ranked["identity"][:-1]
    if is_new.all():
        return ranked
    ranked = taken(rows, np.argsort(rows["identity"], kind="stable"))
    begins = np.flatnonzero(np.concatenate(([True], is_new)))
    found = taken(ranked, begins)
    found["positive"] = np.logical_or.reduceat(ranked["positive"], begins)
    return found
