"""Identity: a number for every row, and for every request, that is the same wherever it is met again."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from streamlearn.samples import SampleBatch

__all__ = ["identity_of", "request_identity"]

Uint64s = npt.NDArray[np.uint64]

# Odd numbers that mix what an identity is made of, as SplitMix64 does.
_MIX = tuple(np.uint64(one) for one in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def identity_of(batch: SampleBatch, rows: npt.NDArray[np.int64]) -> Uint64s:
    """A hash of the identity of some rows."""
    place = _place(batch.requests.partition, batch.requests.offset)[batch.request_index[rows]]
    return _mixed(place + (batch.item_index[rows].astype(np.uint64) + np.uint64(1)) * _MIX[2])


def request_identity(batch: SampleBatch) -> Uint64s:
    """A hash of the origin of each request."""
    return _mixed(_place(batch.requests.partition, batch.requests.offset))


def _place(partition: npt.NDArray[np.int32], offset: npt.NDArray[np.int64]) -> Uint64s:
    return (offset.astype(np.uint64) * _MIX[0]) ^ (partition.astype(np.uint64) * _MIX[1])


def _mixed(numbers: Uint64s) -> Uint64s:
    numbers = (numbers ^ (numbers >> np.uint64(30))) * _MIX[1]
    numbers = (numbers ^ (numbers >> np.uint64(27))) * _MIX[2]
    return numbers ^ (numbers >> np.uint64(31))
