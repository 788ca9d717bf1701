"""Retrieval: searches beside other indexes, what a version costs, what nodes find, and what the towers learn."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from benchmarks.result import Result
from streamlearn.errors import UsageError

__all__ = ["run"]

Note = Callable[[str], None]
# Modules of this package; some load TensorFlow, and searches do without.
_PARTS = ("scans", "changes", "derived", "two_nodes", "learned", "logged_week")


def run(quick: bool, note: Note, only: str = "") -> Result:
    """Measure all parts, or `only` one."""
    if only and only not in _PARTS:
        message = f"unknown part {only!r}"
        raise UsageError(message, help=f"choose from {', '.join(_PARTS)}")
    result = Result("retrieval")
    for name in _PARTS:
        if not only or name == only:
            importlib.import_module(f"benchmarks.retrieval.{name}").measure(note, result, quick=quick)
    return result
