"""Rows: the predictions of one label as an array, thinned, and settled once their window is closed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from streamlearn.versions.format.predictions import stands_for

__all__ = [
    "ARM",
    "HALVINGS_MAX",
    "USER_GROUPS",
    "Rows",
    "SettledRows",
    "Uint64s",
    "correction_type",
    "corrections_of",
    "joined",
    "row_type",
    "taken",
]

HALVINGS_MAX = 60
USER_GROUPS = 256
"""For the errors of figures, users are in this many groups, by their key."""
ARM = "arm"
"""The segment that is the arm of an experiment."""
Rows = npt.NDArray[Any]
Uint64s = npt.NDArray[np.uint64]


def row_type(segments: int, *, is_number: bool = False, has_curve: bool = False) -> np.dtype[Any]:
    """Return the record type of a prediction: 26 bytes and one for each segment.

    A label that is a number has four more: `logit` is the number that was predicted, and `number` the one that it is.
    A label with an isotonic calibration has twelve more, to fit it: the logit before the curve, and the key of the
    slot's value. `served` is the score that a node answered; NaN if none did. `user` is the group of the user.
    """
    fields: list[Any] = [
        ("identity", np.uint64),
        ("logit", np.float32),
        ("weight", np.float32),
        ("rate", np.float32),
        ("served", np.float32),
        ("user", np.uint8),
        ("positive", np.bool_),
        ("codes", np.uint8, (segments,)),
    ]
    fields += [("raw", np.float32), ("value", np.uint64)] if has_curve else []
    return np.dtype(fields + ([("number", np.float32)] if is_number else []))


def correction_type(kind: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type of a correction of such rows: an identity, and the number if the label is one."""
    has_number = "number" in (kind.names or ())
    return np.dtype([("identity", np.uint64), ("number", np.float32)]) if has_number else np.dtype(np.uint64)


def corrections_of(kind: np.dtype[Any], identity: Uint64s, numbers: npt.NDArray[np.float32] | None) -> Rows:
    """Return corrections of such rows; numbers are needed, and used, only if the label is one."""
    of_kind = correction_type(kind)
    if not of_kind.names:
        return identity
    assert numbers is not None
    corrected = np.empty(len(identity), of_kind)
    corrected["identity"], corrected["number"] = identity, numbers
    return corrected


def taken(rows: Rows, which: npt.NDArray[Any] | slice) -> Rows:
    """Select rows; as bytes, since NumPy would copy structured rows field by field."""
    return rows.view(_bytes_of(rows.dtype))[which].view(rows.dtype)


def joined(parts: Sequence[Rows]) -> Rows:
    """Concatenate rows; as bytes, as in `taken`."""
    kind = parts[0].dtype
    of_bytes = _bytes_of(kind)
    return np.concatenate([part.view(of_bytes) for part in parts]).view(kind)


def _bytes_of(kind: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype((np.void, kind.itemsize))


class SettledRows(msgspec.Struct, eq=False, gc=False):
    """The rows of a closed window, each identity once, with final labels."""

    rows: Rows  # of `row_type`, sorted by identity
    halvings: int  # how often the rows were halved
    is_whole: bool  # whether every row of the window was scored with its first prediction, as far as is known

    def __len__(self) -> int:
        return len(self.rows)

    def own(self) -> None:
        """Copy the rows if they are a part of a larger array, such as that of all windows that were settled at once."""
        if self.rows.base is not None:
            self.rows = self.rows.copy()

    def halve(self) -> None:
        """Drop half the rows."""
        self.halvings += 1
        self.rows = taken(self.rows, stands_for(self.rows["identity"], self.halvings))
