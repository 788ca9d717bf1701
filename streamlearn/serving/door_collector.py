"""DoorCollector: a node's connections, requests and answers as Prometheus metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from streamlearn.telemetry import counter_family, gauge_family, histogram_family

if TYPE_CHECKING:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

__all__ = ["DoorCollector"]

_US_S = 1e-6


class DoorCollector:
    """Collects the current figures of the native node and the native front when Prometheus reads them."""

    def __init__(self, node: Any, front: Any) -> None:
        self._node, self._front = node, front

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
        yield _single(counter_family("serving", "tried_again_requests", help), measures.retried)
        decoding = histogram_family("serving", "decode", "seconds", "Time to decode a request")
        yield _filled(decoding, self._node.decoding(), _US_S)
        waiting = histogram_family("serving", "wait", "seconds", "Time that a request waited for a lane")
        yield _filled(waiting, measures.waits, _US_S)
        merged = histogram_family("serving", "tensor_batch", "requests", "Requests in a TensorBatch")
        yield _filled(merged, measures.requests, 1)
        rows = histogram_family("serving", "tensor_batch", "rows", "Candidates in a TensorBatch")
        yield _filled(rows, measures.candidates, 1)

    def _open(self) -> Iterator[Metric]:
        (connections, connections_max), (requests, requests_max) = self._node.open()
        help = "Open connections as a share of front.connections_max"
        yield _single(gauge_family("serving", "connections", "ratio", help), connections / connections_max)
        yield _single(gauge_family("serving", "under_way", "requests", "Requests under way"), requests)
        help_share = "Requests under way as a share of their limit"
        yield _single(gauge_family("serving", "under_way", "ratio", help_share), requests / requests_max)

    def _traffic(self) -> Iterator[Metric]:
        accepted = counter_family("serving", "connections", "Connections accepted", ["protocol"])
        in_bytes = counter_family("serving", "in_bytes", "Bytes received from callers", ["protocol"])
        out_bytes = counter_family("serving", "out_bytes", "Bytes sent to callers", ["protocol"])
        families = (accepted, in_bytes, out_bytes)
        for protocol, *counts in self._node.lines():
            for family, count in zip(families, counts, strict=True):
                family.add_metric([protocol], count)
        yield from families


def _single(family: CounterMetricFamily | GaugeMetricFamily, value: float) -> Metric:
    family.add_metric([], value)
    return family


def _filled(family: HistogramMetricFamily, histogram: Any, scale: float) -> HistogramMetricFamily:
    buckets = [(f"{bound * scale:g}", float(cumulative)) for bound, cumulative in histogram.buckets]
    family.add_metric([], [*buckets, ("+Inf", float(histogram.count))], sum_value=histogram.sum * scale)
    return family
