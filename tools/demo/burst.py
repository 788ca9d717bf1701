"""Burst: more requests than a node can score, and how much of the value of its answers it keeps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import islice

import numpy as np

from streamlearn.load.load_run import Load, LoadPlan
from streamlearn.load.replayed_requests import of_history, recorded, refilled
from streamlearn.replay import History
from tools.demo.loop import Loop

__all__ = ["TIMES", "Burst", "ask_too_much"]

_NODE, _VALUE = "node-1", "streamlearn_serving_answer_value_total"
_REQUESTS, _CANDIDATES, _BLOCKS = 300, 36, 40
_CALLERS, _SECONDS, _WARMUP_S, _DEADLINE_MS = 16, 4, 2.0, 200
TIMES = 3
"""How many times the rate that it can answer a node is asked at. By refusing it could keep one part in three."""


@dataclass(frozen=True)
class Burst:
    """What was seen while a node was asked for three times what it can do.

    Attributes:
        rate: The requests a second that it answers wholly.
        kept: The share of the value of whole answers that was in time.
    """

    rate: float = 0.0
    kept: float = math.nan


def ask_too_much(loop: Loop, history: History) -> Burst:
    """Ask a node for lists of items that were shown, at three times the rate that it can answer."""
    random = np.random.default_rng(1)
    asked = recorded(islice(of_history(history), _BLOCKS), _REQUESTS, 20 * _REQUESTS, random)
    lists = refilled(asked, np.full(len(asked), _CANDIDATES, np.int64), random)
    app = loop.folder.app
    load = Load(loop.nodes[0], lists.messages(app.features, app.served_name), loop.token)
    # Answers that are not cut teach the node what candidates are worth.
    whole = load.run(LoadPlan("closed", _CALLERS, _SECONDS, _WARMUP_S))
    rate = whole.ok / whole.seconds
    before = _values(loop)
    done = load.run(LoadPlan("poisson", TIMES * rate, _SECONDS, _WARMUP_S, _DEADLINE_MS))
    offered, admitted = (after - begin for after, begin in zip(_values(loop), before, strict=True))
    in_time = done.in_time / max(done.in_time + done.late, 1)
    return Burst(rate, admitted / offered * in_time if offered else math.nan)


def _values(loop: Loop) -> tuple[float, float]:
    return loop.metric(_NODE, _VALUE, kind="offered"), loop.metric(_NODE, _VALUE, kind="admitted")
