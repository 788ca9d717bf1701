"""BareExecutables: the executables of a node's model in a separate process, without a server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from streamlearn.errors import ServiceError

__all__ = ["BareExecutables", "export"]

_ROOT = Path(__file__).parents[2]
_EXPORT_S_MAX = 600
_MODULE = "benchmarks.ours.streamlearn_serving"


class BareExecutables:
    """A process that scores requests one after the other; the constructor starts it.

    Args:
        graphs: The folder of the exported graphs.
        cache: The folder of compiled code.
        settings: Settings of the application for `--set`.
    """

    def __init__(self, graphs: Path, cache: Path, settings: Sequence[str]) -> None:
        command = [sys.executable, "-m", _MODULE, "bare", str(graphs), str(cache), *settings]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=_ROOT
        )
        self._is_ready = False

    def taken_us(self, seconds: int, candidates: Iterable[int]) -> list[float]:
        """Score requests with these numbers of candidates again and again, and return the microseconds of each.

        Waits until the process is ready.
        """
        if not self._is_ready:
            self._is_ready = self._read() == "ready"
        assert self._process.stdin is not None
        print(json.dumps([seconds, *map(int, candidates)]), file=self._process.stdin, flush=True)
        taken_us: list[float] = self._read()
        return taken_us

    def close(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> BareExecutables:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            message = f"the process of bare executables ended with status {self._process.wait()}"
            raise ServiceError(message)
        return json.loads(line)


def export(graphs: Path, *names: str) -> None:
    """Export the graphs of some applications; by default those of the benchmark of serving.

    Raises:
        ServiceError: The export failed.
    """
    command = [sys.executable, "-m", _MODULE, "export", str(graphs), *names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_EXPORT_S_MAX, cwd=_ROOT, check=False)
    if done.returncode:
        message = f"graphs could not be exported: {done.stderr[-2_000:]}"
        raise ServiceError(message)
