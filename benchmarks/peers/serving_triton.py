"""Triton's Python backend as a server of the model: the class that each instance creates.

A request of any length is one ragged input, so that Triton's batcher merges all requests and user data is not
repeated. It runs in Triton's environment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as backend

from benchmarks.peers.served_model import served_model
from benchmarks.peers.serving_folder import tell_ready

__all__ = ["TritonPythonModel"]


class TritonPythonModel:
    """Takes ids and returns probabilities."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load and compile the model; called once."""
        self._model = served_model()
        tell_ready()

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Score merged requests."""
        ids = [backend.get_input_tensor_by_name(request, "ids").as_numpy().reshape(-1) for request in requests]
        return [
            backend.InferenceResponse([backend.Tensor("scores", np.ascontiguousarray(scores)[None])])
            for scores in self._model.score(ids)
        ]
