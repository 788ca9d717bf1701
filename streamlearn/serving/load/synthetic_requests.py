"""Requests that are made up: values by Zipf's law, for an application that has no traffic yet."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.features import Dense, FeatureSpec, Slot
from streamlearn.serving.load.requests import Asked

__all__ = ["invented"]

_EXPONENT = 1.05
_VALUES_MAX = 6

_Arrays = dict[str, npt.NDArray[Any]]
_Int64s = npt.NDArray[np.int64]


def invented(features: FeatureSpec, counts: _Int64s, values: int, random: np.random.Generator) -> Asked:
    """Requests of so many candidates each.

    Args:
        features: What the application declares.
        counts: How many candidates each request has.
        values: How many values a slot takes: the first is the most frequent.
        random: What they are drawn by.
    """
    requests = len(counts)
    # Sequences are columns of one history: they are as long as each other.
    longest = max((slot.length for slot in features.slots), default=0)
    histories = random.integers(0, longest + 1, requests)
    user: _Arrays = {}
    item: _Arrays = {}
    for slot in features.slots:
        into, rows = (user, requests) if slot.side == "user" else (item, int(counts.sum()))
        lengths = np.ones(rows, np.int64)
        if slot.pooling == "sequence":
            lengths = histories
        elif slot.multi:
            lengths = random.integers(0, _VALUES_MAX + 1, rows)
        into.update(_slot(slot, lengths, values, random))
    for column in features.dense:
        into, rows = (user, requests) if column.side == "user" else (item, int(counts.sum()))
        into.update(_dense(column, rows, random))
    return Asked(user, item, _offsets(counts))


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


def _dense(column: Dense, rows: int, random: np.random.Generator) -> _Arrays:
    return {column.name: random.standard_normal(rows * column.width, np.float32)}


def _zipf(values: int, count: int, random: np.random.Generator) -> _Int64s:
    """Whole numbers below `values`, rank r as often as (r + 1) ** -exponent; drawn from the integral of that."""
    power = 1 - _EXPONENT
    share = random.random(count)
    ranks = (1 - share * (1 - (values + 1.0) ** power)) ** (1 / power)
    clipped: _Int64s = np.clip(ranks.astype(np.int64) - 1, 0, values - 1)
    return clipped


def _offsets(lengths: _Int64s) -> _Int64s:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
