"""RedisCall: one call to a Redis, with its deadline and the most bytes of its answer, and sockets that keep to both.

A socket's own timeout is for one `recv`: a server that sends a byte now and then would hold a call for good.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from redis import BlockingConnectionPool, Connection, Redis, SSLConnection, UnixDomainSocketConnection
from redis._parsers import Encoder, _RESP2Parser
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from streamlearn.versions.pointer.redis_url import RedisUrl

__all__ = ["AnswerTooLarge", "connected", "redis_call"]

# The call that each thread is in.
_THREAD = threading.local()


class AnswerTooLarge(RedisError):
    """An answer has more bytes than its call accepts."""


class _RedisCall:
    def __init__(self, timeout_s: float, bytes_max: int, outer: _RedisCall | None) -> None:
        self._timeout_s, self._bytes_left, self._outer = timeout_s, bytes_max, outer
        self._until_s: float | None = None

    def left_s(self) -> float:
        """Return the time left; raises `TimeoutError` if there is none. The first step of a socket starts the time."""
        now_s = time.monotonic()
        if self._until_s is None:
            self._until_s = now_s + self._timeout_s
        if now_s >= self._until_s:
            raise TimeoutError
        left_s = self._until_s - now_s
        return left_s if self._outer is None else min(left_s, self._outer.left_s())

    def count(self, received_bytes: int) -> None:
        self._bytes_left -= received_bytes
        if self._bytes_left < 0:
            raise AnswerTooLarge


@contextmanager
def redis_call(timeout_s: float, bytes_max: int) -> Iterator[None]:
    """Bound everything that this thread does with a Redis meanwhile. A call within another ends no later than it."""
    outer: _RedisCall | None = getattr(_THREAD, "call", None)
    _THREAD.call = _RedisCall(timeout_s, bytes_max, outer)
    try:
        yield
    finally:
        _THREAD.call = outer


def connected(parsed: RedisUrl, reach_s: float, connections_max: int) -> Redis:
    """Return the client of a Redis, whose sockets keep to the bounds of the calls that use them. It retries nothing."""
    kinds: dict[str, type[Any]] = {"rediss": SSLConnection, "unix": UnixDomainSocketConnection}
    kind = kinds.get(parsed.shown.partition(":")[0], Connection)
    # A unix socket connects at once or fails, and has no keep-alive.
    over_tcp = {"socket_connect_timeout": reach_s, "socket_keepalive": True}
    pool = BlockingConnectionPool(  # type: ignore[no-untyped-call]
        max_connections=connections_max,
        timeout=reach_s,
        connection_class=type(f"Bounded{kind.__name__}", (_BoundedConnection, kind), {}),
        # Not hiredis where that is installed: it makes room for as many entries as an answer promises.
        parser_class=_RESP2Parser,
        command_packer=_Packer(),
        socket_timeout=reach_s,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
        **({} if kind is UnixDomainSocketConnection else over_tcp),
        **parsed.options,
    )
    return Redis(connection_pool=pool)


class _Packer:
    """Packs a command into one piece. redis-py makes a piece of every 6,000 bytes, and sends each by itself."""

    def __init__(self) -> None:
        encoder: Any = Encoder("utf-8", "strict", False)  # type: ignore[no-untyped-call]
        self._encode: Callable[[Any], bytes] = encoder.encode

    def pack(self, name: str, *arguments: Any) -> list[bytes]:
        """Return a command as it is sent."""
        words = name.encode().split()
        words += [one if type(one) is bytes else self._encode(one) for one in arguments]
        packed = [b"*%d\r\n" % len(words)]
        packed += [b"$%d\r\n%b\r\n" % (len(word), word) for word in words]
        return [b"".join(packed)]


class _BoundedConnection:
    """What `bounded` adds to a connection of redis-py."""

    def _connect(self) -> _BoundedSocket:
        self.socket_connect_timeout = _THREAD.call.left_s()
        return _BoundedSocket(super()._connect())  # type: ignore[misc]


class _BoundedSocket:
    """A socket, with or without TLS, whose every step ends with the call that it is for."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock, self._timeout_s = sock, sock.gettimeout()

    def settimeout(self, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s

    def recv(self, bytes_max: int) -> bytes:
        data = self._ready().recv(bytes_max)
        _THREAD.call.count(len(data))
        return data

    def sendall(self, data: bytes | memoryview) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self._ready().send(rest) :]

    def _ready(self) -> socket.socket:
        left_s: float = _THREAD.call.left_s()
        self._sock.settimeout(left_s if self._timeout_s is None else min(left_s, self._timeout_s))
        return self._sock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)
