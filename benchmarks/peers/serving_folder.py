"""The folder that a peer serves from, and the variables it is told by; without TensorFlow, as both sides read it."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["DELAY_MS", "FOLDER", "GRAPHS", "READY", "ROWS", "WEIGHTS", "WORKERS", "tell_ready"]

# Variables, as servers start their workers themselves.
FOLDER, WORKERS, DELAY_MS = "STREAMLEARN_PEER_FOLDER", "STREAMLEARN_PEER_WORKERS", "STREAMLEARN_PEER_DELAY_MS"

# Exported graphs, their weights by name, and the rows of all tables.
GRAPHS, WEIGHTS, ROWS = "graphs", "weights.npz", "rows.npy"
READY = "ready"


def tell_ready() -> None:
    """Say that this worker has compiled all it needs: a file of its own, which whoever started the server counts."""
    (Path(os.environ[FOLDER]) / f"{READY}-{os.getpid()}").touch()
