"""Port filter: has the kernel drop what other machines send to a port that a library opened on all interfaces."""

from __future__ import annotations

import ctypes
import os
import socket
import stat
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from ipaddress import IPv4Address
from pathlib import Path

from streamlearn.errors import ServiceError

__all__ = ["filter_port"]

# Instructions of classic BPF, and where it finds a packet's protocol and source; see <linux/filter.h>.
_LOAD, _JUMP_IF_EQUAL, _RETURN, _PROTOCOL, _SOURCE = 0x20, 0x15, 0x06, 0xFFFFF000, 0xFFF0000C
_IPV4, _DROP, _KEEP, _SO_ATTACH_FILTER = 0x0800, 0, 0xFFFFFFFF, 26


def filter_port(port: int, hosts: Iterable[str]) -> None:
    """Let packets to a port of this process pass only if they come from these IPv4 addresses, at most 250.

    Connections that were made before are filtered too, and those that are accepted later.

    Raises:
        ServiceError: The kernel has no such filter, or nothing listens at the port.
    """
    known = sorted({int(IPv4Address(host)) for host in hosts})
    lines = [(_LOAD, 0, 0, _PROTOCOL), (_JUMP_IF_EQUAL, 0, len(known) + 1, _IPV4), (_LOAD, 0, 0, _SOURCE)]
    lines += [(_JUMP_IF_EQUAL, len(known) - at, 0, host) for at, host in enumerate(known)]
    program = b"".join(struct.pack("HBBI", *line) for line in (*lines, (_RETURN, 0, 0, _DROP), (_RETURN, 0, 0, _KEEP)))
    code = ctypes.create_string_buffer(program, len(program))
    option, listens, reason = struct.pack("HP", len(lines) + 2, ctypes.addressof(code)), False, "nothing listens there"
    try:
        for one in _sockets(port):
            with one:
                one.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, option)
                listens |= bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    except OSError as error:
        listens, reason = False, str(error)
    if not listens:
        message = f"port {port} of TensorFlow is open to all networks, and cannot be filtered: {reason}"
        raise ServiceError(message, help='set workers.reduce = "shards", or use a kernel with socket filters')


def _sockets(port: int) -> Iterator[socket.socket]:
    """Yield copies of this process's TCP sockets at a port of its own."""
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # it was closed meanwhile
            if stat.S_ISSOCK(os.fstat(int(entry.name)).st_mode):
                one = socket.socket(fileno=os.dup(int(entry.name)))
                if one.family in (socket.AF_INET, socket.AF_INET6) and one.getsockname()[1] == port:
                    yield one
                else:
                    one.close()
