"""DoorCollector: what came in at a node's door and what became of it, as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prometheus_client.core import Metric

__all__ = ["DoorCollector"]

_PREFIX = "streamlearn_serving"
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
        yield from self._door()
        refusals, tried_again, (waits, requests, candidates) = self._front.measured()
        yield _counts("refused_requests", "Refused, by why", "reason", refusals | dict(self._node.refused()))
        yield _counts(
            "tried_again_requests", "Tried once more alone, after a TensorBatch failed", "", {"": tried_again}
        )
        yield _histogram("decode_seconds", "To decode a request", self._node.decoding(), _US_S)
        yield _histogram("wait_seconds", "Of a request that waited for a lane", waits, _US_S)
        yield _histogram("tensor_batch_requests", "Requests of a TensorBatch", requests, 1)
        yield _histogram("tensor_batch_rows", "Candidates of a TensorBatch", candidates, 1)

    def _door(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        (connections, connections_max), (requests, requests_max) = self._node.open()
        open_ = f"{_PREFIX}_connections_ratio", "Share of front.connections_max that is open"
        yield GaugeMetricFamily(*open_, value=connections / connections_max)
        yield GaugeMetricFamily(f"{_PREFIX}_under_way_requests", "Requests under way", value=requests)
        full = f"{_PREFIX}_under_way_ratio", "Share of the requests that may be under way at once"
        yield GaugeMetricFamily(*full, value=requests / requests_max)
        lines = self._node.lines()
        for at, (noun, said) in enumerate(
            (("connections", "Connections that came"), ("in_bytes", "Bytes from callers"), ("out_bytes", "To callers"))
        ):
            yield _counts(noun, said, "protocol", {line[0]: line[at + 1] for line in lines})
        answers = CounterMetricFamily(
            f"{_PREFIX}_answers", "Requests that ended, by what they were told", labels=["protocol", "kind", "status"]
        )
        for protocol, is_scored, status, count in self._node.answers():
            answers.add_metric([protocol, "score" if is_scored else "ask", status], count)
        yield answers


def _counts(noun: str, said: str, label: str, counts: dict[str, int]) -> Metric:
    from prometheus_client.core import CounterMetricFamily

    family = CounterMetricFamily(f"{_PREFIX}_{noun}", said, labels=[label] if label else [])
    for name, count in counts.items():
        family.add_metric([name] if label else [], count)
    return family


def _histogram(name: str, said: str, counted: tuple[list[tuple[int, int]], int, int], scale: float) -> Metric:
    from prometheus_client.core import HistogramMetricFamily

    upto, count, total = counted
    buckets = [(f"{end * scale:g}", float(among)) for end, among in upto]
    return HistogramMetricFamily(
        f"{_PREFIX}_{name}", said, buckets=[*buckets, ("+Inf", float(count))], sum_value=total * scale
    )
