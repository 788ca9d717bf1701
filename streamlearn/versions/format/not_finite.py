"""NotFinite: NaN or infinite numbers of a version, by table and tensor. It opens no files."""

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
    """NaN or infinite numbers in one table or tensor of one version.

    Attributes:
        path: The version's folder.
        kind: The kind of file: serving reads `rows`, training continues from `optimizer`.
        name: The table or the tensor.
        key: The smallest key of such a row; None for a tensor.
    """

    path: str
    kind: FileKind
    name: str
    count: int
    key: int | None = None

    @property
    def said(self) -> str:
        """A description in words."""
        where = "" if self.key is None else f", the first in the row of key {self.key}"
        return f"{self.count} of {self.kind} of {self.name!r} are NaN or infinite{where}"


def not_finite_rows(path: str, kind: FileKind, changes: Changes) -> NotFinite | None:
    """Find the numbers in rows that are not finite; None if all are finite."""
    count, is_bad = 0, np.zeros(len(changes), np.bool_)
    for numbers in (changes.rows, changes.scales, changes.state):
        if numbers is None or numbers.dtype.kind != "f":
            continue
        finite = np.isfinite(numbers).reshape(len(changes), -1)
        if not finite.all():
            count += finite.size - int(np.count_nonzero(finite))
            is_bad |= ~finite.all(axis=1)
    return NotFinite(path, kind, changes.table, count, int(changes.keys[is_bad].min())) if count else None


def not_finite_tensor(path: str, kind: FileKind, name: str, numbers: npt.NDArray[Any]) -> NotFinite | None:
    """Find the numbers in a tensor, or in a part of it, that are not finite; None if all are finite."""
    if numbers.dtype.kind not in "fc":
        return None
    count = len(numbers) - int(np.count_nonzero(np.isfinite(numbers)))
    return NotFinite(path, kind, name, count) if count else None


def merged(findings: Iterable[NotFinite]) -> tuple[NotFinite, ...]:
    """Merge the findings of each table and tensor of a version, in the order of their names."""
    by_name: dict[tuple[str, str, str], NotFinite] = {}
    for finding in findings:
        name = (finding.path, finding.kind, finding.name)
        count, keys = finding.count, [finding.key]
        if name in by_name:
            count, keys = count + by_name[name].count, [*keys, by_name[name].key]
        by_name[name] = NotFinite(*name, count, min((key for key in keys if key is not None), default=None))
    return tuple(by_name[name] for name in sorted(by_name))
