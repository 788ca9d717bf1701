"""Logs and metrics: one place that names them alike and sends them out.

Logs are for people unless a setting asks for JSON. Metrics are named `streamlearn_<component>_<noun>_<unit>` and
served on one loopback port a process.
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

from streamlearn.errors import ServiceError
from streamlearn.settings.telemetry import TelemetrySettings

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

__all__ = [
    "AGES_S",
    "MetricsServer",
    "counter",
    "counter_family",
    "gauge",
    "gauge_family",
    "histogram",
    "histogram_family",
    "metrics_text",
    "serve_metrics",
    "set_up_logging",
]

COMPONENTS = ("events", "ingest", "trainer", "ps", "publisher", "serving", "topics", "replay", "supervision", "console")
UNITS = (
    "total",
    "seconds",
    "bytes",
    "ratio",
    "rows",
    "events",
    "requests",
    "version",
    "versions",
    "records",
    "offsets",
    "nats",
    "processes",
)
AGES_S = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3_600.0, 21_600.0, 86_400.0)
"""Buckets of a histogram of how old something is."""
Metric = TypeVar("Metric")
_NAME = re.compile(r"[a-z][a-z0-9_]*")
# Texts of strangers may be in a line. They neither move a terminal's cursor nor begin a line that looks like another.
_SHOWN = {code: f"\\x{code:02x}" for code in (*range(9), *range(11, 32), *range(127, 160))} | {10: "\n  "}
# What logging itself puts on a record; all else was given as extra= and is shown.
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def set_up_logging(settings: TelemetrySettings, stream: TextIO | None = None, *, libraries: str = "") -> None:
    """Send this process's logs to stderr, as the settings say; calling again replaces what was set up.

    Args:
        settings: Format and level.
        stream: Another place than stderr, for tests.
        libraries: The least level at which all else in the process is heard as well, such as `error`: for libraries
            that would otherwise say whatever they do. Call it before they are loaded.
    """
    # TensorFlow writes to stderr past all loggers, and says at every start which instructions it has and that there is
    # no GPU. What goes wrong it raises as well.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    own = logging.getLogger("streamlearn")
    for old in list(own.handlers):
        own.removeHandler(old)
    own.addHandler(_handler_of(settings, stream))
    own.setLevel(settings.log_level.upper())
    own.propagate = False
    if libraries:
        root, handler = logging.getLogger(), _handler_of(settings, stream)
        for old in [one for one in root.handlers if isinstance(one.formatter, _HumanLines | _JsonLines)]:
            root.removeHandler(old)
        handler.setLevel(libraries.upper())
        root.addHandler(handler)


def _handler_of(settings: TelemetrySettings, stream: TextIO | None) -> logging.Handler:
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_JsonLines() if settings.log_format == "json" else _HumanLines())
    return handler


class _HumanLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).astimezone().strftime("%H:%M:%S")
        extra = "".join(f" {name}={value}" for name, value in _extra(record).items())
        where = record.name.removeprefix("streamlearn.")
        line = f"{at} {record.levelname.lower():7} {where}: {record.getMessage()}{extra}".translate(_SHOWN)
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
    return {name: value for name, value in vars(record).items() if name not in _OWN}


def counter(component: str, noun: str, help: str, labels: Sequence[str] = ()) -> Counter:
    """A count that only grows, named `streamlearn_<component>_<noun>_total`."""
    from prometheus_client import REGISTRY, Counter

    name = _name(component, noun, "total")
    found = _once(REGISTRY, name, Counter)
    return found or Counter(name, help, labels)


def gauge(component: str, noun: str, unit: str, help: str, labels: Sequence[str] = ()) -> Gauge:
    """A number that moves both ways, named `streamlearn_<component>_<noun>_<unit>`."""
    from prometheus_client import REGISTRY, Gauge

    name = _name(component, noun, unit)
    found = _once(REGISTRY, name, Gauge)
    return found or Gauge(name, help, labels)


def histogram(
    component: str, noun: str, unit: str, help: str, buckets: Sequence[float], *, labels: Sequence[str] = ()
) -> Histogram:
    """A distribution, named `streamlearn_<component>_<noun>_<unit>`; buckets fit what is measured."""
    from prometheus_client import REGISTRY, Histogram

    name = _name(component, noun, unit)
    found = _once(REGISTRY, name, Histogram)
    return found or Histogram(name, help, labels, buckets=buckets)


def counter_family(component: str, noun: str, help: str, labels: Sequence[str] = ()) -> CounterMetricFamily:
    """What a collector gives when it is asked for counts, named as `counter` names them."""
    from prometheus_client.core import CounterMetricFamily

    return CounterMetricFamily(_name(component, noun, "total"), help, labels=labels)


def gauge_family(component: str, noun: str, unit: str, help: str, labels: Sequence[str] = ()) -> GaugeMetricFamily:
    """What a collector gives when it is asked for numbers, named as `gauge` names them."""
    from prometheus_client.core import GaugeMetricFamily

    return GaugeMetricFamily(_name(component, noun, unit), help, labels=labels)


def histogram_family(
    component: str, noun: str, unit: str, help: str, labels: Sequence[str] = ()
) -> HistogramMetricFamily:
    """What a collector gives when it is asked for a distribution, named as `histogram` names them."""
    from prometheus_client.core import HistogramMetricFamily

    return HistogramMetricFamily(_name(component, noun, unit), help, labels=labels)


class MetricsServer:
    """Serves this process's metrics on loopback, over HTTP at /metrics.

    Args:
        port: The port; 0 takes a free one.

    Raises:
        ServiceError: The port is taken.
    """

    def __init__(self, port: int) -> None:
        from prometheus_client import start_http_server

        try:
            self._server, self._thread = start_http_server(port, addr="127.0.0.1")
        except OSError as error:
            message = f"metrics cannot be served on 127.0.0.1:{port}: {error.strerror}"
            raise ServiceError(message, help="set telemetry.metrics_port to a free port, or to 0") from error
        self.port: int = self._server.server_port

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def serve_metrics(settings: TelemetrySettings) -> MetricsServer | None:
    """Serve metrics when the settings name a port."""
    return MetricsServer(settings.metrics_port) if settings.metrics_port else None


def metrics_text() -> str:
    """All metrics of this process, as Prometheus reads them."""
    from prometheus_client import REGISTRY, generate_latest

    return generate_latest(REGISTRY).decode()


def _name(component: str, noun: str, unit: str) -> str:
    assert component in COMPONENTS, component
    assert unit in UNITS, unit
    assert _NAME.fullmatch(noun), noun
    return f"streamlearn_{component}_{noun}_{unit}"


def _once(registry: CollectorRegistry, name: str, kind: type[Metric]) -> Metric | None:
    """A metric registered before: modules of one process may ask for the same one."""
    found = registry._names_to_collectors.get(name)
    assert found is None or isinstance(found, kind), f"{name} is a {type(found).__name__}"
    return found
