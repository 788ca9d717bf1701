"""A request of 2,000 candidates: over two nodes of one core each, and on one of them alone, by turns."""

from __future__ import annotations

import statistics
import urllib.request
from contextlib import ExitStack

from benchmarks.nodes.serving_life import halves, on_cores
from benchmarks.nodes.serving_model import ServingModel
from benchmarks.nodes.serving_nodes import ServingNode
from benchmarks.nodes.serving_parts import Parts
from streamlearn.errors import ServiceError
from streamlearn.load.load_run import Load, LoadPlan, LoadResult
from streamlearn.testing import wait_until

__all__ = ["split_figures"]

_CANDIDATES, _REQUESTS = 2_000, 20
# On one core a lane would otherwise keep pieces from being sent.
_SETTINGS = ("front.split_pieces_max=2", "replica.beat_s=0.2", "serving.lanes=1", "serving.lane_nice=7")
# A deadline that one node meets alone. Then deadlines as shares of the time that one node takes: the one in which two
# nodes answer most is used. Nodes keep a margin before a deadline, so it may be longer than one node takes.
_LONG_MS, _SHARES = 30_000, (0.9, 1.0, 1.1, 1.2, 1.3)
_SPLIT_MIN = 0.9  # of the requests
_ANSWERED, _PEERS = 'streamlearn_serving_pieces_total{outcome="answered"}', "streamlearn_serving_peers_ratio"
_CONNECTED_S = 60.0


def split_figures(parts: Parts, model: ServingModel, seconds: int) -> None:
    """Measure one node and two by turns of `seconds`; the caller waits for each answer."""
    nodes = list[ServingNode]()
    with ExitStack() as stack:
        for cores in halves():
            with on_cores(cores[:1]):
                nodes.append(stack.enter_context(parts.node(model, f"core-{cores[0]}", _SETTINGS)))
        home, peer = nodes
        load = home.load(model.messages(model.requests_of_size(_CANDIDATES, _REQUESTS)), connections=1)
        peer.meters()  # waits until it is ready
        wait_until(lambda: _metric(home, _PEERS) == 1, "a connection between the nodes", _CONNECTED_S)
        short_ms = _short_ms(home, load, _p50_ms(_run(load, _LONG_MS, seconds)))
        one_ms, two_ms, pieces, results = list[float](), list[float](), 0.0, list[LoadResult]()
        for _ in range(parts.sizes.rounds):
            one_ms.append(_p50_ms(_run(load, _LONG_MS, seconds)))
            before = _metric(home, _ANSWERED)
            results.append(_run(load, short_ms, seconds))
            pieces += _metric(home, _ANSWERED) - before
            two_ms.append(_p50_ms(results[-1]))
    due, ok = sum(result.due for result in results), sum(result.ok for result in results)
    parts.note(f"{ok} of {due} answered within {short_ms} ms, {pieces:.0f} pieces by the other node")
    parts.figures(
        {
            "split_p50_to_one": statistics.median(two / one for one, two in zip(one_ms, two_ms, strict=True)),
            "split_one_p50_ms": statistics.median(one_ms),
            "split_two_p50_ms": statistics.median(two_ms),
            "split_answered": ok / max(1, due),
            "split_pieces_over_answers": pieces / max(1, ok),
        }
    )


def _run(load: Load, deadline_ms: int, seconds: int) -> LoadResult:
    return load.run(LoadPlan("closed", 1, seconds, 0.5, deadline_ms=deadline_ms))


def _short_ms(home: ServingNode, load: Load, one_ms: float) -> int:
    """Return a deadline in which one node is late by its own prediction, and two are not."""
    answered = dict[int, float]()
    for share in _SHARES:
        deadline_ms, before = round(share * one_ms), _metric(home, _ANSWERED)
        result = _run(load, deadline_ms, 2)
        answered[deadline_ms] = min(result.ok, _metric(home, _ANSWERED) - before) / max(1, result.due)
    short_ms = max(answered, key=lambda deadline_ms: answered[deadline_ms])
    if answered[short_ms] < _SPLIT_MIN:
        message = f"two nodes answer at most {answered[short_ms]:.0%} of the requests; one takes {one_ms:.0f} ms"
        raise ServiceError(message, help="see what else runs on the machine")
    return short_ms


def _metric(node: ServingNode, name: str) -> float:
    with urllib.request.urlopen(f"http://{node.http}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.removeprefix(name)) for line in lines if line.startswith(f"{name} "))


def _p50_ms(result: LoadResult) -> float:
    p50_ms = result.latency_ms["p50"]
    if p50_ms is None:
        message = f"no request was answered: {dict(result.said)}"
        raise ServiceError(message, help="see the nodes' logs")
    return p50_ms
