"""Heard: some of what nodes answered, by version, to be held against what they answer later."""

from __future__ import annotations

import threading
import time

import numpy as np

from streamlearn.errors import ServiceError
from streamlearn.load.load_run import Load
from streamlearn.serving.infer import InferAnswer
from streamlearn.serving.protobuf import nested

__all__ = ["Heard", "ask", "differ"]

_OF_VERSION_MAX, _EVERY = 12, 7
_VERSION_FIELD = 2  # of a ModelInferRequest
# The same request in another shape of execution.
_TOLERANCE = 1e-5


class Heard:
    """Keeps a few requests and their answers of each version. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock, self._count = threading.Lock(), 0
        self._kept: dict[int, list[tuple[bytes, InferAnswer]]] = {}
        self._last_s: dict[int, float] = {}

    def __call__(self, message: bytes, answer: InferAnswer) -> None:
        """Note which version answered, and keep the answer if it is one of a few."""
        with self._lock:
            self._count += 1
            self._last_s[int(answer.version)] = time.monotonic()
            kept = self._kept.setdefault(int(answer.version), [])
            if len(kept) < _OF_VERSION_MAX and (self._count % _EVERY == 0 or not kept):
                kept.append((message, answer))

    @property
    def versions(self) -> list[int]:
        """The versions that answered, oldest first."""
        with self._lock:
            return sorted(self._kept)

    def since(self, monotonic_s: float) -> set[int]:
        """The versions that answered after a point in time."""
        with self._lock:
            return {version for version, last_s in self._last_s.items() if last_s > monotonic_s}

    def of(self, version: int) -> list[tuple[bytes, InferAnswer]]:
        """What was kept of one."""
        with self._lock:
            return list(self._kept.get(version, ()))


def ask(address: str, message: bytes, version: int | None = None) -> InferAnswer:
    """What a node answers.

    Args:
        address: Where it serves gRPC.
        message: The request.
        version: The version that is to answer; None for the one that is served.

    Raises:
        ServiceError: It refuses, or says nothing.
    """
    pin = b"" if version is None else nested(_VERSION_FIELD, str(version).encode())
    load = Load(address, [message + pin], connections=1)
    return load.probe()


def differ(one: InferAnswer, other: InferAnswer, who: str, *, exact: bool = False) -> None:
    """See that two answers are the same.

    Args:
        one: What is right.
        other: What was answered.
        who: By whom.
        exact: Whether bit for bit, as of two nodes that are asked the same alone.

    Raises:
        ServiceError: They are not.
    """
    tolerance = 0.0 if exact else _TOLERANCE
    near = all(
        np.allclose(tensor.numbers, other.outputs[name].numbers, rtol=0, atol=tolerance)
        for name, tensor in one.outputs.items()
    )
    if one.version != other.version or not near:
        said = [{name: tensor.values for name, tensor in answer.outputs.items()} for answer in (one, other)]
        message = f"{who} answers with version {other.version} {said[1]}, where version {one.version} said {said[0]}"
        raise ServiceError(message, help="a reply that its version does not account for")
