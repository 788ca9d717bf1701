"""Children: processes of a measurement, which begin together and never outlive it."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

__all__ = ["children"]

_ROOT = Path(__file__).parents[2]


@contextmanager
def children(commands: Sequence[Sequence[str]], seconds_max: float) -> Iterator[list[subprocess.Popen[str]]]:
    """Start modules with their arguments, wait until each has printed "ready", and kill them at the end.

    They are killed after `seconds_max` as well. Raises RuntimeError if one ends before it is ready.
    """
    running: list[subprocess.Popen[str]] = []
    watch = threading.Timer(seconds_max, lambda: list(map(subprocess.Popen.kill, running)))
    watch.start()
    try:
        for command in commands:
            arguments = [sys.executable, "-m", *command]
            pipe = subprocess.PIPE
            running.append(subprocess.Popen(arguments, stdin=pipe, stdout=pipe, text=True, cwd=_ROOT))
        for process in running:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                message = f"a process of {commands[0][0]} ended with status {process.wait()}; see its traceback above"
                raise RuntimeError(message)
        yield running
    finally:
        watch.cancel()
        for process in running:
            process.kill()
            process.communicate()
