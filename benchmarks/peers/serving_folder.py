"""The folder of a serving peer, and its environment variables. Both sides import it, so it needs no TensorFlow."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["DELAY_MS", "FOLDER", "GRAPHS", "READY", "ROWS", "WEIGHTS", "WORKERS", "tell_ready"]

# Environment variables, because servers start their workers.
FOLDER, WORKERS, DELAY_MS = "STREAMLEARN_PEER_FOLDER", "STREAMLEARN_PEER_WORKERS", "STREAMLEARN_PEER_DELAY_MS"

# Exported graphs, their weights by name, and the rows of all tables.
GRAPHS, WEIGHTS, ROWS = "graphs", "weights.npz", "rows.npy"
READY = "ready"


def tell_ready() -> None:
    """Report that this worker has compiled everything, with a file that the starter of the server counts."""
    (Path(os.environ[FOLDER]) / f"{READY}-{os.getpid()}").touch()
