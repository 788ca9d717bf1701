"""LoopPart: one process of the loop, which may be killed and started again where it was."""

from __future__ import annotations

import os
import signal
import sys
import urllib.request
from collections.abc import Sequence
from http.client import HTTPException
from pathlib import Path

from tools.services import free_ports
from tools.services.process import OwnedProcess

__all__ = ["LoopPart"]

_ROOT = Path(__file__).parents[2]
_ENVIRONMENT = {"PYTHONPATH": str(_ROOT), "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
_METERS_WAIT_S, _END_S_MAX = 5.0, 30.0


class LoopPart:
    """A command of this project; it runs when it is made.

    Args:
        name: What it is called.
        words: Behind `python -m`.
        place: Where its log is.
        changes: What `--set` says; where its metrics are served is among it.
    """

    def __init__(self, name: str, words: Sequence[str], place: Path, changes: Sequence[str]) -> None:
        (self._port,) = free_ports(1)
        sets = [word for change in (*changes, f"telemetry.metrics_port={self._port}") for word in ("--set", change)]
        self.name, self._place = name, place
        self._command = [sys.executable, "-m", *words, *sets]
        self._log_from = 0
        self.process = self._started()

    def restart(self) -> None:
        """Start it again, after it was killed."""
        self.process = self._started()

    def kill(self) -> None:
        """Kill it as a machine that loses power does; returns when it is gone."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.kill()

    def said(self, what: str) -> str | None:
        """The rest of the line behind some words, of what it said since it was started; None before it did."""
        log = self.process.log.read_bytes()[self._log_from :].decode(errors="replace")
        _, found, rest = log.partition(what)
        return rest.partition("\n")[0] if found and "\n" in rest else None

    def wait_said(self, what: str, wait_s: float) -> str:
        """Wait until it says something.

        Raises:
            ServiceError: It ended, or did not in time.
        """
        self.process.wait_until(lambda: self.said(what) is not None, wait_s)
        return self.said(what) or ""

    def meter(self, name: str) -> float | None:
        """One of its metrics, as it is written on its page, with labels; 0 where there is none; None without a page."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=_METERS_WAIT_S) as answer:
                lines = answer.read().decode().splitlines()
        except (OSError, HTTPException):
            return None
        return next((float(line.rpartition(" ")[2]) for line in lines if line.rpartition(" ")[0] == name), 0.0)

    def close(self) -> None:
        """End it."""
        self.process.stop()

    def _started(self) -> OwnedProcess:
        log = self._place / f"{self.name}.log"
        self._log_from = log.stat().st_size if log.exists() else 0
        return OwnedProcess(self.name, self._command, self._place, environment=_ENVIRONMENT, stop_wait_s_max=_END_S_MAX)
