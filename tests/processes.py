"""Processes of tests: each is forked from one that has imported what they need, once for all tests of a run."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

__all__ = ["started"]

_context = multiprocessing.get_context("forkserver")
# What they are, and what they would import at first use, each for itself.
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
    """A process that does it, and ends with this one."""
    process = _context.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process
