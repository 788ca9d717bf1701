"""BoundedServer: the standard library's threaded HTTP server with bounds on connections and on their time.

It suffices for a page or metrics with a few visitors, and needs no security updates of its own. It knows nothing of
requests: the class of a connection does.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["BoundedServer"]

_LOG = logging.getLogger(__name__)
_POLL_S, _ACCEPT_PAUSE_S, _EVICTION_S_MAX = 0.25, 0.1, 1.0


class BoundedServer(ThreadingHTTPServer):
    """Serves connections, each in a thread, up to a bound. It ends those that take too long.

    At the bound, a new connection takes the place of the oldest one that waits for its peer.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(
        self,
        address: tuple[str, int],
        connection: type[BaseHTTPRequestHandler],
        *,
        connections_max: int,
        arrival_s: float,
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.connections_max, self.arrival_s = connections_max, arrival_s
        self._free = threading.BoundedSemaphore(connections_max)
        self._lock = threading.Lock()
        self._deadlines: dict[socket.socket, float] = {}
        # Connections that wait for their peer, oldest first.
        self._waiting: dict[socket.socket, None] = {}
        self._thread: threading.Thread | None = None
        super().__init__(address, connection)

    def start(self, name: str) -> None:
        """Serve in a thread of this name."""
        self._thread = threading.Thread(target=self.serve_forever, args=(_POLL_S,), name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving; requests in flight are cut off."""
        if self._thread is not None:
            self.shutdown()
            self._thread.join()
        self.server_close()
        self._cut(float("inf"))

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection."""
        try:
            connection, peer = super().get_request()
        except OSError:
            # Without free file descriptors the connection stays in the queue, and the next attempt follows at once.
            time.sleep(_ACCEPT_PAUSE_S)
            raise
        connection.settimeout(self.arrival_s)
        return self.wrap(connection), peer

    def wrap(self, connection: socket.socket) -> socket.socket:
        """Return the connection, for example with TLS."""
        return connection

    def refuse(self, connection: socket.socket) -> None:
        """Answer a connection that finds no free place; it is closed afterwards."""

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give a connection a thread, or close it."""
        if not self._free.acquire(blocking=False) and not self._evict():
            self.refuse(request)
            self.shutdown_request(request)
            return
        self.give_time(request, 2 * self.arrival_s)
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
        """Set whether a new connection may replace this one: before its head has arrived, and after its answer."""
        with self._lock:
            self._waiting.pop(connection, None)
            if is_waiting:
                self._waiting[connection] = None

    def give_time(self, connection: socket.socket, seconds: float) -> None:
        """Set the deadline of a connection: a byte now and then would keep it open forever."""
        with self._lock:
            self._deadlines[connection] = time.monotonic() + seconds
            self.opened(len(self._deadlines))

    def opened(self, count: int) -> None:
        """Hear how many connections are open."""

    def service_actions(self) -> None:
        """Cut connections after their deadline."""
        self._cut(time.monotonic())

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log a failed connection for debugging only: visitors leave early, or do not speak HTTP."""
        _LOG.debug("a connection of %s ended early", client_address, exc_info=True)

    def _cut(self, now_s: float) -> None:
        with self._lock:
            late = [connection for connection, until_s in self._deadlines.items() if until_s < now_s]
        for connection in late:
            _shut_down(connection)

    def _evict(self) -> bool:
        """Cut the oldest waiting connection, and return whether its place became free."""
        with self._lock:
            oldest = next(iter(self._waiting), None)
            if oldest is None:
                return False
            del self._waiting[oldest]
        _shut_down(oldest)
        return self._free.acquire(timeout=_EVICTION_S_MAX)

    def _release(self, connection: socket.socket) -> None:
        with self._lock:
            self._deadlines.pop(connection, None)
            self._waiting.pop(connection, None)
            self.opened(len(self._deadlines))
        self._free.release()


def _shut_down(connection: socket.socket) -> None:
    with suppress(OSError):
        # Shut down the plain socket below TLS: another thread may be in the middle of a TLS call.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
