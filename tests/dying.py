"""Dying: processes that are forked, and killed at a chosen change of files; for tests of what others find then."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

__all__ = ["die_at", "forked", "preloaded"]

# What fits into a pipe that nobody reads yet.
_NAMES_BYTES_MAX = 60_000

# Everything by which a local store changes what another process finds. A sync changes nothing of that: who dies at one
# leaves what who dies at the next change leaves.
_CHANGES = ("write", "link", "unlink", "mkdir", "rmdir")


def die_at(step: int) -> None:
    """Make the `step`-th change of this process its last; a write gets half of its bytes out before."""
    left = step

    def dying(original: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if left >= 0:
                return original(*args, **named)
            if name == "write":
                descriptor, data = args
                original(descriptor, data[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
            return None

        return call

    for name in _CHANGES:
        setattr(os, name, dying(getattr(os, name), name))


def forked(work: Callable[[], int | None]) -> int:
    """Have a child of this process, which must have one thread, do it.

    What it writes need not reach the disk: it is processes that die here, and no machine.

    Returns:
        Its exit status: what the work gave, 1 where it raised, minus the signal it died of.
    """
    pid = os.fork()
    if pid == 0:
        status = 1
        os.fsync = lambda descriptor: None  # type: ignore[assignment]
        try:
            status = work() or 0
        except BaseException:
            traceback.print_exc()
        os._exit(status)
    _, ended = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(ended)


def preloaded(work: Callable[[], object]) -> None:
    """Have a child do it, and import here whatever it imported, so that no later child has to.

    Most of what a child costs that does little is Python's imports at first use; and no thread may run here.
    """
    there = set(sys.modules)
    reader, writer = os.pipe()

    def told() -> None:
        work()
        names = "\n".join(name for name in sys.modules if name not in there).encode()
        assert len(names) < _NAMES_BYTES_MAX
        os.write(writer, names)

    status = forked(told)
    os.close(writer)
    with os.fdopen(reader) as names:
        for name in names.read().splitlines():
            with suppress(ImportError):
                importlib.import_module(name)
    assert not status, "see above"
