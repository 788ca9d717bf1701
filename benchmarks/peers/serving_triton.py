"""Triton's Python backend as a server of the model: the class that Triton makes in each of its instances.

Requests of any length are one ragged input, so that Triton's batcher merges them all, and nothing of a user is said
twice. It runs in Triton's environment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as backend

from benchmarks.peers.served import served
from benchmarks.peers.serving_folder import tell_ready

__all__ = ["TritonPythonModel"]


class TritonPythonModel:
    """Ids in, probabilities out."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load and compile; called once."""
        self._served = served()
        tell_ready()

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer what Triton merged."""
        ids = [backend.get_input_tensor_by_name(one, "ids").as_numpy().reshape(-1) for one in requests]
        found = self._served.score(ids)
        return [backend.InferenceResponse([backend.Tensor("scores", np.ascontiguousarray(one)[None])]) for one in found]
