"""Processes of tests: forked from a server process that has imported their modules once."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

__all__ = ["started"]

_context = multiprocessing.get_context("forkserver")
# Their modules, and modules that each would import at first use.
_context.set_forkserver_preload(
    [
        "tests.ps.actors",
        "tests.publisher.crashes",
        "numpy.ma",
        "pyarrow.compute",
        "streamlearn.versions.store.local",
    ]
)


def started(target: Callable[..., Any], *arguments: Any) -> Any:
    """Start a process that calls `target` and ends with this process."""
    process = _context.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process
