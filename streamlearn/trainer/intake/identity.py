"""Identity: a hash for every row and request that is the same in every process."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from streamlearn.samples import RequestColumns, SampleBatch
from streamlearn.versions.format.predictions import MIX, mixed

__all__ = ["identity_of", "request_identity"]

Uint64s = npt.NDArray[np.uint64]


def identity_of(batch: SampleBatch, rows: npt.NDArray[np.int64]) -> Uint64s:
    """Hash the identity of some rows."""
    place = _request_numbers(batch.requests, batch.request_index[rows])
    return mixed(place + (batch.item_index[rows].astype(np.uint64) + np.uint64(1)) * MIX[2])


def request_identity(batch: SampleBatch) -> Uint64s:
    """Hash the identity of each request."""
    return mixed(_request_numbers(batch.requests, slice(None)))


def _request_numbers(requests: RequestColumns, which: npt.NDArray[np.int32] | slice) -> Uint64s:
    partition, offset = requests.partition[which].astype(np.uint64), requests.offset[which].astype(np.uint64)
    return (offset * MIX[0]) ^ (partition * MIX[1])
