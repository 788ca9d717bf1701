"""A rolling restart: each node ends by SIGTERM and is started again before the next one, while clients ask."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.hosts.round_robin import RoundRobin
from streamlearn.supervision.ports import LOOPBACK, free_ports
from tools.services.process import OwnedProcess

__all__ = ["RollingNode", "rolling_figures"]

_ROOT = Path(__file__).parents[2]
_ENVIRONMENT = {"PYTHONPATH": str(_ROOT), "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
_READY_S_MAX, _STOP_S_MAX, _SERVED = 300.0, 60.0, " is served at grpc "
# A pause for answers before and after the restarts.
_QUIET_S, _SHARE = 2.0, 0.5


class RollingNode:
    """A node that keeps its address; the constructor starts it.

    Args:
        app: The folder of its application.
        name: Its name.
        place: The folder of its log.
        settings: Changes of settings for `--set`.
    """

    def __init__(self, app: Path, name: str, place: Path, settings: Sequence[str] = ()) -> None:
        self.address, self._name, self._place = f"{LOOPBACK}:{free_ports(1)[0]}", name, place
        self._command = [sys.executable, "-m", "streamlearn", "serve", str(app), "--name", name, "--http", "none"]
        self._command += ["--listen", self.address, *(word for change in settings for word in ("--set", change))]
        self._process = self._started()

    def wait_ready(self) -> None:
        """Wait until it answers."""
        self._process.wait_until(lambda: _SERVED in self._process.log.read_text(errors="replace"), _READY_S_MAX)

    def restart(self) -> int | None:
        """End it by SIGTERM, start it again when it is gone, and wait until it is ready; return the exit status."""
        self._process.stop()
        status = self._process.exit_status
        self._process.log.unlink()
        self._process = self._started()
        self.wait_ready()
        return status

    def close(self) -> None:
        """End it."""
        self._process.stop()

    def _started(self) -> OwnedProcess:
        return OwnedProcess(
            self._name, self._command, self._place, environment=_ENVIRONMENT, stop_wait_s_max=_STOP_S_MAX
        )


def rolling_figures(
    nodes: Sequence[RollingNode], client: RoundRobin, rate: float | None, note: Callable[[str], None] = print
) -> dict[str, float]:
    """Restart all nodes, one after the other, and return the figures.

    `rate` is the requests a second; without one, half of what the nodes answer.
    """
    rate = rate or _SHARE * client.capacity()
    client.errors.clear()
    before, seconds, statuses = client.answers, [0.0], list[int | None]()
    client.begin(rate)
    time.sleep(_QUIET_S)
    for node in nodes:
        begun_s = time.monotonic()
        statuses.append(node.restart())
        seconds.append(time.monotonic() - begun_s)
    time.sleep(_QUIET_S)
    client.close()
    for text, count in client.errors.most_common():
        note(f"{count} requests had no answer: {text}")
    return {
        "rolling_errors": float(client.errors.total()),
        "rolling_answers": float(client.answers - before),
        "rolling_rate_per_s": rate,
        "rolling_restart_s": max(seconds),
        "rolling_statuses_wrong": float(sum(status != 0 for status in statuses)),
    }
