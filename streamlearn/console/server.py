"""ConsoleServer: the console on a socket, with one request per connection, and bounds on head, body and time.

It knows nothing about requests: see `Api`.
"""

from __future__ import annotations

import gzip
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from http.client import LineTooLong
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from streamlearn.access.address import host_and_port, socket_address
from streamlearn.access.renewal import GivenToken, ServerTls
from streamlearn.bounded_server import BoundedServer
from streamlearn.console.answer import Answer, refusal
from streamlearn.console.api import Api, Route
from streamlearn.console.gather import Gatherer
from streamlearn.console.guard import Guard
from streamlearn.console.state import state_of
from streamlearn.console.trouble import LateAfter
from streamlearn.console.watch import Watch
from streamlearn.errors import ServiceError
from streamlearn.given_up import GivenUpProcess
from streamlearn.hints import Given
from streamlearn.loopback import is_loopback
from streamlearn.settings import Settings
from streamlearn.settings.console import ConsoleSettings
from streamlearn.telemetry import counter, gauge
from streamlearn.versions.pointer.facts import Facts
from streamlearn.versions.pointer.model import Model

__all__ = ["ConsoleServer"]

_GZIP_BYTES_MIN = 1_024
# Training is late if no version came for five publish intervals, but not before five minutes.
_LATE_INTERVALS, _LATE_S = 5, 300.0
_VERSION_INTERVALS = 2
_DRAINED_BYTES_MAX, _DRAIN_S = 256 << 10, 1.0
# The time for the store and the registry in a move, in addition to the wait for nodes.
_MOVE_S = 120.0
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class ConsoleServer:
    """The console of one model, from its construction until it is closed; it listens at `address`, HOST:PORT.

    Without a token for moves it is read-only. `tls` are the files of a certificate and its key. `served_name`,
    `dead_share`, `given_up`, `features` and `workers` are those of `Gatherer`. `given` completes the commands that the
    page shows. `first_window` says when there will be figures of validation, as `AppFolder.first_window` does.
    """

    def __init__(
        self,
        model: Model,
        settings: ConsoleSettings,
        *,
        token: GivenToken | None = None,
        tls: tuple[Path, Path] | None = None,
        served_name: str = "",
        dead_share: Callable[[], float] = lambda: 0.0,
        given_up: Callable[[], tuple[GivenUpProcess, ...]] = tuple,
        features: Callable[[], Facts | None] = lambda: None,
        workers: Callable[[], Facts | None] = lambda: None,
        given: Given | None = None,
        first_window: Callable[[Sequence[int]], str] = lambda _: "",
    ) -> None:
        server_tls = None if tls is None else ServerTls(*tls)
        self._server = _listen(settings)
        self._server.tls = server_tls
        self.address = socket_address(self._server.socket)
        self.url = f"{'http' if tls is None else 'https'}://{self.address}/"
        gatherer = Gatherer(
            model, settings, served_name=served_name, dead_share=dead_share, given_up=given_up, features=features,
            workers=workers,
        )  # fmt: skip
        given, after = given or Given(model=model.name), _late_after(model.settings)
        self._watch = Watch(
            gatherer.gather,
            lambda found: state_of(
                found, versions_max=settings.versions_max, after=after, given=given, first_window=first_window
            ),
            refresh_s=settings.refresh_s,
            idle_s=settings.idle_s,
        )
        guard = Guard(token, is_loopback=bool(is_loopback(self.address.rpartition(":")[0])))
        self._server.api = Api(model, self._watch, guard, settings, given)
        self._model = model
        self._server.start("console-server")

    def close(self) -> None:
        """Stop serving; requests in flight are cut off."""
        self._server.close()
        self._watch.close()
        self._model.close()

    def __enter__(self) -> ConsoleServer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _late_after(settings: Settings) -> LateAfter:
    interval_s = settings.publisher.publish_interval_s
    return LateAfter(
        beat_s=settings.replica.beat_s,
        silent_s=settings.registry.node_ttl_s,
        # Two intervals, seen with the delay of listing versions.
        version_s=_VERSION_INTERVALS * interval_s + settings.console.versions_s,
        training_s=max(_LATE_S, _LATE_INTERVALS * interval_s),
    )


class _Server(BoundedServer):
    """Counts its connections and answers."""

    api: Api
    tls: ServerTls | None = None

    def __init__(self, address: tuple[str, int], settings: ConsoleSettings) -> None:
        self.settings = settings
        self._open = gauge(
            "console", "connections", "ratio", "Open connections, as a share of the most that are allowed."
        )
        self._answers = counter("console", "answers", "Answers by status.", ("status",))
        super().__init__(address, _Connection, connections_max=settings.connections_max, arrival_s=settings.arrival_s)

    def wrap(self, connection: socket.socket) -> socket.socket:
        """Return the connection with TLS, if there is any; its own thread does the handshake."""
        if self.tls is None:
            return connection
        return self.tls.context().wrap_socket(connection, server_side=True, do_handshake_on_connect=False)

    def refuse(self, connection: socket.socket) -> None:
        """Answer 503 without waiting for the client."""
        self.count(503)
        if self.tls is None:
            connection.setblocking(False)
            with suppress(OSError):
                connection.sendall(
                    b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
                )

    def opened(self, count: int) -> None:
        """Show how many connections are open."""
        self._open.set(count / self.connections_max)

    def count(self, status: int) -> None:
        """Count an answer."""
        self._answers.labels(str(status)).inc()


class _Connection(BaseHTTPRequestHandler):
    """One connection: one request and its answer."""

    server: _Server
    server_version, sys_version = "streamlearn", ""
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        """Do the TLS handshake, if any, and bound the size of the head."""
        if isinstance(self.request, ssl.SSLSocket):
            self.request.do_handshake()
        super().setup()
        self.rfile: Any = _Head(self.rfile, self.server.settings.header_bytes_max)

    def handle(self) -> None:
        """Answer one request."""
        self.close_connection = True
        self._method, self._headers = "", dict[str, str]()
        try:
            self.raw_requestline = self.rfile.readline()
        except LineTooLong:
            self.requestline, self.request_version = "", "HTTP/1.1"
            self._send(refusal(431, "the headers of the request are too large", "send fewer and shorter headers"))
            return
        if not self.raw_requestline or not self.parse_request():
            return
        self.server.set_waiting(self.connection, False)
        if len(self.headers.get_all("host", [])) > 1:
            self._send(refusal(400, "the request names two hosts", "send one Host header"))
            return
        self._method = self.command
        self._headers = {name.lower(): value for name, value in self.headers.items()}
        self._send(self._answer())

    def finish(self) -> None:
        """Let the answer arrive: read and discard what the client still sends, up to a bound."""
        self.server.set_waiting(self.connection, True)
        with suppress(OSError):
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(_DRAIN_S)
            left = _DRAINED_BYTES_MAX
            while left > 0 and (data := self.connection.recv(min(left, 16_384))):
                left -= len(data)
        super().finish()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send the library's errors in the format of all others."""
        if not hasattr(self, "_headers"):
            self._headers = {}
        self._send(refusal(int(code), message or explain or "the request cannot be parsed"))

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: requests are counted."""

    def _answer(self) -> Answer:
        path = self.path.partition("?")[0]
        route = self.server.api.route(self._method, path, self._headers)
        if not isinstance(route, Route):
            return route
        body: bytes | Answer = self._body() if route.has_body else b""
        if isinstance(body, Answer):
            return body
        if route.has_body:
            self.server.give_time(self.connection, self.server.settings.move_wait_s + _MOVE_S)
        return route.answer(body)

    def _body(self) -> bytes | Answer:
        """Read the body; refuse it by its stated length before reading any of it."""
        bytes_max, length = self.server.settings.body_bytes_max, self._headers.get("content-length", "")
        if "transfer-encoding" in self._headers or not (length.isascii() and length.isdecimal() and len(length) < 16):
            return refusal(411, "the length of the body is missing", "send Content-Length, and no Transfer-Encoding")
        size = int(length)
        if size > bytes_max:
            return refusal(413, f"the body has {size} bytes; at most {bytes_max} are allowed", "send a smaller body")
        body: bytes = self.rfile.read(size)
        if len(body) < size:
            return refusal(400, f"the body ended after {len(body)} of {length} bytes", "send the whole body")
        return body

    def _send(self, answer: Answer) -> None:
        body = answer.body
        self.server.count(answer.status)
        self.server.give_time(self.connection, self.server.settings.arrival_s)
        self.send_response(answer.status)
        for name, value in (_HEADERS | answer.headers).items():
            self.send_header(name, value)
        if len(body) >= _GZIP_BYTES_MIN and "gzip" in self._headers.get("accept-encoding", ""):
            body = gzip.compress(body, 1)
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Type", answer.kind)
        self.send_header("Cache-Control", "no-cache" if answer.is_static else "no-store")
        self.send_header("Vary", "Accept-Encoding")
        if answer.status != 304:
            self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)


class _Head:
    """The input of a connection: all lines of a head together are bounded; a body's length is checked before."""

    def __init__(self, file: Any, bytes_max: int) -> None:
        self._file, self._left = file, bytes_max
        self.read, self.close = file.read, file.close

    def readline(self, size: int = -1) -> bytes:
        """Read a line of the head."""
        line: bytes = self._file.readline(self._left + 1)
        self._left -= len(line)
        if self._left < 0:
            what = "head"
            raise LineTooLong(what)
        return line


def _listen(settings: ConsoleSettings) -> _Server:
    try:
        return _Server(host_and_port("console.listen", settings.listen), settings)
    except OSError as error:
        message = f"the console cannot be served at {settings.listen}: {error.strerror or error}"
        raise ServiceError(message, help="set console.listen to a free port of this machine, or to port 0") from error
