"""Redis: the machine's redis-server with its data in a folder. A kill loses no acknowledged write."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from streamlearn.errors import ServiceError
from tools.services.cache import Cache
from tools.services.ports import LOOPBACK, FindPorts, free_ports
from tools.services.service import Service, launch_on

__all__ = ["Redis", "printed_version"]

_PROBE_WAIT_S_MAX = 1.0
_ASK_WAIT_S_MAX = 60.0
_REPLY_BYTES_MAX = 1 << 16


class Redis(Service):
    """A running Redis.

    Args:
        folder: A folder for data and log.
        ports: One port.
        program: The redis-server.
    """

    name = "redis"

    def __init__(self, folder: Path, ports: Sequence[int], program: Path) -> None:
        super().__init__(folder.absolute(), ports)
        self._program = program

    @classmethod
    def find(cls, cache: Cache) -> Path | None:
        """Return the redis-server on PATH, or None. It is never in the cache."""
        del cache
        program = shutil.which("redis-server")
        return Path(program) if program else None

    @classmethod
    def fetch(cls, cache: Cache) -> Path:
        """Return the redis-server on PATH.

        Raises:
            ServiceError: There is none.
        """
        program = cls.find(cache)
        if program is None:
            message = "no redis-server on PATH"
            raise ServiceError(message, help="install it (Debian: redis-server), or run .ci/bootstrap")
        return program

    @classmethod
    def start(cls, folder: Path, *, cache: Cache | None = None, find_ports: FindPorts = free_ports) -> Self:
        """Start a server on new data or that of an earlier server, and wait until it answers.

        `cache` is unused: all services start with the same arguments.

        Raises:
            ServiceError: There is no redis-server, or it did not start.
        """
        program = cls.fetch(cache or Cache())
        return launch_on(find_ports, 1, lambda ports: cls(folder, ports, program))

    @property
    def url(self) -> str:
        """The URL for Redis clients and STREAMLEARN_REGISTRY."""
        return f"redis://{self.address}/0"

    @property
    def version(self) -> str:
        """The program's version."""
        return printed_version(self._program)

    def flush(self) -> None:
        """Delete every key, as FLUSHALL does."""
        with socket.create_connection((LOOPBACK, self.ports[0]), timeout=_ASK_WAIT_S_MAX) as connection:
            connection.sendall(b"FLUSHALL\r\n")
            reply = connection.recv(4096)
        if reply != b"+OK\r\n":
            message = f"Redis answered FLUSHALL with {reply!r}"
            raise ServiceError(message, help=f"see {self.log}")

    def _prepare(self) -> Sequence[str]:
        # Redis writes the append-only file before each reply, so SIGKILL loses no acknowledged write.
        settings = {
            "bind": LOOPBACK,
            "port": str(self.ports[0]),
            "dir": str(self.folder),
            "daemonize": "no",
            "logfile": "",
            "save": "",
            "appendonly": "yes",
            "appendfsync": "everysec",
        }
        return [
            str(self._program),
            *(word for name, value in settings.items() for word in (f"--{name}", value)),
        ]

    def _answers(self, pid: int) -> bool:
        return f"process_id:{pid}\r\n" in _ask(self.ports[0])


def printed_version(program: Path) -> str:
    """Return the version that a redis-server prints.

    Raises:
        ServiceError: It does not run, or prints no version.
    """
    try:
        answer = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=_ASK_WAIT_S_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        message = f"{program} does not run: {error}"
        raise ServiceError(message, help="install redis-server again") from error
    version = re.search(r"v=([\d.]+)", answer.stdout)
    if version is None:
        message = f"{program} prints no version: {answer.stdout.strip()[:200]!r}"
        raise ServiceError(message, help="put a stock redis-server first on PATH")
    return version[1]


def _ask(port: int) -> str:
    """Return the replies to PING and INFO; empty unless the server replies PONG and the whole of INFO."""
    received = b""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=_PROBE_WAIT_S_MAX) as connection:
            connection.sendall(b"PING\r\nINFO server\r\nQUIT\r\n")
            while len(received) < _REPLY_BYTES_MAX:
                piece = connection.recv(4096)
                if not piece:
                    break
                received += piece
    except OSError:
        return ""
    return received.decode(errors="replace") if received.startswith(b"+PONG\r\n") else ""
