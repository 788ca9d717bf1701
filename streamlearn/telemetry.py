"""Logs and metrics of a process: their names, formats and outputs.

Logs are for people unless a setting asks for JSON. Metrics are named `streamlearn_<component>_<noun>_<unit>`; each
process serves its own on a loopback port.
"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from streamlearn.errors import ServiceError
from streamlearn.settings.telemetry import TelemetrySettings

if TYPE_CHECKING:
    from prometheus_client import Counter, Gauge, Histogram
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

__all__ = [
    "AGES_S", "MetricsServer", "counter", "counter_family", "gauge", "gauge_family", "histogram", "histogram_family",
    "metrics_text", "serve_metrics", "set_up_logging",
]  # fmt: skip

COMPONENTS = ("events", "ingest", "trainer", "ps", "publisher", "serving", "topics", "replay", "supervision", "console")
UNITS = (
    "total", "seconds", "bytes", "ratio", "rows", "events", "requests", "version", "versions", "records", "offsets",
    "nats", "processes",
)  # fmt: skip
AGES_S = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3_600.0, 21_600.0, 86_400.0)
"""Buckets of a histogram of ages."""
Metric = TypeVar("Metric")
_LOG = logging.getLogger(__name__)
_CONNECTIONS_MAX, _HEAD_BYTES_MAX = 16, 16 << 10
_POLL_S, _ACCEPT_PAUSE_S, _EVICTION_S_MAX = 0.25, 0.1, 1.0
_LOOPBACK = re.compile(r"(?:127\.[0-9]+\.[0-9]+\.[0-9]+|localhost|\[::1\])(?::[0-9]*)?", re.IGNORECASE)
_NAME = re.compile(r"[a-z][a-z0-9_]*")
# A line may contain text from outside. Escaped, it cannot move the terminal's cursor or fake another log line.
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(9), *range(11, 32), *range(127, 160))} | {10: "\n  "}
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
        line = f"{time} {record.levelname.lower():7} {logger}: {record.getMessage()}{extra}".translate(_ESCAPES)
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


class MetricsServer:
    """Serves this process's metrics on loopback, over HTTP at /metrics; port 0 picks a free port.

    Raises:
        ServiceError: The port is taken.
    """

    def __init__(self, port: int) -> None:
        try:
            self._server = _MetricsListener(port)
        except OSError as error:
            message = f"metrics cannot be served on 127.0.0.1:{port}: {error.strerror}"
            raise ServiceError(message, help="set telemetry.metrics_port to a free port, or to 0") from error
        self.port: int = self._server.server_port
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_S,), name="metrics-server", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _MetricsListener(ThreadingHTTPServer):
    """Accepts connections up to a bound; any program of this machine may open them."""

    block_on_close = False
    request_queue_size = 64

    def __init__(self, port: int) -> None:
        self._free = threading.BoundedSemaphore(_CONNECTIONS_MAX)
        self._lock = threading.Lock()
        # Connections that wait for their peer, oldest first: a new one may take their place.
        self._waiting: dict[socket.socket, None] = {}
        super().__init__(("127.0.0.1", port), _MetricsConnection)

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection."""
        try:
            return super().get_request()
        except OSError:
            # Without free file descriptors the connection stays in the queue, and the next attempt follows at once.
            time.sleep(_ACCEPT_PAUSE_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give a connection a thread, or close it."""
        if not self._free.acquire(blocking=False) and not self._evict():
            self.shutdown_request(request)
            return
        self.set_waiting(request, True)
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread can be started
            self._release(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve one connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._release(request)

    def set_waiting(self, connection: socket.socket, is_waiting: bool) -> None:
        """Set whether a connection waits for its peer."""
        with self._lock:
            self._waiting.pop(connection, None)
            if is_waiting:
                self._waiting[connection] = None

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log a failed connection for debugging only: callers leave early, or do not speak HTTP."""
        _LOG.debug("a connection of %s ended early", client_address, exc_info=True)

    def _evict(self) -> bool:
        """Cut the oldest waiting connection, and return whether its place became free."""
        with self._lock:
            oldest = next(iter(self._waiting), None)
            if oldest is None:
                return False
            del self._waiting[oldest]
        with suppress(OSError):
            oldest.shutdown(socket.SHUT_RDWR)
        return self._free.acquire(timeout=_EVICTION_S_MAX)

    def _release(self, connection: socket.socket) -> None:
        self.set_waiting(connection, False)
        self._free.release()


class _MetricsConnection(BaseHTTPRequestHandler):
    """One connection: one request and its answer."""

    server: _MetricsListener
    server_version, sys_version = "streamlearn", ""
    timeout = 5

    def setup(self) -> None:
        """Read the head, up to a bound."""
        super().setup()
        head = b""
        while b"\r\n\r\n" not in head and len(head) < _HEAD_BYTES_MAX:
            data = self.connection.recv(_HEAD_BYTES_MAX - len(head))
            if not data:
                break
            head += data
        self.rfile.close()
        self.rfile = BytesIO(head if b"\r\n\r\n" in head else b"")

    def do_GET(self) -> None:
        """Answer with the metrics; a page of another site does not get them through a name of its own."""
        from prometheus_client import REGISTRY
        from prometheus_client.exposition import choose_encoder

        hosts = self.headers.get_all("host", [])
        if len(hosts) != 1 or not _LOOPBACK.fullmatch(hosts[0]):
            self.send_error(403, "metrics are given only to a loopback host, such as 127.0.0.1")
            return
        self.server.set_waiting(self.connection, False)
        encode, content_type = choose_encoder(self.headers.get("accept", ""))
        body = encode(REGISTRY)
        self.server.set_waiting(self.connection, True)
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


def serve_metrics(settings: TelemetrySettings) -> MetricsServer | None:
    """Serve metrics if the settings name a port."""
    return MetricsServer(settings.metrics_port) if settings.metrics_port else None


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
