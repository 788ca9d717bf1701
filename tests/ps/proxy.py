"""A proxy before a shard that, when it is told to, cuts connections, holds frames back and sends requests twice."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading

__all__ = ["Proxy"]

_HEADER = struct.Struct("<IIHHQI")  # magic, bytes of the payload, kind, flags, request, checksum
_CHECKSUM_BYTES = 4
_PUSH, _ORDER = 3, 4
_CONNECT_S_MAX = 1.0


class Proxy:
    """Carries frames to a port of this machine and bytes back.

    Args:
        port: The shard's.
        seed: Of what happens when.
    """

    def __init__(self, port: int, seed: int) -> None:
        self._port, self._rng = port, random.Random(seed)
        self._is_troubled = self._loses_answer = False
        self._deaf: set[socket.socket] = set()
        self._open: set[socket.socket] = set()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._closed = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def trouble(self, is_troubled: bool) -> None:
        """From now on make trouble, or none."""
        self._is_troubled = is_troubled

    def lose_answer(self) -> None:
        """Carry the next order, and cut the connection instead of carrying its answer."""
        self._loses_answer = True

    def close(self) -> None:
        """Cut everything."""
        self._closed.set()
        for one in (self._listening, *tuple(self._open)):
            _end(one)

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._port), _CONNECT_S_MAX)
                server.settimeout(None)
            except OSError:
                _end(client)
                continue
            self._open |= {client, server}
            for work in (self._carry_frames, self._carry_bytes):
                threading.Thread(target=work, args=(client, server), daemon=True).start()

    def _carry_frames(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                header = _exactly(client, _HEADER.size)
                _, size, kind, *_ = _HEADER.unpack(header)
                frame = header + _exactly(client, size + _CHECKSUM_BYTES)
                if kind == _ORDER and self._loses_answer:
                    self._loses_answer = False
                    self._deaf.add(client)
                chance = self._rng.random() if self._is_troubled else 1.0
                if chance < 0.01:
                    server.sendall(frame[: len(frame) // 2])
                    break
                if chance < 0.03:
                    self._closed.wait(0.02)
                server.sendall(frame)
                if chance < 0.2 and kind == _PUSH:
                    server.sendall(frame)
        self._forget(client, server)

    def _carry_bytes(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 16):
                if client in self._deaf or (self._is_troubled and self._rng.random() < 0.01):
                    break
                client.sendall(data)
        self._forget(client, server)

    def _forget(self, *ends: socket.socket) -> None:
        for one in ends:
            self._open.discard(one)
            self._deaf.discard(one)
            _end(one)


def _exactly(source: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = source.recv(count - len(data))
        if not more:
            raise EOFError
        data += more
    return data


def _end(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
