"""MetricsServer: this process's metrics for Prometheus, over HTTP on a loopback port."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler
from io import BytesIO

from streamlearn.bounded_server import BoundedServer
from streamlearn.errors import ServiceError
from streamlearn.loopback import names_loopback
from streamlearn.settings.telemetry import TelemetrySettings

__all__ = ["MetricsServer", "serve_metrics"]

_CONNECTIONS_MAX, _ARRIVAL_S, _HEAD_BYTES_MAX = 16, 5.0, 16 << 10


def serve_metrics(settings: TelemetrySettings) -> MetricsServer | None:
    """Serve metrics if the settings name a port."""
    return MetricsServer(settings.metrics_port) if settings.metrics_port else None


class MetricsServer:
    """Serves at /metrics until it is closed; port 0 picks a free port. Any program of this machine may connect.

    Raises:
        ServiceError: The port is taken.
    """

    def __init__(self, port: int) -> None:
        try:
            self._server = BoundedServer(
                ("127.0.0.1", port), _Connection, connections_max=_CONNECTIONS_MAX, arrival_s=_ARRIVAL_S
            )
        except OSError as error:
            message = f"metrics cannot be served on 127.0.0.1:{port}: {error.strerror}"
            raise ServiceError(message, help="set telemetry.metrics_port to a free port, or to 0") from error
        self.port: int = self._server.server_port
        self._server.start("metrics-server")

    def close(self) -> None:
        """Stop serving."""
        self._server.close()


class _Connection(BaseHTTPRequestHandler):
    """One connection: one request and its answer."""

    server: BoundedServer
    server_version, sys_version = "streamlearn", ""

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
        if len(hosts) != 1 or not names_loopback(hosts[0]):
            self.send_error(403, "metrics are given only to a loopback host, such as 127.0.0.1")
            return
        self.server.set_waiting(self.connection, False)
        encode, content_type = choose_encoder(self.headers.get("accept", ""))
        body = encode(REGISTRY)
        self.server.set_waiting(self.connection, True)
        self.server.give_time(self.connection, _ARRIVAL_S)
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""
