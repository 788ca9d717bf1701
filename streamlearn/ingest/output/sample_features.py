"""Sample features: text columns of decoded impressions as codes of segments. It knows neither labels nor messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.events.event import text_at
from streamlearn.native import native
from streamlearn.samples import renumbered

__all__ = ["TextCodes", "text_codes"]

Columns = Mapping[str, npt.NDArray[Any]]
Int64s = npt.NDArray[np.int64]
_SALT = native.slot_salt("streamlearn.segment")


@dataclass(frozen=True, eq=False)
class TextCodes:
    """A text column as codes of its distinct texts.

    Attributes:
        codes: int32[n]. The index of each row's text.
        size_bytes: int64[n]. The bytes of each row's text.
    """

    texts: tuple[str, ...]
    codes: npt.NDArray[np.int32]
    size_bytes: Int64s

    def take(self, rows: Int64s | slice) -> TextCodes:
        """Return the codes of some rows, with only their texts."""
        codes, used = renumbered(self.codes[rows], len(self.texts))
        return TextCodes(tuple(self.texts[code] for code in used.tolist()), codes, self.size_bytes[rows])


def text_codes(columns: Columns, path: str) -> TextCodes:
    """Return the codes of a text column."""
    offsets = columns[f"{path}$"]
    hashes = native.hash_strings(offsets, columns[path], _SALT)
    _, first, codes = np.unique(hashes, return_index=True, return_inverse=True)
    texts = tuple(text_at(columns, path, row) for row in first.tolist())
    return TextCodes(texts, codes.astype(np.int32), np.diff(offsets).astype(np.int64))
