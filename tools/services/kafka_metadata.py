"""Kafka's Metadata request, version 2: the cheapest check that a broker works.

It uses no client library, so that a wait for a broker needs neither its import nor its retries.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass

__all__ = ["ClusterMetadata", "read_cluster"]

_METADATA, _METADATA_VERSION = 3, 2
_CLIENT = b"streamlearn-tools"
_REPLY_BYTES_MAX = 1 << 20


@dataclass(frozen=True)
class ClusterMetadata:
    """A broker's description of its cluster.

    Attributes:
        cluster_id: The id that the storage was formatted with; None while the broker does not know it.
        brokers_count: Number of brokers that accept clients.
    """

    cluster_id: str | None
    brokers_count: int


def read_cluster(host: str, port: int, wait_s_max: float) -> ClusterMetadata | None:
    """Return the cluster of the broker at this address, or None if it does not answer (yet)."""
    topics_none = struct.pack(">i", 0)
    body = struct.pack(">hhih", _METADATA, _METADATA_VERSION, 1, len(_CLIENT)) + _CLIENT + topics_none
    try:
        with socket.create_connection((host, port), timeout=wait_s_max) as connection:
            connection.sendall(struct.pack(">i", len(body)) + body)
            (reply_bytes,) = struct.unpack(">i", _receive(connection, 4))
            if not 0 < reply_bytes <= _REPLY_BYTES_MAX:
                return None
            return _parse(_receive(connection, reply_bytes))
    except (OSError, EOFError, struct.error):
        return None


def _receive(connection: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        piece = connection.recv(count - len(received))
        if not piece:
            raise EOFError
        received += piece
    return received


def _parse(reply: bytes) -> ClusterMetadata:
    (brokers_count,) = struct.unpack_from(">i", reply, 4)  # after the correlation id
    at = 8
    for _ in range(brokers_count):
        _, at = _string(reply, at + 4)  # node id, host
        _, at = _string(reply, at + 4)  # port, rack
    cluster_id, _ = _string(reply, at)
    return ClusterMetadata(cluster_id, brokers_count)


def _string(reply: bytes, at: int) -> tuple[str | None, int]:
    (length,) = struct.unpack_from(">h", reply, at)
    end = at + 2 + max(0, length)
    return (None if length < 0 else reply[at + 2 : end].decode(errors="replace")), end
