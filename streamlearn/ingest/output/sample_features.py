"""Sample features: the columns of decoded impressions as keys, dense numbers and segments.

It knows neither labels nor messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.events.event import text_at
from streamlearn.features import FeatureSpec, Slot, keys_of
from streamlearn.native import native
from streamlearn.samples import FeatureColumns, SlotColumns, renumbered

__all__ = ["TextCodes", "features_of", "text_codes"]

Columns = Mapping[str, npt.NDArray[Any]]
Int64s = npt.NDArray[np.int64]
_SALT = native.slot_salt("streamlearn.segment")


def features_of(spec: FeatureSpec, side: Any, columns: Columns) -> FeatureColumns:
    """Return one side's features: of every impression ("user"), or of every item of all impressions ("item").

    `columns` are those of `EventColumns`. Of a sequence only the newest `length` values are kept: no model sees more.
    """
    prefix = "user" if side == "user" else "items"
    slots = {slot.name: _slot(slot, columns, f"{prefix}.{slot.name}") for slot in spec.slots_of(side)}
    dense = {part.name: columns[f"{prefix}.{part.name}"].reshape(-1, part.width) for part in spec.dense_of(side)}
    return FeatureColumns(slots, dense)


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


def _slot(slot: Slot, columns: Columns, path: str) -> SlotColumns:
    values, texts_at = columns[path], columns.get(f"{path}$")
    keys = keys_of(slot, values, offsets=texts_at)
    if not slot.multi:
        return SlotColumns(keys)
    full = SlotColumns(keys, columns[f"{path}[]"], columns[f"{path}_weights"] if slot.pooling == "weighted" else None)
    return _newest(full, slot.length) if slot.pooling == "sequence" else full


def _newest(slot: SlotColumns, length: int) -> SlotColumns:
    """Return the last `length` keys of each row."""
    assert slot.offsets is not None
    begins, ends = slot.offsets[:-1], slot.offsets[1:]
    lengths = np.minimum(ends - begins, length)
    if int(lengths.sum()) == len(slot.keys):
        return slot
    kept = np.arange(len(slot.keys)) >= np.repeat(ends - lengths, ends - begins)
    offsets = np.zeros(len(slot.offsets), np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return SlotColumns(slot.keys[kept], offsets)
