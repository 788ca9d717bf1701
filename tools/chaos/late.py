"""LateNode: one more node, which joins while the loop runs."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from streamlearn.errors import ServiceError
from tools.chaos.ground import Ground
from tools.services.process import OwnedProcess

__all__ = ["LateNode"]

_READY_S_MAX, _END_S_MAX = 120.0, 30.0
_ENVIRONMENT = {"PYTHONPATH": str(Path(__file__).parents[2])}
_SAID = " is served at grpc "


class LateNode:
    """A process of `streamlearn serve`; it is ready when it is made.

    Args:
        ground: The loop that it joins.

    Attributes:
        address: Where it serves gRPC.
    """

    def __init__(self, ground: Ground) -> None:
        name = f"late-{time.monotonic_ns()}"
        command = [sys.executable, "-m", "streamlearn", "serve", str(ground.folder.folder.resolve()), "--name", name]
        command += ["--listen", "127.0.0.1:0", "--http", "none"]
        for change in ground.changes:
            command += ["--set", change]
        self._process = OwnedProcess(name, command, ground.place, environment=_ENVIRONMENT, stop_wait_s_max=_END_S_MAX)
        try:
            self._process.wait_until(lambda: _SAID in self._process.log.read_text(errors="replace"), _READY_S_MAX)
        except BaseException:
            self._process.stop()
            raise
        self.address = self._process.log.read_text(errors="replace").partition(_SAID)[2].partition(": version")[0]

    def close(self) -> None:
        """End it.

        Raises:
            ServiceError: It did not end in order.
        """
        self._process.stop()
        if self._process.exit_status not in (0, None):
            message = f"a node that was told to end did so with status {self._process.exit_status}"
            raise ServiceError(message, help=f"see {self._process.log}")
