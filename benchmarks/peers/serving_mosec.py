"""mosec as a server of the model: its workers merge requests within a delay. Runs in mosec's environment."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from mosec import Server, Worker

from benchmarks.peers.serving_folder import DELAY_MS, WORKERS, tell_ready

__all__ = ["REQUESTS_MAX", "Scorer", "main"]

REQUESTS_MAX = 16

_Ids = npt.NDArray[np.int32]


class Scorer(Worker):  # type: ignore[misc] # mosec has no types here
    """Takes ids and returns probabilities, both as bytes."""

    def __init__(self) -> None:
        super().__init__()
        from benchmarks.peers.served_model import served_model  # other processes need no TensorFlow

        self._model = served_model()
        tell_ready()

    def deserialize(self, data: bytes) -> _Ids:
        """Decode the ids of a request."""
        return np.frombuffer(data, "<i4")

    def forward(self, data: Sequence[_Ids]) -> Any:
        """Score merged requests."""
        return self._model.score(data)

    def serialize(self, data: npt.NDArray[np.float32]) -> bytes:
        """Encode scores as float32."""
        return data.tobytes()


def main() -> None:
    """Serve until a signal. mosec reads the command line."""
    server = Server()
    workers, delay_ms = int(os.environ[WORKERS]), int(os.environ[DELAY_MS])
    server.append_worker(Scorer, num=workers, max_batch_size=REQUESTS_MAX, max_wait_time=delay_ms, timeout=30)
    server.run()


if __name__ == "__main__":
    main()
