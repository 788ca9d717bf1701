"""Metrics of a shard: what its server and its tables say of themselves when they are asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from streamlearn.ps.orders import ShardStats, Stats
from streamlearn.ps.server import ShardServer
from streamlearn.settings import TelemetrySettings
from streamlearn.telemetry import serve_metrics

if TYPE_CHECKING:
    from prometheus_client.core import Metric

__all__ = ["ShardCollector", "serve_shard_metrics"]

_VERBS = ("hello", "pull", "push", "order", "ping")
_COUNTS = ("requests", "errors", "rows", "in_bytes", "out_bytes", "seconds")
# How close each bound is: the figure, what it and its bound are called, and in what they are counted.
_BOUNDS = {
    "connections": ("connections", "requests"),
    "clients": ("clients", "requests"),
    "orders_waiting": ("orders", "requests"),
    "in_flight_bytes": ("in_flight_bytes", "bytes"),
}


class ShardCollector:
    """Gives prometheus the figures of one shard as they are.

    Args:
        server: The shard's.
    """

    def __init__(self, server: ShardServer) -> None:
        self._server = server

    def collect(self) -> Iterator[Metric]:
        """All metrics."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        said = self._server.shard.obey(Stats())
        assert isinstance(said, ShardStats)
        for count in _COUNTS:
            name = f"streamlearn_ps_{count}" if count != "seconds" else "streamlearn_ps_answering_seconds"
            family = CounterMetricFamily(name, f"{count} by verb", labels=["verb"])
            for verb in _VERBS:
                family.add_metric([verb], said.served[f"{verb}_{count}"])
            yield family
        refused = CounterMetricFamily("streamlearn_ps_refused_requests", "Refusals by code", labels=["code"])
        for name, value in said.served.items():
            if name.startswith("refused_"):
                refused.add_metric([name.removeprefix("refused_")], value)
        yield refused
        yield CounterMetricFamily(
            "streamlearn_ps_duplicate_requests", "Pushes that came again", value=said.served["duplicates"]
        )
        for name, (noun, unit) in _BOUNDS.items():
            now, most = said.served[name], said.served[f"{noun}_max"]
            yield GaugeMetricFamily(f"streamlearn_ps_{noun.removesuffix('_bytes')}_{unit}", f"{name} now", value=now)
            bound = f"streamlearn_ps_{noun.removesuffix('_bytes')}_max_{unit}"
            yield GaugeMetricFamily(bound, f"The most of {name}", value=most)
        yield from self._tables(said)

    def _tables(self, said: ShardStats) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily

        families = {
            "keys": GaugeMetricFamily("streamlearn_ps_table_rows", "Keys that have a row", labels=["table"]),
            "images": GaugeMetricFamily("streamlearn_ps_table_images_rows", "Images of versions", labels=["table"]),
            "bytes": GaugeMetricFamily("streamlearn_ps_table_bytes", "Memory", labels=["table"]),
        }
        for name, table in said.tables.items():
            for count, family in families.items():
                family.add_metric([name], getattr(table, count))
        yield from families.values()
        left, name = said.exports_left, "streamlearn_ps_exports_left"
        yield GaugeMetricFamily(f"{name}_requests", "Exports given up that have not ended", value=left)
        yield GaugeMetricFamily(f"{name}_max_requests", "The most of exports_left", value=said.exports_left_max)
        committed = said.retained[-1] if said.retained else 0
        yield GaugeMetricFamily("streamlearn_ps_committed_version", "The newest committed version", value=committed)


@contextmanager
def serve_shard_metrics(server: ShardServer, settings: TelemetrySettings) -> Iterator[None]:
    """Serve a shard's metrics while the context lasts, where the settings name a port."""
    if not settings.metrics_port:
        yield
        return
    from prometheus_client import REGISTRY

    collector = ShardCollector(server)
    REGISTRY.register(collector)
    serving = serve_metrics(settings)
    try:
        yield
    finally:
        REGISTRY.unregister(collector)
        if serving is not None:
            serving.close()
