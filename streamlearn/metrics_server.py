"""MetricsServer: this process's metrics for Prometheus, over HTTP."""

from __future__ import annotations

from contextlib import AbstractContextManager, closing, nullcontext
from http.server import BaseHTTPRequestHandler
from io import BytesIO
from pathlib import Path

from streamlearn.access.address import check_address, host_and_port
from streamlearn.access.renewal import GivenToken, is_token, open_token
from streamlearn.bounded_server import BoundedServer
from streamlearn.errors import ServiceError
from streamlearn.loopback import names_loopback
from streamlearn.settings.telemetry import TelemetrySettings

__all__ = ["MetricsServer", "serve_metrics"]

_CONNECTIONS_MAX, _ARRIVAL_S, _HEAD_BYTES_MAX = 16, 5.0, 16 << 10


def serve_metrics(
    settings: TelemetrySettings, address: str | None = None
) -> AbstractContextManager[MetricsServer | None]:
    """Serve metrics until the context ends, at an address or that of the settings; without one, serve nothing.

    Callers need the token of the settings, if they name one.

    Raises:
        ConfigError: The address is invalid, or can be reached from other machines without a token.
        UsageError: The file of the token cannot be read.
        ServiceError: The port is taken.
    """
    address = address or settings.listen
    if not address:
        return nullcontext()
    token = open_token(Path(settings.token_file)) if settings.token_file else None
    check_address("telemetry.listen", address, has_token=token is not None, option="telemetry.token_file =")
    return closing(MetricsServer(address, token))


class MetricsServer:
    """Serves at /metrics until it is closed; port 0 picks a free port.

    With a token, callers must send it. Without one, any program of this machine may connect.

    Raises:
        ServiceError: The port is taken.
    """

    def __init__(self, address: str, token: GivenToken | None = None) -> None:
        connection = type("Connection", (_Connection,), {"token": token})
        host, port = host_and_port("telemetry.listen", address)
        try:
            self._server = BoundedServer(
                (host, port), connection, connections_max=_CONNECTIONS_MAX, arrival_s=_ARRIVAL_S
            )
        except OSError as error:
            message = f"metrics cannot be served on {address}: {error.strerror}"
            raise ServiceError(message, help="set telemetry.listen to a free port, or leave it empty") from error
        self.port: int = self._server.server_port
        self._server.start("metrics-server")

    def close(self) -> None:
        """Stop serving."""
        self._server.close()


class _Connection(BaseHTTPRequestHandler):
    """One connection: one request and its answer."""

    server: BoundedServer
    token: GivenToken | None
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
        """Answer with the metrics."""
        from prometheus_client import REGISTRY
        from prometheus_client.exposition import choose_encoder

        if not self._is_allowed():
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

    def _is_allowed(self) -> bool:
        """Whether the caller gets the metrics; otherwise it gets an error.

        A page of another site must not read them through a name of its own. It cannot know a token.
        """
        if self.token is not None:
            sent = self.headers.get("authorization", "").encode("latin-1", "replace")
            scheme, _, token = sent.partition(b" ")
            if scheme.lower() == b"bearer" and is_token(self.token, token.strip()):
                return True
            self.send_response(401)
            self.send_header("WWW-Authenticate", "Bearer")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return False
        hosts = self.headers.get_all("host", [])
        if len(hosts) == 1 and names_loopback(hosts[0]):
            return True
        self.send_error(403, "metrics are given only to a loopback host, such as 127.0.0.1")
        return False

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""
