"""Kafka-python's connections, changed where it has no option: sockets, and how answers arrive. No requests."""

from __future__ import annotations

import logging
import selectors
import warnings
from typing import Any

with warnings.catch_warnings():  # kafka-python reads its schemas with a call that Python 3.11 and 3.12 deprecate
    warnings.filterwarnings("ignore", "(read|open)_text is deprecated", DeprecationWarning)
    import kafka.errors
    from kafka.net.connection import KafkaConnection
    from kafka.net.inet import KafkaNetSocket
    from kafka.net.manager import KafkaConnectionManager
    from kafka.net.selector import NetworkSelector, Task
    from kafka.net.transport import KafkaTCPTransport
    from kafka.protocol.frame import KafkaBytes
    from kafka.protocol.parser import KafkaProtocol

__all__ = ["CLIENT_ID", "SOCKETS_URL", "Connections", "Selector", "silence_kafka_python"]

CLIENT_ID = "streamlearn"
SOCKETS_URL = "streamlearn://direct"
"""The `proxy_url` that gives a client of kafka-python our sockets."""
_SIZE_BYTES, _ANSWER_BYTES_AT_ONCE = 4, 8 * 1_048_576
_RECEIVE_BYTES = 262_144


class _Socket(KafkaNetSocket):  # type: ignore[misc]
    """The socket of our connections. It closes a refused socket, which kafka-python leaves to the garbage collector.

    The scheme of `proxy_url` selects it, so other users of kafka-python keep theirs.
    """

    SCHEMES = ("streamlearn",)

    async def sock_connect(self, net: Any, sock: Any, *args: Any, **named: Any) -> Any:
        try:
            return await super().sock_connect(net, sock, *args, **named)
        except BaseException:
            sock.close()
            raise


class Selector(NetworkSelector):  # type: ignore[misc]
    """Waits for sockets. Kafka-python looks one up first; if it is new, that costs it a text with its addresses."""

    def register_event(self, fileobj: Any, event: int, task: Any) -> None:
        """See kafka-python."""
        if fileobj.fileno() in self._selector.get_map() or not isinstance(task, Task):
            super().register_event(fileobj, event, task)
        else:
            self._selector.register(fileobj, event, (task, None) if event == selectors.EVENT_READ else (None, task))


class _Answer(KafkaBytes):  # type: ignore[misc]
    """An answer's bytes, which are not copied once more when they come, and when they are read."""

    _idx: int

    def write(self, data: memoryview) -> None:
        begin, self._idx = self._idx, self._idx + len(data)
        if self._idx > len(self):
            self.extend(bytes(self._idx - len(self)))
        memoryview(self)[begin : self._idx] = data

    def read(self, nbytes: int | None = None) -> bytes | memoryview:
        """Return the next bytes, or a view of all that are left."""
        return memoryview(self)[self._idx :] if nbytes is None else super().read(nbytes)


class _Parser(KafkaProtocol):  # type: ignore[misc]
    """Takes memory for a large answer as its bytes arrive; kafka-python takes all that an answer says it needs."""

    _size, _answer_bytes = b"", 0
    _answer: Any = None

    def receive_bytes(self, data: bytes) -> list[Any]:
        answers, at, view = [], 0, memoryview(data)
        while at < len(data):
            if self._answer is None:
                more = data[at : at + _SIZE_BYTES - len(self._size)]
                self._size, at = self._size + more, at + len(more)
                if len(self._size) < _SIZE_BYTES:
                    break
                self._answer_bytes, self._size = int.from_bytes(self._size, "big", signed=True), b""
                self._validate_frame_size(self._answer_bytes)
                self._answer = _Answer(min(self._answer_bytes, _ANSWER_BYTES_AT_ONCE))
            begin, at = at, min(len(data), at + self._answer_bytes - self._answer.tell())
            self._answer.write(view[begin:at])  # which makes it longer if it must
            if self._answer.tell() == self._answer_bytes:
                self._answer.seek(0)
                answers.append(self._process_response(self._answer))
                self._answer = None
        return answers


class _Transport(KafkaTCPTransport):  # type: ignore[misc]
    """Receives much at once; kafka-python makes a call, and an object, of every 4,096 bytes."""

    def _sock_recv(self) -> tuple[bytes, Exception | None]:
        try:
            data = self._sock.recv(_RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return b"", None
        except OSError as error:
            return b"", kafka.errors.KafkaConnectionError(error)
        return data, None if data else kafka.errors.KafkaConnectionError("socket disconnected")


class _Connection(KafkaConnection):  # type: ignore[misc]
    """A connection with our parser and, without TLS, our transport."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if type(transport) is KafkaTCPTransport:
            transport.__class__ = _Transport
        self.parser = _Parser(**self.config)


class Connections(KafkaConnectionManager):  # type: ignore[misc]
    """Makes our connections, which kafka-python has no option for."""

    def get_connection(self, *args: Any, **named: Any) -> Any:
        """See kafka-python."""
        connection = super().get_connection(*args, **named)
        connection.__class__ = _Connection
        return connection


class _OwnThreadFilter(logging.Filter):
    """Drops kafka-python's log of every failed attempt; one of our errors reports a broker that is away.

    Records of other threads come from other users of kafka-python, and pass.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.threadName or "").endswith(CLIENT_ID)


_OWN_THREAD_FILTER = _OwnThreadFilter()


def silence_kafka_python() -> None:
    """Drop what its loggers log in our threads."""
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if name.split(".")[0] == "kafka" and isinstance(logger, logging.Logger):
            logger.addFilter(_OWN_THREAD_FILTER)  # a logger keeps it once, however often it is added
