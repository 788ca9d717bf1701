"""Rows: the predictions of one label in one window, before and after it is closed; growing, thinned, settled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["HALVINGS_MAX", "OpenRows", "SettledRows", "row_type", "stands_for", "taken"]

HALVINGS_MAX = 60
_ROWS_FIRST, _GROWTH = 16, 1.25
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


def _bytes_of(kind: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype((np.void, kind.itemsize))


def stands_for(identity: Uint64s, halvings: int) -> npt.NDArray[np.bool_]:
    """Whether a row is among those that stand for all, when a half was let go of so many times.

    Identities are mixed first (the last step of SplitMix64), so that no pattern in them is one in who stays.
    """
    if not halvings:
        return np.ones(len(identity), np.bool_)
    mixed = identity.copy()
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed ^= mixed >> np.uint64(shift)
        mixed *= np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    kept: npt.NDArray[np.bool_] = mixed >> np.uint64(64 - halvings) == 0
    return kept


class _Growing:
    """An array that grows by a quarter, so that little of it is empty."""

    __slots__ = ("_count", "_kind", "_room")

    def __init__(self, kind: np.dtype[Any]) -> None:
        self._kind = kind
        self._room: Rows = np.empty(0, _bytes_of(kind))
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        return self._room.nbytes

    @property
    def filled(self) -> Rows:
        return self._room[: self._count].view(self._kind)

    def extend(self, more: Rows) -> None:
        needed = self._count + len(more)
        if needed > len(self._room):
            room = np.empty(max(needed, _ROWS_FIRST, int(len(self._room) * _GROWTH)), self._room.dtype)
            room[: self._count] = self._room[: self._count]
            self._room = room
        self._room[self._count : needed] = more.view(self._room.dtype)
        self._count = needed

    def keep(self, kept: npt.NDArray[np.bool_]) -> None:
        self._room = self._room[: self._count][kept]
        self._count = len(self._room)


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


class OpenRows:
    """The rows of a window that is not closed. Corrections are noted, and laid over the rows when it is settled.

    Args:
        kind: `row_type`.

    Attributes:
        halvings: How often a half of them was let go of.
        dropped: Rows that could not be taken.
    """

    __slots__ = ("_corrected", "_rows", "dropped", "halvings")

    def __init__(self, kind: np.dtype[Any]) -> None:
        self._rows, self._corrected = _Growing(kind), _Growing(np.dtype(np.uint64))
        self.halvings = self.dropped = 0

    def __len__(self) -> int:
        return len(self._rows) + len(self._corrected)

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self._rows.nbytes + self._corrected.nbytes

    def add(self, rows: Rows) -> int:
        """Take rows; gives how many were kept."""
        if self.halvings:
            rows = taken(rows, stands_for(rows["identity"], self.halvings))
        self._rows.extend(rows)
        return len(rows)

    def correct(self, identity: Uint64s) -> int:
        """Take the identities of rows that are positive after all; gives how many were kept."""
        if self.halvings:
            identity = identity[stands_for(identity, self.halvings)]
        self._corrected.extend(identity)
        return len(identity)

    def halve(self) -> None:
        """Let go of half the rows, and of the corrections of the same identities."""
        self.halvings += 1
        self._rows.keep(stands_for(self._rows.filled["identity"], self.halvings))
        self._corrected.keep(stands_for(self._corrected.filled, self.halvings))

    def settled(self) -> tuple[SettledRows, int]:
        """Each identity once, with its first prediction, positive when anything said so; and corrections of none."""
        rows = self._rows.filled
        found = _once(rows, np.argsort(rows["identity"]))
        corrected = np.unique(self._corrected.filled)
        place = np.searchsorted(found["identity"], corrected)
        is_there = place < len(found)
        is_there[is_there] = found["identity"][place[is_there]] == corrected[is_there]
        found["positive"][place[is_there]] = True
        unmatched = len(corrected) - int(np.count_nonzero(is_there))
        return SettledRows(found, self.halvings, is_whole=not (self.halvings or self.dropped or unmatched)), unmatched


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
