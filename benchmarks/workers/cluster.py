"""Cluster: the addresses of TensorFlow's processes on this machine, and what tells each of them its own."""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack

__all__ = ["free_addresses", "mirrored_variables"]


def free_addresses(count: int) -> list[str]:
    """Return addresses on this machine at which nobody listens."""
    with ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in found:
            one.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in found]


def mirrored_variables(count: int) -> list[dict[str, str]]:
    """Return the environment variables of each process of a MultiWorkerMirroredStrategy, which runs on the CPU."""
    cluster = {"worker": free_addresses(count)}
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
    return [
        quiet | {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})}
        for index in range(count)
    ]
