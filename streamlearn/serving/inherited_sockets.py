"""Inherited sockets: listening sockets that systemd, `streamlearn up` or another parent passes to a node.

The parent sets LISTEN_PID, LISTEN_FDS and LISTEN_FDNAMES; see sd_listen_fds(3).
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping
from contextlib import ExitStack
from typing import NamedTuple

from streamlearn.access.address import socket_address
from streamlearn.errors import UsageError

__all__ = ["InheritedSockets", "inherited_sockets"]

_FIRST = 3
_COUNT_MAX = 64
_HELP = "with systemd, use a .socket unit with ListenStream=HOST:PORT and FileDescriptorName=NAME for grpc and for http"


class InheritedSockets(NamedTuple):
    """The listening sockets of a node; None without HTTP."""

    grpc: socket.socket
    http: socket.socket | None

    @property
    def addresses(self) -> tuple[str, str]:
        """HOST:PORT of both; empty without HTTP."""
        return socket_address(self.grpc), socket_address(self.http) if self.http else ""

    @property
    def files(self) -> tuple[int, int | None]:
        """The descriptors of both."""
        return self.grpc.fileno(), self.http.fileno() if self.http else None

    def close(self) -> None:
        """Close this process's descriptors; the sockets stay open for those who have others."""
        for one in filter(None, self):
            one.close()


def inherited_sockets(
    environ: MutableMapping[str, str], *, has_http: bool, first: int = _FIRST
) -> InheritedSockets | None:
    """Take the sockets that the parent passes to this process, from the descriptor `first` on; None if it passes none.

    Processes that this one starts get neither the variables nor the sockets.

    Raises:
        UsageError: They are not those of gRPC and, with `has_http`, of HTTP; or one does not listen by TCP.
    """
    pid, count, names = (environ.pop(name, "") for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"))
    if pid != str(os.getpid()):
        return None
    if not (count.isascii() and count.isdecimal() and 0 < int(count) <= _COUNT_MAX):
        message = f"LISTEN_FDS is {count!r}, which is not a number of sockets"
        raise UsageError(message, help="unset LISTEN_PID, or pass sockets as systemd does")
    expected = ["grpc", "http"] if has_http else ["grpc"]
    if sorted(names.split(":")) != expected or int(count) != len(expected):
        message = f"{count} inherited sockets are named {names!r}, but the node needs {' and '.join(expected)}"
        raise UsageError(message, help=f"{_HELP}; `--http none` serves without HTTP")
    with ExitStack() as taken:
        named = enumerate(names.split(":"), first)
        sockets = {name: taken.enter_context(_listener(name, file)) for file, name in named}
        taken.pop_all()
    return InheritedSockets(sockets["grpc"], sockets.get("http"))


def _listener(name: str, file: int) -> socket.socket:
    """Return the socket of a descriptor, if it listens by TCP."""
    try:
        one = socket.socket(fileno=file)
        one.set_inheritable(False)
    except OSError as error:
        message = f"the inherited descriptor of {name} is not a socket: {error.strerror}"
        raise UsageError(message, help=_HELP) from None
    is_tcp = one.family in (socket.AF_INET, socket.AF_INET6) and one.type == socket.SOCK_STREAM
    if not is_tcp or not one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        one.close()
        message = f"the inherited socket of {name} does not listen by TCP"
        raise UsageError(message, help=_HELP)
    return one
