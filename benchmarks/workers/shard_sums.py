"""Our sums over processes: each gives its vector to a shard, and asks for the sum."""

from __future__ import annotations

import sys

import msgspec
import numpy as np
from numpy.typing import NDArray

from benchmarks.keys import DIM
from benchmarks.peers.answer import Wrong
from benchmarks.workers.orders import Orders
from benchmarks.workers.rounds import PROCESSES, VECTOR, answer_rounds
from streamlearn.features import TableSpec
from streamlearn.ps import Epoch, Place, PsClient, ShardServer, Shelf
from streamlearn.ps.slice_part import SlicePart
from streamlearn.settings import PsSettings
from streamlearn.table import TableOptions
from streamlearn.versions import open_store

__all__ = ["ShardSums"]

_MODEL = "bench"
_OPTIONS = [TableOptions(TableSpec("main", DIM, 0.05), rows_max=1_000)]
_EPOCH = Epoch(1)
_WAIT_S = 60.0


class ShardSums:
    """The slices of one process."""

    def __init__(self, index: int, address: str) -> None:
        self._client = PsClient.connect(_MODEL, _OPTIONS, PsSettings(addresses=[address]))
        self._client.join(_EPOCH)
        self._index, self._round = index, 0
        self._out = np.empty(VECTOR, np.float32)

    def ready(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the vector as it is."""
        return values

    def sum(self, given: NDArray[np.float32]) -> NDArray[np.float32]:
        """Give this process's slice of the next round, and wait for the sum."""
        self._round += 1
        part = SlicePart(self._round, self._index, PROCESSES)
        self._client.reduce(part, given, digest=self._round, is_finite=True)
        if not self._client.reduced(self._round, PROCESSES, self._out, wait_s=_WAIT_S):
            message = f"round {self._round} had no sum"
            raise Wrong(message)
        return self._out


def _serve(store: str) -> None:
    orders = Orders()
    settings = msgspec.structs.replace(PsSettings(), listen=["127.0.0.1:0"])
    server = ShardServer(Place(), _OPTIONS, Shelf(open_store(store), _MODEL), settings)
    with PsClient.connect(_MODEL, _OPTIONS, PsSettings(addresses=[server.addresses[0]])) as client:
        client.restore(_EPOCH, None)
        orders.answer(address=server.addresses[0])
        for _ in orders:
            pass
    server.stop()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        _serve(sys.argv[2])
    else:
        answer_rounds(lambda index: ShardSums(index, sys.argv[2]))
