"""NotFinite: numbers of a version that are NaN or infinite, by table and tensor. It knows no files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.table import Changes
from streamlearn.versions.format.manifest import FileKind

__all__ = ["NotFinite", "merged", "not_finite_rows", "not_finite_tensor"]


@dataclass(frozen=True)
class NotFinite:
    """Numbers that are NaN or infinite, of one table or tensor in one version.

    Attributes:
        path: The version's folder.
        kind: In which kind of its files: `rows` are what serving reads, `optimizer` what training goes on from.
        name: The table or the tensor.
        count: How many numbers.
        key: The smallest key of such a row; None for a tensor.
    """

    path: str
    kind: FileKind
    name: str
    count: int
    key: int | None = None

    @property
    def said(self) -> str:
        """The same in words."""
        where = "" if self.key is None else f", the first in the row of key {self.key}"
        return f"{self.count} of {self.kind} of {self.name!r} are NaN or infinite{where}"


def not_finite_rows(path: str, kind: FileKind, changes: Changes) -> NotFinite | None:
    """What is not finite in rows; None where everything is."""
    count, bad = 0, np.zeros(len(changes), np.bool_)
    for numbers in (changes.rows, changes.scales, changes.state):
        if numbers is None or numbers.dtype.kind != "f":
            continue
        finite = np.isfinite(numbers).reshape(len(changes), -1)
        if not finite.all():
            count += finite.size - int(np.count_nonzero(finite))
            bad |= ~finite.all(axis=1)
    return NotFinite(path, kind, changes.table, count, int(changes.keys[bad].min())) if count else None


def not_finite_tensor(path: str, kind: FileKind, name: str, numbers: npt.NDArray[Any]) -> NotFinite | None:
    """What is not finite in a tensor, or a part of it; None where everything is."""
    if numbers.dtype.kind not in "fc":
        return None
    count = len(numbers) - int(np.count_nonzero(np.isfinite(numbers)))
    return NotFinite(path, kind, name, count) if count else None


def merged(found: Iterable[NotFinite]) -> tuple[NotFinite, ...]:
    """One for each table and tensor of a version, in the order of their names."""
    known: dict[tuple[str, str, str], NotFinite] = {}
    for one in found:
        place = (one.path, one.kind, one.name)
        other = known.get(place)
        if other is not None:
            keys = [key for key in (one.key, other.key) if key is not None]
            one = NotFinite(one.path, one.kind, one.name, one.count + other.count, min(keys, default=None))
        known[place] = one
    return tuple(known[place] for place in sorted(known))
