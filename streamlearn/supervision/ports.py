"""Ports: free ports of the loopback address, and a check whether a port is taken."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from streamlearn.errors import ServiceError

__all__ = ["LOOPBACK", "free_ports", "is_taken", "listener", "taken_error"]

LOOPBACK = "127.0.0.1"
_PICKS_MAX = 200
_LOWEST = 15_000
# Connections that wait while a node restarts; beyond it, they try again.
_BACKLOG = 1_024
_CLIENT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int) -> Sequence[int]:
    """Return different ports of the loopback address that nothing listens on.

    They are below the range of the kernel's ports for clients. A client that keeps connecting to a killed server on a
    port of that range may get the same port for itself, reach itself, and so keep the server from coming back.
    """
    highest = _client_range_start()
    ports: list[int] = []
    for _ in range(_PICKS_MAX):
        if len(ports) == count:
            return ports
        port = _LOWEST + secrets.randbelow(highest - _LOWEST)
        if port not in ports and not is_taken(port):
            ports.append(port)
    message = f"found {len(ports)} of {count} free ports between {_LOWEST} and {highest} on {LOOPBACK}"
    raise ServiceError(message, help="end a process that listens there, or name a port")


def is_taken(port: int, host: str = LOOPBACK) -> bool:
    """Return whether something listens on a port of an address of this machine."""
    try:
        listener(port, host).close()
    except OSError:
        return True
    return False


def listener(port: int, host: str = LOOPBACK) -> socket.socket:
    """Return a socket that listens on a port of an address of this machine; raises OSError if it cannot."""
    with ExitStack() as made:
        one = made.enter_context(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET))
        # Remains of an old connection are not a listener.
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind((host, port))
        one.listen(_BACKLOG)
        made.pop_all()
    return one


def taken_error(address: str) -> ServiceError:
    """Return the error that an address is taken."""
    hint = (
        "end the process that listens there, or choose other ports: --set front.listen=127.0.0.1:0 "
        "--set front.http=127.0.0.1:0 picks free ones"
    )
    return ServiceError(f"{address} is already in use", help=hint)


def _client_range_start() -> int:
    try:
        return max(_LOWEST + 1_000, int(_CLIENT_RANGE.read_text().split()[0]))
    except OSError:
        return 32_768
