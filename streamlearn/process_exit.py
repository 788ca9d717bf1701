"""The end of a process: of this one, in which threads of a library may still run, and how another one ended."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from contextlib import suppress
from typing import NoReturn

__all__ = ["how_ended", "leave"]


def leave(status: int) -> NoReturn:
    """End this process with a status, after all results are stored.

    Beam's threads never stop. If one writes while Python shuts down, Python aborts the process. If Beam is loaded, this
    runs the exit functions and ends the process without a shutdown of Python; otherwise it raises SystemExit.
    """
    if "apache_beam" not in sys.modules:
        raise SystemExit(status)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(BrokenPipeError):
            stream.flush()
    os._exit(status)


def how_ended(status: int | None) -> str:
    """Return an exit status as text.

    Examples:
        >>> how_ended(1), how_ended(-9), how_ended(None)
        ('status 1', 'SIGKILL', 'nothing: it did not end')
    """
    if status is None:
        return "nothing: it did not end"
    if status >= 0:
        return f"status {status}"
    with suppress(ValueError):
        return signal.Signals(-status).name
    return f"signal {-status}"
