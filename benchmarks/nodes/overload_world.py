"""Worth: what requests and their candidates are worth, and what an answer with some of them keeps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.nodes.serving_model import ServingModel
from benchmarks.nodes.serving_nodes import ServingNode
from streamlearn.load.requests import LoadRequests
from streamlearn.serving.infer import InferAnswer

__all__ = ["SHOWN", "Costs", "Worth", "oracle", "spread_scores"]

Float64s = npt.NDArray[np.float64]

SHOWN = 8
_SPREAD, _CORRELATION = 0.7, 0.5
# Logits of the model: clicks of about one in ten, and candidates that differ.
_LOGIT_MEAN, _LOGIT_SPREAD = -2.3, 0.7
_AT_ONCE = 8
_HALVINGS = 40


@dataclass(frozen=True)
class Costs:
    """Time of a lane for a request beside its candidates, and for each candidate, in any unit."""

    request: float
    candidate: float

    def of(self, candidates: npt.NDArray[np.int64]) -> Float64s:
        """Return the time of requests by their numbers of scored candidates. One without any takes none."""
        return np.where(candidates > 0, self.request + self.candidate * candidates, 0.0)


@dataclass(frozen=True)
class Worth:
    """Requests whose candidates come best first, as far as a retrieval knows.

    Attributes:
        asked: The requests.
        values: What each is worth, as a multiple of another.
        prescores: What the retrieval expects of each candidate.
        kept: By request, the value of an answer with its first 0, 1, 2... candidates.
    """

    asked: LoadRequests
    values: Float64s
    prescores: Sequence[npt.NDArray[np.float32]]
    kept: Sequence[Float64s]

    @classmethod
    def of(cls, asked: LoadRequests, logits: Sequence[Float64s], seed: int = 0) -> Worth:
        """Order the candidates by what a retrieval would know, which correlates with the truth by half."""
        random = np.random.default_rng(seed)
        order, prescores, kept = [], [], []
        values = random.lognormal(-(_SPREAD**2) / 2, _SPREAD, len(asked))
        for (begin, _), own, value in zip(pairwise(asked.offsets.tolist()), logits, values, strict=True):
            truth = (own - _LOGIT_MEAN) / _LOGIT_SPREAD
            known = _CORRELATION * truth + np.sqrt(1 - _CORRELATION**2) * random.standard_normal(len(own))
            best_first = np.argsort(-known, kind="stable")
            order.append(begin + best_first)
            prescores.append((0.1 * np.exp(_LOGIT_SPREAD * _CORRELATION * known[best_first])).astype(np.float32))
            kept.append(value * _values(1 / (1 + np.exp(-own[best_first]))))
        places = np.concatenate(order)
        item = {name: column[places] for name, column in asked.item.items()}
        return cls(replace(asked, item=item), values, prescores, kept)

    def messages(self, model: ServingModel, cut: int | None = None, *, says_worth: bool = True) -> list[bytes]:
        """Return the encoded requests, with at most `cut` candidates each."""
        asked = self.asked if cut is None else _cut(self.asked, cut)
        requests = asked.requests(model.folder.app.features, model.name)
        return [
            replace(request, parameters=self._parameters(at) if says_worth else {}).encode()
            for at, request in enumerate(requests)
        ]

    def kept_by(self, answers: Sequence[tuple[int, int, bytes | None]], label: str) -> tuple[float, float]:
        """Return the value of the answers, and of answers to all requests with all candidates."""
        kept = whole = 0.0
        for message, scored in self.scored(answers, label):
            kept += self.kept[message][scored]
            whole += self.kept[message][-1]
        return kept, whole

    def scored(self, answers: Sequence[tuple[int, int, bytes | None]], label: str) -> Iterator[tuple[int, int]]:
        """Yield the number of each request and how many of its candidates were scored in time."""
        for message, _, answer in answers:
            if answer is None:
                yield message, 0
                continue
            scores = InferAnswer.decode(answer).outputs[label].numbers
            yield message, int(np.count_nonzero(~np.isnan(scores)))

    def _parameters(self, at: int) -> dict[str, Any]:
        expected = ",".join(f"{one:.4g}" for one in self.prescores[at])
        return {"value": float(self.values[at]), "prescores": expected}


def oracle(worth: Worth, asked: npt.NDArray[np.int64], costs: Costs, budget: float) -> float:
    """Return the most value that the requests could keep within a time, by one who knows the value of each candidate.

    A price of time is found at which all of it is used; each request is scored as far as it is worth that price.
    """
    counts = np.bincount(asked, minlength=len(worth.kept))
    curves = [(kept, costs.of(np.arange(len(kept)))) for kept in worth.kept]

    def at(price: float) -> tuple[float, float]:
        best = [int(np.argmax(kept - price * spent)) for kept, spent in curves]
        chosen = np.array([(kept[most], spent[most]) for (kept, spent), most in zip(curves, best, strict=True)])
        kept, spent = counts @ chosen
        return float(kept), float(spent)

    low, high = 0.0, max(float(kept[-1]) for kept in worth.kept) / costs.request
    if at(low)[1] <= budget:
        return at(low)[0]
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if at(middle)[1] > budget else (low, middle)
    return at(high)[0]


def spread_scores(model: ServingModel, node: ServingNode, asked: LoadRequests) -> None:
    """Scale the last layer of a model so that its scores are as far apart as those of real candidates."""
    logits = np.concatenate(logits_of(model, node, asked))
    scale = np.float32(_LOGIT_SPREAD / logits.std())
    model.dense["bias"] = ((model.dense["bias"] - np.float32(logits.mean())) * scale + np.float32(_LOGIT_MEAN)).astype(
        np.float32
    )
    model.dense["out"] = model.dense["out"] * scale


def logits_of(model: ServingModel, node: ServingNode, asked: LoadRequests) -> list[Float64s]:
    """Return the logits of all candidates of requests, asked of an idle node."""
    (label,) = model.folder.app.labels
    messages, logits = model.messages(asked), list[Float64s]()
    load = node.load(messages, connections=1)
    for begin in range(0, len(messages), _AT_ONCE):
        for answer in load.ask_all(messages[begin : begin + _AT_ONCE]):
            assert answer is not None, load.refusal
            scores = InferAnswer.decode(answer).outputs[label.name].numbers.reshape(-1).astype(np.float64)
            logits.append(np.log(scores / (1 - scores)))
    return logits


def _values(worth: Float64s) -> Float64s:
    """Return the sum of the best scores among the first 0, 1, 2... candidates."""
    kept = np.zeros(len(worth) + 1)
    for upto in range(1, len(worth) + 1):
        kept[upto] = np.sort(worth[:upto])[-SHOWN:].sum()
    return kept


def _cut(asked: LoadRequests, cut: int) -> LoadRequests:
    counts = np.minimum(asked.candidates, cut)
    stays = np.concatenate([begin + np.arange(count) for begin, count in zip(asked.offsets, counts, strict=False)])
    offsets = np.concatenate([[0], np.cumsum(counts)])
    return replace(asked, item={name: column[stays] for name, column in asked.item.items()}, offsets=offsets)
