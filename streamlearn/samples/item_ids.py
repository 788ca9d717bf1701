"""ItemIds: the ids of items as applications know them, as a column. Their keys are one-way hashes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.native import native

__all__ = ["ItemIds"]


@dataclass(frozen=True, eq=False)
class ItemIds:
    """N ids, whole numbers or texts.

    Attributes:
        values: int64[N], or the UTF-8 of all texts, uint8.
        offsets: int32[N+1]. Where each text begins; None for numbers.
    """

    values: npt.NDArray[Any]
    offsets: npt.NDArray[np.int32] | None = None

    @staticmethod
    def of_texts(texts: Sequence[str]) -> ItemIds:
        """Return texts as ids."""
        raw = [text.encode() for text in texts]
        offsets = np.concatenate(([0], np.cumsum([len(text) for text in raw], dtype=np.int64))).astype(np.int32)
        return ItemIds(np.frombuffer(b"".join(raw), np.uint8), offsets)

    def __len__(self) -> int:
        return len(self.values) if self.offsets is None else len(self.offsets) - 1

    @property
    def size_bytes(self) -> npt.NDArray[np.int64]:
        """The bytes that each id has in a message."""
        if self.offsets is None:
            return np.full(len(self), 8, np.int64)
        return np.diff(self.offsets).astype(np.int64) + 4

    def take(self, rows: npt.NDArray[np.int64] | slice) -> ItemIds:
        """Return some ids, in the given order. For a slice they are views."""
        if self.offsets is None:
            return ItemIds(self.values[rows])
        if isinstance(rows, slice):
            ends = self.offsets[rows.start : rows.stop + 1]
            return ItemIds(self.values[int(ends[0]) : int(ends[-1])], ends - ends[0])
        values, offsets = native.take_spans(self.values, self.offsets.astype(np.int64), np.ascontiguousarray(rows))
        return ItemIds(values, offsets)

    def listed(self) -> list[int] | list[str]:
        """Return the ids as values of Python."""
        if self.offsets is None:
            numbers: list[int] = self.values.tolist()
            return numbers
        raw, ends = self.values.tobytes(), self.offsets.tolist()
        return [raw[begin:end].decode() for begin, end in pairwise(ends)]

    @staticmethod
    def joined(parts: Sequence[ItemIds]) -> ItemIds | None:
        """Return the ids of all parts, one after another; None without parts."""
        if not parts:
            return None
        values = np.concatenate([part.values for part in parts])
        if parts[0].offsets is None:
            return ItemIds(values)
        counts = np.concatenate([np.diff(part.offsets) for part in parts if part.offsets is not None])
        return ItemIds(values, np.concatenate(([0], np.cumsum(counts))).astype(np.int32))
