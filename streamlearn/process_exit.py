"""Leaving: how a process ends that a library's threads may still be at work in."""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import suppress
from typing import NoReturn

__all__ = ["leave"]


def leave(status: int) -> NoReturn:
    """End this process, when all that is to be kept was kept.

    Threads of Beam's go on to the end; where one writes while Python is taken down, Python aborts the process. So
    where Beam was loaded Python is not taken down: what was to be done at exit is done, and the process ends.

    Raises:
        SystemExit: Beam was not loaded.
    """
    if "apache_beam" not in sys.modules:
        raise SystemExit(status)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(BrokenPipeError):
            stream.flush()
    os._exit(status)
