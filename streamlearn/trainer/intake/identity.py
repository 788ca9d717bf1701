"""Identity: a hash for every row and request that is the same in every process."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from streamlearn.samples import SampleBatch

__all__ = ["identity_of", "mixed", "request_identity"]

Uint64s = npt.NDArray[np.uint64]

# The odd constants of SplitMix64.
_MIX = tuple(np.uint64(number) for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def identity_of(batch: SampleBatch, rows: npt.NDArray[np.int64]) -> Uint64s:
    """Hash the identity of some rows."""
    place = _request_numbers(batch)[batch.request_index[rows]]
    return mixed(place + (batch.item_index[rows].astype(np.uint64) + np.uint64(1)) * _MIX[2])


def request_identity(batch: SampleBatch) -> Uint64s:
    """Hash the identity of each request."""
    return mixed(_request_numbers(batch))


def _request_numbers(batch: SampleBatch) -> Uint64s:
    partition, offset = batch.requests.partition.astype(np.uint64), batch.requests.offset.astype(np.uint64)
    return (offset * _MIX[0]) ^ (partition * _MIX[1])


def mixed(numbers: Uint64s) -> Uint64s:
    """Mix numbers with the last step of SplitMix64, so that no pattern in them remains."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * _MIX[1]
    numbers = (numbers ^ (numbers >> np.uint64(27))) * _MIX[2]
    return numbers ^ (numbers >> np.uint64(31))
