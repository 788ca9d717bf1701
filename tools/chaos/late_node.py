"""LateNode: one more node, which joins while the loop runs."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from streamlearn.errors import ServiceError
from tools.chaos.target import Target
from tools.services.process import OwnedProcess

__all__ = ["LateNode"]

_READY_S_MAX, _END_S_MAX = 120.0, 30.0
_ENVIRONMENT = {"PYTHONPATH": str(Path(__file__).parents[2])}
_ADDRESS_PREFIX = " is served at grpc "


class LateNode:
    """A process of `streamlearn serve`; the constructor waits until it is ready.

    Attributes:
        address: Its gRPC address.
    """

    def __init__(self, target: Target) -> None:
        name = f"late-{time.monotonic_ns()}"
        command = [sys.executable, "-m", "streamlearn", "serve", str(target.folder.folder.resolve()), "--name", name]
        command += ["--listen", "127.0.0.1:0", "--http", "none"]
        for change in target.changes:
            command += ["--set", change]
        self._process = OwnedProcess(name, command, target.place, environment=_ENVIRONMENT, stop_wait_s_max=_END_S_MAX)
        try:
            self._process.wait_until(lambda: _ADDRESS_PREFIX in self._log(), _READY_S_MAX)
        except BaseException:
            self._process.stop()
            raise
        self.address = self._log().partition(_ADDRESS_PREFIX)[2].partition(": version")[0]

    def close(self) -> None:
        """Stop the node.

        Raises:
            ServiceError: It ended with an error.
        """
        self._process.stop()
        if self._process.exit_status not in (0, None):
            message = f"the late node ended with status {self._process.exit_status} after SIGTERM"
            raise ServiceError(message, help=f"see {self._process.log}")

    def _log(self) -> str:
        return self._process.log.read_text(errors="replace")
