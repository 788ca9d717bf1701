"""Synthetic requests: values by Zipf's law, for an application that has no traffic yet."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.features import FeatureSpec, Slot
from streamlearn.load.requests import LoadRequests

__all__ = ["invented"]

_EXPONENT = 1.05
_VALUES_MAX = 6

_Arrays = dict[str, npt.NDArray[Any]]
_Int64s = npt.NDArray[np.int64]


def invented(features: FeatureSpec, counts: _Int64s, values: int, random: np.random.Generator) -> LoadRequests:
    """Draw requests with `counts` candidates; each slot takes `values` values, the first most often."""
    users, items = len(counts), int(counts.sum())
    # Sequences are columns of one history, so all have its length.
    longest = max((slot.length for slot in features.slots), default=0)
    histories = random.integers(0, longest + 1, users)
    user: _Arrays = {}
    item: _Arrays = {}
    for slot in features.slots:
        columns, rows = (user, users) if slot.side == "user" else (item, items)
        lengths = np.ones(rows, np.int64)
        if slot.pooling == "sequence":
            lengths = histories
        elif slot.multi:
            lengths = random.integers(0, _VALUES_MAX + 1, rows)
        columns.update(_slot(slot, lengths, values, random))
    for column in features.dense:
        columns, rows = (user, users) if column.side == "user" else (item, items)
        columns[column.name] = random.standard_normal(rows * column.width, np.float32)
    return LoadRequests(user, item, _offsets(counts))


def _slot(slot: Slot, lengths: _Int64s, values: int, random: np.random.Generator) -> _Arrays:
    ranks = _zipf(values, int(lengths.sum()), random)
    columns: _Arrays = {slot.name: ranks}
    if slot.multi:
        columns[f"{slot.name}[]"] = _offsets(lengths)
    if slot.pooling == "weighted":
        columns[f"{slot.name}_weights"] = random.random(len(ranks), np.float32)
    if slot.value == "str":
        texts = [f"v{rank}".encode() for rank in ranks.tolist()]
        columns[slot.name] = np.frombuffer(b"".join(texts), np.uint8)
        columns[f"{slot.name}$"] = _offsets(np.array([len(text) for text in texts], np.int64))
    return columns


def _zipf(values: int, count: int, random: np.random.Generator) -> _Int64s:
    """Draw numbers below `values`, rank r with weight (r + 1) ** -exponent, by inverting the integral of the weight."""
    power = 1 - _EXPONENT
    share = random.random(count)
    ranks = (1 - share * (1 - (values + 1.0) ** power)) ** (1 / power)
    clipped: _Int64s = np.clip(ranks.astype(np.int64) - 1, 0, values - 1)
    return clipped


def _offsets(lengths: _Int64s) -> _Int64s:
    return np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
