"""The metrics of a node: its connections and answers, waiting requests, padding and the shadow version.

`/sizes` and `/shadow` have the details.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from streamlearn.features.entity import OUTCOMES
from streamlearn.settings.front import FrontSettings
from streamlearn.struct_decoder import from_json
from streamlearn.telemetry import counter, counter_family, gauge, gauge_family, histogram_family

if TYPE_CHECKING:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

    from streamlearn.serving.node_features import NodeFeatures
    from streamlearn.serving.node_retrieval import NodeRetrieval

__all__ = ["DoorCollector", "FrontMeters", "ShadowMeters", "filled", "single"]

_US_S = 1e-6
# Figures are taken twice a second: what was offered five seconds ago counts half. Answers that keep more are whole.
_FADE, _WHOLE = 0.93, 0.99
_OUTCOMES = ("scored", "dropped", "failed")


class DoorCollector:
    """Collects the current figures of the native node and the native front when Prometheus reads them."""

    def __init__(
        self, node: Any, front: Any, features: NodeFeatures | None = None, retrieval: NodeRetrieval | None = None
    ) -> None:
        self._node, self._front, self._features, self._retrieval = node, front, features, retrieval

    def describe(self) -> list[Metric]:
        """Return nothing: a process with several nodes registers one collector for each, with the same names."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        yield from self._open()
        yield from self._traffic()
        answers = counter_family("serving", "answers", "Requests answered, by status", ["protocol", "kind", "status"])
        for protocol, is_scored, status, count in self._node.answers():
            answers.add_metric([protocol, "score" if is_scored else "ask", status], count)
        yield answers
        measures = self._front.measured()
        refused = counter_family("serving", "refused_requests", "Requests refused, by reason", ["reason"])
        for reason, count in (measures.refusals | dict(self._node.refused())).items():
            refused.add_metric([reason], count)
        yield refused
        help = "Requests tried again alone after a TensorBatch failed"
        yield single(counter_family("serving", "tried_again_requests", help), measures.retried)
        help_arms = "Requests of an experiment whose arm has a version that could not answer; the active one did"
        yield single(counter_family("serving", "armless_requests", help_arms), measures.without_arm)
        if counts := self._node.pieces():
            yield from self._split(counts)
        decoding = histogram_family("serving", "decode", "seconds", "Time to decode a request")
        yield filled(decoding, self._node.decoding(), _US_S)
        waiting = histogram_family("serving", "wait", "seconds", "Time that a request waited for a lane")
        yield filled(waiting, measures.waits, _US_S)
        merged = histogram_family("serving", "tensor_batch", "requests", "Requests in a TensorBatch")
        yield filled(merged, measures.requests, 1)
        rows = histogram_family("serving", "tensor_batch", "rows", "Candidates in a TensorBatch")
        yield filled(rows, measures.candidates, 1)
        if self._features is not None:
            yield from self._computed(self._features.native.figures())
        if self._retrieval is not None:
            yield from self._retrieval.collect()

    def _split(self, counts: list[tuple[str, int]]) -> Iterator[Metric]:
        pieces = counter_family("serving", "pieces", "Pieces of split requests, by what became of them", ["outcome"])
        for outcome, count in counts:
            pieces.add_metric([outcome], count)
        yield pieces
        connected, peers = self._node.peers()
        help = "Other nodes with a connection for pieces, as a share of those in the registry"
        yield single(gauge_family("serving", "peers", "ratio", help), connected / max(peers, 1))

    def _computed(self, figures: Any) -> Iterator[Metric]:
        help = "Requests by the states of their computed columns; sent: the caller sent all of them"
        requests = counter_family("serving", "feature_requests", help, ["outcome"])
        for outcome, count in zip((*OUTCOMES, "sent"), figures.requests, strict=True):
            requests.add_metric([outcome], count)
        yield requests
        help_items = "Candidates by where the states of their computed columns came from"
        items = counter_family("serving", "feature_items", help_items, ["place"])
        for place, count in zip(("cache", "store"), figures.items, strict=True):
            items.add_metric([place], count)
        yield items
        help_bad = "States of computed features that cannot be read; their users and items count as unknown"
        yield single(counter_family("serving", "feature_states_bad", help_bad), figures.states_bad)
        help_wait = "Time that a request waited for states of computed features"
        yield filled(histogram_family("serving", "feature_wait", "seconds", help_wait), figures.waits, _US_S)

    def _open(self) -> Iterator[Metric]:
        (connections, connections_max), (requests, requests_max) = self._node.open()
        help = "Open connections as a share of front.connections_max"
        yield single(gauge_family("serving", "connections", "ratio", help), connections / connections_max)
        yield single(gauge_family("serving", "under_way", "requests", "Requests under way"), requests)
        help_share = "Requests under way as a share of their limit"
        yield single(gauge_family("serving", "under_way", "ratio", help_share), requests / requests_max)

    def _traffic(self) -> Iterator[Metric]:
        accepted = counter_family("serving", "connections", "Connections accepted", ["protocol"])
        in_bytes = counter_family("serving", "in_bytes", "Bytes received from callers", ["protocol"])
        out_bytes = counter_family("serving", "out_bytes", "Bytes sent to callers", ["protocol"])
        families = (accepted, in_bytes, out_bytes)
        for protocol, *counts in self._node.lines():
            for family, count in zip(families, counts, strict=True):
                family.add_metric([protocol], count)
        yield from families


def single(family: CounterMetricFamily | GaugeMetricFamily, value: float) -> Metric:
    """Set the only value of a metric without labels."""
    family.add_metric([], value)
    return family


def filled(family: HistogramMetricFamily, histogram: Any, scale: float) -> HistogramMetricFamily:
    """Set a histogram from a native one, whose values are multiplied by `scale`."""
    buckets = [(f"{bound * scale:g}", float(cumulative)) for bound, cumulative in histogram.buckets]
    family.add_metric([], [*buckets, ("+Inf", float(histogram.count))], sum_value=histogram.sum * scale)
    return family


class FrontMeters:
    """Figures of a native front, with its bounds in `settings`."""

    def __init__(self, front: Any, settings: FrontSettings) -> None:
        self._front, self._settings = front, settings
        self._requests = gauge("serving", "waiting", "requests", "Requests that wait for a lane")
        self._full = gauge(
            "serving",
            "waiting",
            "ratio",
            "Waiting requests or candidates, whichever is larger, as a share of their limit",
        )
        self._backlog = gauge("serving", "backlog", "seconds", "Predicted time to finish all waiting requests")
        self._margin = gauge(
            "serving", "margin", "seconds", "Time kept before deadlines; it grows while requests are late"
        )
        self._busy = gauge("serving", "lanes_busy", "ratio", "Busy lanes as a share of all lanes")
        self._rest = gauge(
            "serving",
            "lanes_rest",
            "ratio",
            "Share of their time that lanes should rest, so that requests are read in time",
        )
        self._run = counter("serving", "rows", "Rows in the runs of a graph, padding included", ["graph"])
        self._padding = counter("serving", "padding_rows", "Rows of padding in the runs of a graph", ["graph"])
        self._value = counter(
            "serving", "answer_value", "Value of requests, as offered and as admitted after cuts", ["kind"]
        )
        self._price = gauge("serving", "price", "ratio", "Price of lane time; above 0 the node is overloaded and cuts")
        self._rows, self._worth = ((0, 0), (0, 0)), (0.0, 0.0)
        self._recent = (0.0, 0.0)  # the value of recent requests: offered and admitted

    def measure(self, lanes: int) -> None:
        """Set the gauges for a node with this many lanes, and count the rows since the last call."""
        figures, settings = self._front.figures(), self._settings
        self._requests.set(figures.requests)
        candidates_max = max(settings.waiting_candidates_max, settings.candidates_max)
        full = figures.requests / settings.requests_max, figures.candidates / candidates_max
        self._full.set(max(full))
        self._backlog.set(figures.backlog_s)
        self._margin.set(figures.margin_s)
        self._busy.set(figures.lanes_busy / max(lanes, 1))
        self._rest.set(figures.lanes_rest)
        rows = self._front.rows()
        for graph, (run, padding), before in zip(("user", "score"), rows, self._rows, strict=True):
            self._run.labels(graph).inc(run - before[0])
            self._padding.labels(graph).inc(padding - before[1])
        self._rows = rows
        if figures.value is not None:
            offered, admitted, price = figures.value
            more = offered - self._worth[0], admitted - self._worth[1]
            self._value.labels("offered").inc(more[0])
            self._value.labels("admitted").inc(more[1])
            self._worth = offered, admitted
            self._recent = _FADE * self._recent[0] + more[0], _FADE * self._recent[1] + more[1]
            self._price.set(price)

    @property
    def overload(self) -> str:
        """Says how much of the value of recent answers an overloaded node keeps; empty if it keeps all."""
        offered, admitted = self._recent
        if not offered or admitted >= _WHOLE * offered:
            return ""
        kept = f"{admitted / offered:.0%}"
        return f'overloaded: its answers keep {kept} of their value; see "Overload" in the documentation'


class ShadowMeters:
    """How far the scores of the shadow version are from those of the active one, as the native front counts it."""

    def __init__(self, front: Any) -> None:
        self._front = front
        self._requests = counter(
            "serving", "shadow_requests", "Answered requests selected for the shadow version", ["outcome"]
        )
        self._waiting = gauge(
            "serving", "shadow_waiting", "requests", "Answered requests that wait for the shadow version"
        )
        help = "Mean difference between the probabilities of the two versions"
        self._mean = gauge("serving", "shadow_difference", "ratio", help, ["output"])
        help_max = "Largest difference between the probabilities of the two versions"
        self._largest = gauge("serving", "shadow_difference_max", "ratio", help_max, ["output"])
        help_order = "Share of requests whose top candidates the two versions order differently"
        self._reordered = gauge("serving", "shadow_reordered", "ratio", help_order, ["output"])
        self._before = dict.fromkeys(_OUTCOMES, 0)

    def measure(self) -> None:
        """Count the shadow requests since the last call, and set the differences."""
        figures: dict[str, Any] = from_json(self._front.shadow(), dict[str, Any])
        for outcome in _OUTCOMES:
            self._requests.labels(outcome).inc(figures[outcome] - self._before[outcome])
            self._before[outcome] = figures[outcome]
        self._waiting.set(figures["waiting"])
        if not figures["compared"]:
            return
        for output, differences in figures["outputs"].items():
            self._mean.labels(output).set(differences["mean_difference"])
            self._largest.labels(output).set(differences["max_difference"])
            self._reordered.labels(output).set(differences["reordered"] / figures["compared"])
