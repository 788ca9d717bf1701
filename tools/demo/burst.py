"""Burst: more requests than a node can score, and how much of the value of its answers it keeps."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from streamlearn.load.load_run import Load, LoadPlan, LoadResult
from streamlearn.load.replayed_requests import of_history, recorded, refilled
from streamlearn.replay import History
from streamlearn.serving.infer import InferAnswer
from tools.demo.loop import Loop

__all__ = ["CANDIDATES", "TIMES", "WORTH_MORE", "Burst", "ask_too_much", "scored"]

_NODE, _VALUE = "node-1", "streamlearn_serving_answer_value_total"
_REQUESTS, _BLOCKS = 300, 40
_CALLERS, _SECONDS, _WARMUP_S, _DEADLINE_MS = 16, 4, 2.0, 200
_WORTH_SECONDS, _WORTH_WARMUP_S = 2, 1.0
CANDIDATES = 36
"""The candidates of a request."""
TIMES = 3
"""How many times the rate that it can answer a node is asked at. By refusing it could keep one part in three."""
WORTH_MORE = 4.0
"""What every other request is worth in the end, where the rest are worth 1."""


@dataclass(frozen=True)
class Burst:
    """What was seen while a node was asked for three times what it can do.

    Attributes:
        rate: The requests a second that it answers wholly.
        kept: The share of the value of whole answers that was in time.
        scored: The candidates that it scored of a request, on average.
        scored_more: The same of a request that said it is worth `WORTH_MORE` times as much as the others.
        scored_less: The same of one of these others.
    """

    rate: float = 0.0
    kept: float = math.nan
    scored: float = math.nan
    scored_more: float = math.nan
    scored_less: float = math.nan


def ask_too_much(loop: Loop, history: History) -> Burst:
    """Ask a node for lists of items that were shown, at three times the rate that it can answer."""
    random, app = np.random.default_rng(1), loop.folder.app
    asked = recorded(islice(of_history(history), _BLOCKS), _REQUESTS, 20 * _REQUESTS, random)
    lists = refilled(asked, np.full(len(asked), CANDIDATES, np.int64), random)
    requests = list(lists.requests(app.features, app.served_name))
    load = Load(loop.nodes[0], [request.encode() for request in requests], loop.token)
    # Answers that are not cut teach the node what candidates are worth.
    whole = load.run(LoadPlan("closed", _CALLERS, _SECONDS, _WARMUP_S))
    rate = whole.ok / whole.seconds
    before = _values(loop)
    plan = LoadPlan("poisson", TIMES * rate, _SECONDS, _WARMUP_S, _DEADLINE_MS, keeps_answers=True)
    done = load.run(plan)
    offered, admitted = (after - begin for after, begin in zip(_values(loop), before, strict=True))
    in_time = done.in_time / max(done.in_time + done.late, 1)
    values = [WORTH_MORE if at % 2 else 1.0 for at in range(len(requests))]
    messages = [replace(one, parameters={"value": value}).encode() for one, value in zip(requests, values, strict=True)]
    plan = replace(plan, seconds=_WORTH_SECONDS, warmup_s=_WORTH_WARMUP_S)
    worth = Load(loop.nodes[0], messages, loop.token).run(plan)
    return Burst(
        rate,
        admitted / offered * in_time if offered else math.nan,
        scored(done),
        scored(worth, lambda at: values[at] > 1),
        scored(worth, lambda at: values[at] == 1),
    )


def scored(done: LoadResult, of: Callable[[int], bool] = lambda at: True) -> float:
    """Return how many candidates of the chosen requests were scored, on average; 0 of one without an answer in time."""
    answers = [answer for at, _, answer in done.answers if of(at)]
    outputs = (next(iter(InferAnswer.decode(answer).outputs.values())) for answer in answers if answer is not None)
    count = sum(int(np.count_nonzero(~np.isnan(output.numbers))) for output in outputs)
    return count / len(answers) if answers else math.nan


def _values(loop: Loop) -> tuple[float, float]:
    return loop.metric(_NODE, _VALUE, kind="offered"), loop.metric(_NODE, _VALUE, kind="admitted")
