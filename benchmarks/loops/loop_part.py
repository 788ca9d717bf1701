"""LoopPart: one process of the loop, which can be killed and restarted."""

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
    """A running command of this project; the constructor starts it.

    Args:
        name: The name of the part and its log.
        words: The arguments of `python -m`.
        place: The folder of its log.
        changes: Settings for `--set`; the port of metrics is added.
    """

    def __init__(self, name: str, words: Sequence[str], place: Path, changes: Sequence[str]) -> None:
        (self._port,) = free_ports(1)
        sets = [word for change in (*changes, f"telemetry.listen=127.0.0.1:{self._port}") for word in ("--set", change)]
        self.name, self._place = name, place
        self._command = [sys.executable, "-m", *words, *sets]
        self._log_from = 0
        self.process = self._start()

    def restart(self) -> None:
        """Start the part again after a kill."""
        self.process = self._start()

    def kill(self) -> None:
        """Kill the part with SIGKILL; return when it is gone."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.kill()

    def logged(self, text: str) -> str | None:
        """Return the rest of the line after a text in the log since the last start, or None if it is missing."""
        log = self.process.log.read_bytes()[self._log_from :].decode(errors="replace")
        _, match, rest = log.partition(text)
        return rest.partition("\n")[0] if match and "\n" in rest else None

    def wait_logged(self, text: str, wait_s: float) -> str:
        """Wait until the part logs a text, and return the rest of the line.

        Raises:
            ServiceError: It ended, or the time is over.
        """
        self.process.wait_until(lambda: self.logged(text) is not None, wait_s)
        return self.logged(text) or ""

    def meter(self, name: str) -> float | None:
        """Return a metric, named with its labels as on its page: 0 if it is missing, None without an answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=_METERS_WAIT_S) as answer:
                lines = answer.read().decode().splitlines()
        except (OSError, HTTPException):
            return None
        return next((float(line.rpartition(" ")[2]) for line in lines if line.rpartition(" ")[0] == name), 0.0)

    def close(self) -> None:
        """Stop the part."""
        self.process.stop()

    def _start(self) -> OwnedProcess:
        log = self._place / f"{self.name}.log"
        self._log_from = log.stat().st_size if log.exists() else 0
        return OwnedProcess(self.name, self._command, self._place, environment=_ENVIRONMENT, stop_wait_s_max=_END_S_MAX)
