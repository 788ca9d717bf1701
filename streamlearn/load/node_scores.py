"""NodeScores: has nodes score impressions before these are written. It does not know what users then do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.apps import App
from streamlearn.events.event import Columns
from streamlearn.load.load_run import Load
from streamlearn.load.replayed_requests import requests_of
from streamlearn.load.served_columns import served_columns
from streamlearn.schemas.events import score_field
from streamlearn.serving.infer import InferAnswer
from streamlearn.serving.protobuf import integer, nested
from streamlearn.struct_decoder import from_json

__all__ = ["EncodedRequests", "NodeAnswers", "NodeScores", "OnAnswer"]

_ANSWER_S_MAX, _VERSION_FIELD = 10.0, 2  # the field of a ModelInferRequest
# The parameter that has the answer bring the computed columns.
_WANTS_FEATURES = nested(4, nested(1, b"features") + nested(2, integer(1, True)))
OnAnswer = Callable[[bytes, InferAnswer], None]


@dataclass(frozen=True, eq=False)
class EncodedRequests:
    """Encoded requests, and the number of candidates of each."""

    messages: list[bytes]
    candidates: npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class NodeAnswers:
    """The answers to some requests.

    Attributes:
        version: int64[requests]. The version that answered; 0 for none.
        scores: float32[candidates, labels]. NaN where no node answered.
        candidates: int64[requests]. The number of candidates of each request.
        computed: The computed columns of each answer; None without an answer.
    """

    version: npt.NDArray[np.int64]
    scores: npt.NDArray[np.float32]
    candidates: npt.NDArray[np.int64]
    computed: Sequence[Mapping[str, Any] | None] = ()


class NodeScores:
    """Nodes that score the requests of impressions; they take requests by turns.

    A request that one does not answer goes to the next one, once, as load balancers do.

    Args:
        app: The application whose impressions they are.
        nodes: gRPC addresses, HOST:PORT.
        token: The token that the nodes expect.

    Attributes:
        requests: Requests so far.
        repeated: Those that a node did not answer, and that the next one was asked.
        unanswered: Requests without an answer.
    """

    def __init__(self, app: App, nodes: Sequence[str], token: str | None = None) -> None:
        self._app = app
        self._loads = [Load(address, token=token, connections=1) for address in nodes]
        self._pool = ThreadPoolExecutor(len(nodes), "node-scores")
        self.requests = self.repeated = self.unanswered = 0

    @property
    def refusal(self) -> str:
        """Why a node did not answer a request; empty if each request was answered by the first node asked."""
        return next((load.refusal for load in self._loads if load.refusal), "")

    def close(self) -> None:
        """Ask no more."""
        self._pool.shutdown()

    def encoded(self, impressions: Columns) -> EncodedRequests:
        """Return the requests of impressions."""
        asked = requests_of(impressions)
        return EncodedRequests(asked.messages(self._app.features, self._app.served_name), asked.candidates)

    def ask(self, requests: EncodedRequests, version: str = "", on_answer: OnAnswer = lambda *_: None) -> NodeAnswers:
        """Return the answers to requests, by the served version or by one that nodes have ready."""
        pin = nested(_VERSION_FIELD, version.encode()) if version else b""
        pin += _WANTS_FEATURES if self._app.features.entities else b""
        messages, count = [message + pin for message in requests.messages], len(self._loads)
        answers: list[bytes | None] = [None] * len(messages)
        for turn in range(min(2, count)):
            left = [at for at, answer in enumerate(answers) if answer is None]
            shares = [[at for at in left if (at + turn) % count == node] for node in range(count)]
            asked = self._pool.map(self._ask_node, self._loads, ([messages[at] for at in share] for share in shares))
            for share, of_node in zip(shares, asked, strict=True):
                for at, answer in zip(share, of_node, strict=True):
                    answers[at] = answer
            self.repeated += len(left) if turn else 0
        labels = [label.name for label in self._app.labels]
        versions = np.zeros(len(messages), np.int64)
        ends = np.cumsum(requests.candidates).tolist()
        scores = np.full((ends[-1] if ends else 0, len(labels)), np.nan, np.float32)
        computed: list[Mapping[str, Any] | None] = [None] * len(messages)
        for row, (answer, end) in enumerate(zip(answers, ends, strict=True)):
            if answer is not None:
                decoded = InferAnswer.decode(answer)
                versions[row] = int(decoded.version)
                on_answer(messages[row], decoded)
                computed[row] = from_json(decoded.parameters.get("features", "{}"), dict[str, Any])
                of_row = slice(end - requests.candidates[row], end)
                for label, name in enumerate(labels):
                    scores[of_row, label] = decoded.outputs[name].numbers
        self.requests += len(messages)
        self.unanswered += answers.count(None)
        return NodeAnswers(versions, scores, requests.candidates, computed)

    @staticmethod
    def _ask_node(load: Load, messages: list[bytes]) -> list[bytes | None]:
        return load.ask_all(messages, _ANSWER_S_MAX) if messages else []

    def scored(self, impressions: Columns, answers: NodeAnswers) -> Columns:
        """Return the columns of impressions with the version that answered, its scores and what it computed."""
        columns: dict[str, Any] = {"served_version": answers.version, "served_version?": answers.version > 0}
        for at, label in enumerate(self._app.labels):
            scores, name = answers.scores[:, at], f"items.{score_field(label.name)}"
            columns[name], columns[f"{name}?"] = np.nan_to_num(scores), ~np.isnan(scores)
        if self._app.features.entities:
            columns |= served_columns(self._app, impressions, answers.computed)
        return {**impressions, **columns}
