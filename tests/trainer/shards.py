"""Shards: processes of `streamlearn ps`, which are killed and come back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from streamlearn.errors import ServiceError

__all__ = ["ShardProcesses"]

_END_S_MAX = 120


class ShardProcesses:
    """Shards of an application on this machine.

    Args:
        app: The application's folder.
        store: URL of the store of versions.
        count: How many.

    Attributes:
        addresses: Where they listen.
    """

    def __init__(self, app: Path, store: str, count: int) -> None:
        self._app, self._store, self._count = app, store, count
        self._processes: list[subprocess.Popen[str]] = []
        try:
            self._processes += [self._started(number, "127.0.0.1:0") for number in range(count)]
            self.addresses = [_address(process, self._count) for process in self._processes]
        except BaseException:
            self.close()
            raise

    def kill(self, number: int) -> None:
        """Kill one, as a machine that loses power does."""
        self._processes[number].kill()
        _ended(self._processes[number])

    def start_again(self, number: int) -> None:
        """Start it where it was; it has no tables until it is restored."""
        self._processes[number] = self._started(number, self.addresses[number])
        _address(self._processes[number], self._count)

    def close(self) -> None:
        """End them all."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            _ended(process)

    def _started(self, number: int, listen: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "streamlearn", "ps", "--app", str(self._app), "--listen", listen]
        command += ["--shard", f"{number}/{self._count}", "--set", f"versions.store={self._store}"]
        command += ["--set", "telemetry.log_level=warning"]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _ended(process: subprocess.Popen[str]) -> None:
    try:
        process.wait(_END_S_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(_END_S_MAX)
    if process.stdout is not None:
        process.stdout.close()


def _address(process: subprocess.Popen[str], count: int) -> str:
    assert process.stdout is not None
    line = process.stdout.readline().split()
    if not line:
        message = f"one of {count} shards ended with status {process.wait(_END_S_MAX)} before it listened"
        raise ServiceError(message, help="what it said is above")
    return line[-1]
