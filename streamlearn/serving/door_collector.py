"""DoorCollector: what came in at a node's door and what became of it, as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from streamlearn.telemetry import counter_family, gauge_family, histogram_family

if TYPE_CHECKING:
    from prometheus_client.core import HistogramMetricFamily, Metric

__all__ = ["DoorCollector"]

_US_S = 1e-6


class DoorCollector:
    """Gives prometheus the figures of a door and of the front behind it as they are.

    Args:
        node: The native node.
        front: The native front.
    """

    def __init__(self, node: Any, front: Any) -> None:
        self._node, self._front = node, front

    def describe(self) -> list[Metric]:
        """Nothing ahead: a process that tries several nodes has these of each."""
        return []

    def register(self) -> None:
        """Let them be found at /metrics."""
        from prometheus_client import REGISTRY

        REGISTRY.register(self)

    def close(self) -> None:
        """Let them be found no more."""
        from prometheus_client import REGISTRY

        REGISTRY.unregister(self)

    def collect(self) -> Iterator[Metric]:
        """All metrics."""
        yield from self._open()
        yield from self._lines()
        answers = counter_family("serving", "answers", "Requests answered, by status", ["protocol", "kind", "status"])
        for protocol, is_scored, status, count in self._node.answers():
            answers.add_metric([protocol, "score" if is_scored else "ask", status], count)
        yield answers
        refusals, tried_again, (waits, requests, candidates) = self._front.measured()
        refused = counter_family("serving", "refused_requests", "Requests refused, by reason", ["reason"])
        for reason, count in (refusals | dict(self._node.refused())).items():
            refused.add_metric([reason], count)
        yield refused
        again = counter_family(
            "serving", "tried_again_requests", "Requests tried again alone after a TensorBatch failed"
        )
        again.add_metric([], tried_again)
        yield again
        decoding = histogram_family("serving", "decode", "seconds", "Time to decode a request")
        yield _filled(decoding, self._node.decoding(), _US_S)
        yield _filled(
            histogram_family("serving", "wait", "seconds", "Time that a request waited for a lane"), waits, _US_S
        )
        together = histogram_family("serving", "tensor_batch", "requests", "Requests in a TensorBatch")
        yield _filled(together, requests, 1)
        yield _filled(histogram_family("serving", "tensor_batch", "rows", "Candidates in a TensorBatch"), candidates, 1)

    def _open(self) -> Iterator[Metric]:
        (connections, connections_max), (requests, requests_max) = self._node.open()
        open_ = gauge_family("serving", "connections", "ratio", "Open connections as a share of front.connections_max")
        open_.add_metric([], connections / connections_max)
        under_way = gauge_family("serving", "under_way", "requests", "Requests under way")
        under_way.add_metric([], requests)
        full = gauge_family("serving", "under_way", "ratio", "Requests under way as a share of their limit")
        full.add_metric([], requests / requests_max)
        yield from (open_, under_way, full)

    def _lines(self) -> Iterator[Metric]:
        came = counter_family("serving", "connections", "Connections accepted", ["protocol"])
        in_bytes = counter_family("serving", "in_bytes", "Bytes received from callers", ["protocol"])
        out_bytes = counter_family("serving", "out_bytes", "Bytes sent to callers", ["protocol"])
        for protocol, *counts in self._node.lines():
            for family, count in zip((came, in_bytes, out_bytes), counts, strict=True):
                family.add_metric([protocol], count)
        yield from (came, in_bytes, out_bytes)


def _filled(
    family: HistogramMetricFamily, counted: tuple[list[tuple[int, int]], int, int], scale: float
) -> HistogramMetricFamily:
    upto, count, total = counted
    buckets = [(f"{end * scale:g}", float(among)) for end, among in upto]
    family.add_metric([], [*buckets, ("+Inf", float(count))], sum_value=total * scale)
    return family
