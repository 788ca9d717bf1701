"""The end of a process in which threads of a library may still run."""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import suppress
from typing import NoReturn

__all__ = ["leave"]


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
