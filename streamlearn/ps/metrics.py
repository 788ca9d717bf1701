"""Metrics of a shard, read from its server and tables at each scrape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from streamlearn.metrics_server import serve_metrics
from streamlearn.ps.orders import ShardStats, Stats
from streamlearn.ps.server import ShardServer
from streamlearn.settings.telemetry import TelemetrySettings
from streamlearn.telemetry import counter_family, gauge_family

if TYPE_CHECKING:
    from prometheus_client.core import Metric

__all__ = ["ShardCollector", "serve_shard_metrics"]

_VERBS = ("hello", "pull", "push", "order", "ping", "part", "reduce")


class ShardCollector:
    """Passes the figures of one shard to Prometheus."""

    def __init__(self, server: ShardServer) -> None:
        self._server = server

    def collect(self) -> Iterator[Metric]:
        """All metrics."""
        stats = self._server.shard.obey(Stats())
        assert isinstance(stats, ShardStats)
        yield from _by_verb(stats.served)
        refused = counter_family("ps", "refused_requests", "Requests refused, by code", ["code"])
        for name, value in stats.served.items():
            if name.startswith("refused_"):
                refused.add_metric([name.removeprefix("refused_")], value)
        yield refused
        duplicates = counter_family("ps", "duplicate_requests", "Pushes received again and not applied twice")
        duplicates.add_metric([], stats.served["duplicates"])
        yield duplicates
        yield from _bounds(stats)
        yield from _tables(stats)


def _by_verb(served: Mapping[str, float]) -> Iterator[Metric]:
    families = {
        "requests": counter_family("ps", "requests", "Requests, by verb", ["verb"]),
        "errors": counter_family("ps", "errors", "Requests that ended with an error, by verb", ["verb"]),
        "rows": counter_family("ps", "rows", "Rows pulled and gradients pushed, by verb", ["verb"]),
        "in_bytes": counter_family("ps", "in_bytes", "Bytes of requests, by verb", ["verb"]),
        "out_bytes": counter_family("ps", "out_bytes", "Bytes of answers, by verb", ["verb"]),
        "seconds": counter_family("ps", "answering_seconds", "Seconds spent answering, by verb", ["verb"]),
    }
    for count, family in families.items():
        for verb in _VERBS:
            family.add_metric([verb], served[f"{verb}_{count}"])
    yield from families.values()


def _bounds(stats: ShardStats) -> Iterator[Metric]:
    """The use of each bound, and the bound."""
    served, left, left_max = stats.served, stats.exports_left, stats.exports_left_max
    for family, value in (
        (gauge_family("ps", "connections", "requests", "Open connections"), served["connections"]),
        (gauge_family("ps", "connections_max", "requests", "Limit of open connections"), served["connections_max"]),
        (gauge_family("ps", "clients", "requests", "Clients that push in the current epoch"), served["clients"]),
        (gauge_family("ps", "clients_max", "requests", "Limit of clients"), served["clients_max"]),
        (gauge_family("ps", "orders", "requests", "Orders that wait for an answer"), served["orders_waiting"]),
        (gauge_family("ps", "orders_max", "requests", "Limit of waiting orders"), served["orders_max"]),
        (gauge_family("ps", "in_flight", "bytes", "Bytes of requests under way"), served["in_flight_bytes"]),
        (gauge_family("ps", "in_flight_max", "bytes", "Limit of the bytes under way"), served["in_flight_bytes_max"]),
        (gauge_family("ps", "exports_left", "requests", "Abandoned exports that are still running"), left),
        (gauge_family("ps", "exports_left_max", "requests", "Limit of abandoned exports"), left_max),
    ):
        family.add_metric([], value)
        yield family


def _tables(stats: ShardStats) -> Iterator[Metric]:
    families = {
        "keys": gauge_family("ps", "table", "rows", "Keys that have a row", ["table"]),
        "images": gauge_family("ps", "table_images", "rows", "Copies of rows held for versions", ["table"]),
        "bytes": gauge_family("ps", "table", "bytes", "Memory", ["table"]),
    }
    for name, table in stats.tables.items():
        for count, family in families.items():
            family.add_metric([name], getattr(table, count))
    yield from families.values()
    committed = gauge_family("ps", "committed", "version", "The newest committed version")
    committed.add_metric([], stats.retained[-1] if stats.retained else 0)
    yield committed


@contextmanager
def serve_shard_metrics(server: ShardServer, settings: TelemetrySettings) -> Iterator[None]:
    """Serve a shard's metrics inside the context, if the settings name an address."""
    if not settings.listen:
        yield
        return
    from prometheus_client import REGISTRY

    collector = ShardCollector(server)
    REGISTRY.register(collector)
    try:
        with serve_metrics(settings):
            yield
    finally:
        REGISTRY.unregister(collector)
