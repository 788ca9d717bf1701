"""Hello: a check whether callers reach a node. It sends the first bytes of an HTTP/2 client, which need no token."""

from __future__ import annotations

import socket
import ssl
from typing import Any

__all__ = ["answers_hello", "is_at_door"]

# RFC 9113, 3.4: the client's preface and SETTINGS frame; the server replies with a SETTINGS frame.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_SETTINGS = b"\0\0\0\x04\0\0\0\0\0"
_HEAD_BYTES, _KIND_AT, _SETTINGS_KIND = 9, 3, 4


def answers_hello(address: str, wait_s: float, *, tls: bool) -> bool:
    """Return whether a server of this process at HOST:PORT accepts connections and its threads reply.

    Each step waits for `wait_s` at most. The certificate is not verified, because no secret is sent.
    """
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), wait_s) as plain:
            if not tls:
                return _is_answered(plain)
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            context.set_alpn_protocols(["h2"])
            with context.wrap_socket(plain) as wrapped:
                return _is_answered(wrapped)
    except OSError:
        return False


def is_at_door(native_node: Any, wait_s: float, *, tls: bool) -> bool:
    """Return whether a node's threads accept callers, or turn them away because all its connections are taken.

    While it stands aside, another node answers at its address: then its threads are asked directly.
    """
    if native_node.is_aside:
        return bool(native_node.works(wait_s))
    before = dict(native_node.refused())["connection"]
    return answers_hello(native_node.grpc, wait_s, tls=tls) or dict(native_node.refused())["connection"] != before


def _is_answered(connection: socket.socket) -> bool:
    connection.sendall(_PREFACE + _SETTINGS)
    head = b""
    while len(head) < _HEAD_BYTES and (more := connection.recv(_HEAD_BYTES - len(head))):
        head += more
    return len(head) == _HEAD_BYTES and head[_KIND_AT] == _SETTINGS_KIND
