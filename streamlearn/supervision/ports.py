"""Free ports of the loopback address, and how to tell that one is taken."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Sequence
from pathlib import Path

from streamlearn.errors import ServiceError

__all__ = ["LOOPBACK", "free_ports", "is_taken"]

LOOPBACK = "127.0.0.1"
_PICKS_MAX = 200
_LOWEST = 15_000
_CLIENT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int) -> Sequence[int]:
    """Ports of the loopback address that nobody listens on.

    They lie below the range that the ends of clients' connections are given from: a client that keeps
    connecting to a killed server on a port of that range may be given the same port as its own end, reach
    itself, and so keep the server from ever coming back.

    Args:
        count: How many, all different.

    Raises:
        ServiceError: None was found.
    """
    highest = _client_range_start()
    found: list[int] = []
    for _ in range(_PICKS_MAX):
        if len(found) == count:
            return found
        port = _LOWEST + secrets.randbelow(highest - _LOWEST)
        if port not in found and not is_taken(port):
            found.append(port)
    message = f"found {len(found)} of {count} free ports between {_LOWEST} and {highest} on {LOOPBACK}"
    raise ServiceError(message, help="end a process that listens there, or name a port")


def is_taken(port: int, host: str = LOOPBACK) -> bool:
    """Whether somebody listens on that port.

    Args:
        port: The port.
        host: An address of this machine.
    """
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        # As servers do: an old connection's leftovers are not a listener.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError:
            return True
    return False


def _client_range_start() -> int:
    try:
        return max(_LOWEST + 1_000, int(_CLIENT_RANGE.read_text().split()[0]))
    except OSError:
        return 32_768
