"""Answer log: some of the nodes' answers, by version, for comparison with later answers."""

from __future__ import annotations

import threading
import time

import numpy as np

from streamlearn.apps import App
from streamlearn.errors import ServiceError
from streamlearn.load.load_run import Load
from streamlearn.load.served_columns import completed
from streamlearn.serving.infer import InferAnswer
from streamlearn.serving.protobuf import nested

__all__ = ["AnswerLog", "ask", "check_equal"]

_OF_VERSION_MAX, _EVERY = 12, 7
_VERSION_FIELD = 2  # of a ModelInferRequest
# The node may have run the same request in a batch of another shape.
_TOLERANCE = 1e-5


class AnswerLog:
    """A few requests of each version with their answers. Several threads may use it.

    Attributes:
        is_paused: Whether answers are left out, because another application gives them.
    """

    def __init__(self, app: App) -> None:
        self._app, self._lock, self._count = app, threading.Lock(), 0
        self.is_paused = False
        self._answers: dict[int, list[tuple[bytes, InferAnswer]]] = {}
        self._last_s: dict[int, float] = {}

    def __call__(self, message: bytes, answer: InferAnswer) -> None:
        """Record that a version answered; keep the request and its answer if they are in the sample."""
        if self.is_paused:
            return
        with self._lock:
            self._count += 1
            self._last_s[int(answer.version)] = time.monotonic()
            answers = self._answers.setdefault(int(answer.version), [])
            if len(answers) < _OF_VERSION_MAX and (self._count % _EVERY == 0 or not answers):
                answers.append((completed(self._app, message, answer), answer))

    @property
    def versions(self) -> list[int]:
        """The versions that answered, oldest first."""
        with self._lock:
            return sorted(self._answers)

    def since(self, monotonic_s: float) -> set[int]:
        """Return the versions that answered after a time of the monotonic clock."""
        with self._lock:
            return {version for version, last_s in self._last_s.items() if last_s > monotonic_s}

    def of(self, version: int) -> list[tuple[bytes, InferAnswer]]:
        """Return the requests and answers of a version."""
        with self._lock:
            return list(self._answers.get(version, ()))


def ask(address: str, message: bytes, version: int | None = None, *, token: str | None = None) -> InferAnswer:
    """Send a request to a node's gRPC address and return the answer; the node expects `token`.

    `version` pins the version that must answer; None takes the active version.

    Raises:
        ServiceError: The node refuses the request or does not answer.
    """
    pin = b"" if version is None else nested(_VERSION_FIELD, str(version).encode())
    return Load(address, [message + pin], token, connections=1).probe()


def check_equal(expected: InferAnswer, answer: InferAnswer, node: str, *, exact: bool = False) -> None:
    """Check that a node's answer equals the expected one.

    `exact` compares bit for bit. Use it where both nodes got the request alone, so in one shape.

    Raises:
        ServiceError: The version or the scores differ.
    """
    tolerance = 0.0 if exact else _TOLERANCE
    are_close = all(
        np.allclose(tensor.numbers, answer.outputs[name].numbers, rtol=0, atol=tolerance)
        for name, tensor in expected.outputs.items()
    )
    if expected.version != answer.version or not are_close:
        wanted, actual = ({name: tensor.values for name, tensor in each.outputs.items()} for each in (expected, answer))
        message = (
            f"{node} answers with version {answer.version} {actual}, where version {expected.version} gave {wanted}"
        )
        raise ServiceError(message, help="the version does not explain this reply: compare the nodes' logs")
