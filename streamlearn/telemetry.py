"""Logs and metrics of a process: their names, formats and outputs.

Logs are for people unless a setting asks for JSON. Metrics are named `streamlearn_<component>_<noun>_<unit>`; each
process serves its own: see `MetricsServer`.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TextIO, TypeVar

from streamlearn.printable import printable
from streamlearn.settings.telemetry import TelemetrySettings

if TYPE_CHECKING:
    from prometheus_client import Counter, Gauge, Histogram
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

__all__ = [
    "AGES_S", "counter", "counter_family", "gauge", "gauge_family", "histogram", "histogram_family",
    "metrics_text", "set_up_logging",
]  # fmt: skip

COMPONENTS = (
    "events", "fold", "ingest", "trainer", "ps", "publisher", "serving", "topics", "replay", "supervision", "console",
    "access", "retrieval", "nearline",
)  # fmt: skip
UNITS = (
    "total", "seconds", "bytes", "ratio", "rows", "events", "requests", "version", "versions", "records", "offsets",
    "nats", "processes", "units", "items",
)  # fmt: skip
AGES_S = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3_600.0, 21_600.0, 86_400.0)
"""Buckets of a histogram of ages."""
Metric = TypeVar("Metric")
_NAME = re.compile(r"[a-z][a-z0-9_]*")
# Attributes that logging itself sets on a record; all others come from extra= and are shown.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def set_up_logging(settings: TelemetrySettings, stream: TextIO | None = None, *, libraries: str = "") -> None:
    """Log to stderr (or `stream`, for tests) in the configured format and level; a second call replaces the first.

    `libraries` is the lowest level, such as "error", at which other loggers of the process are logged too. Call this
    before you load libraries that log a lot.
    """
    # TensorFlow bypasses logging and reports CPU features and missing GPUs at every start. It also raises its errors.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    logger = logging.getLogger("streamlearn")
    logger.handlers.clear()
    logger.addHandler(_handler_of(settings, stream))
    logger.setLevel(settings.log_level.upper())
    logger.propagate = False
    if libraries:
        root, handler = logging.getLogger(), _handler_of(settings, stream)
        for earlier in [each for each in root.handlers if isinstance(each.formatter, _HumanLines | _JsonLines)]:
            root.removeHandler(earlier)
        handler.setLevel(libraries.upper())
        root.addHandler(handler)


def _handler_of(settings: TelemetrySettings, stream: TextIO | None) -> logging.Handler:
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_JsonLines() if settings.log_format == "json" else _HumanLines())
    return handler


class _HumanLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).astimezone().strftime("%H:%M:%S")
        extra = "".join(f" {name}={value}" for name, value in _extra(record).items())
        logger = record.name.removeprefix("streamlearn.")
        line = printable(f"{time} {record.levelname.lower():7} {logger}: {record.getMessage()}{extra}")
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {f"extra_{name}" if name in line else name: value for name, value in _extra(record).items()}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def _extra(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


def counter(component: str, noun: str, help: str, labels: Sequence[str] = ()) -> Counter:
    """Return a counter named `streamlearn_<component>_<noun>_total`."""
    from prometheus_client import Counter

    name = _name(component, noun, "total")
    return _registered(name, Counter) or Counter(name, help, labels)


def gauge(component: str, noun: str, unit: str, help: str, labels: Sequence[str] = ()) -> Gauge:
    """Return a gauge named `streamlearn_<component>_<noun>_<unit>`."""
    from prometheus_client import Gauge

    name = _name(component, noun, unit)
    return _registered(name, Gauge) or Gauge(name, help, labels)


def histogram(
    component: str, noun: str, unit: str, help: str, buckets: Sequence[float], *, labels: Sequence[str] = ()
) -> Histogram:
    """Return a histogram named `streamlearn_<component>_<noun>_<unit>`."""
    from prometheus_client import Histogram

    name = _name(component, noun, unit)
    return _registered(name, Histogram) or Histogram(name, help, labels, buckets=buckets)


def counter_family(component: str, noun: str, help: str, labels: Sequence[str] = ()) -> CounterMetricFamily:
    """Return a counter for a collector, named as by `counter`."""
    from prometheus_client.core import CounterMetricFamily

    return CounterMetricFamily(_name(component, noun, "total"), help, labels=labels)


def gauge_family(component: str, noun: str, unit: str, help: str, labels: Sequence[str] = ()) -> GaugeMetricFamily:
    """Return a gauge for a collector, named as by `gauge`."""
    from prometheus_client.core import GaugeMetricFamily

    return GaugeMetricFamily(_name(component, noun, unit), help, labels=labels)


def histogram_family(
    component: str, noun: str, unit: str, help: str, labels: Sequence[str] = ()
) -> HistogramMetricFamily:
    """Return a histogram for a collector, named as by `histogram`."""
    from prometheus_client.core import HistogramMetricFamily

    return HistogramMetricFamily(_name(component, noun, unit), help, labels=labels)


def metrics_text() -> str:
    """Return all metrics of this process in Prometheus's text format."""
    from prometheus_client import REGISTRY, generate_latest

    return generate_latest(REGISTRY).decode()


def _name(component: str, noun: str, unit: str) -> str:
    assert component in COMPONENTS, component
    assert unit in UNITS, unit
    assert _NAME.fullmatch(noun), noun
    return f"streamlearn_{component}_{noun}_{unit}"


def _registered(name: str, kind: type[Metric]) -> Metric | None:
    """Return the metric if another module of the process has declared it already."""
    from prometheus_client import REGISTRY

    metric = REGISTRY._names_to_collectors.get(name)
    assert metric is None or isinstance(metric, kind), f"{name} is a {type(metric).__name__}"
    return metric
