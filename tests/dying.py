"""Dying: processes that are forked, and killed at a chosen change of files; for tests of what others find then."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["CHANGES", "CHANGES_FOUND", "die_at", "forked"]

# Everything by which a local store changes a file or a folder; a sync changes nothing of what others find.
CHANGES_FOUND = ("write", "link", "unlink", "mkdir")
CHANGES = (*CHANGES_FOUND, "fsync", "rmdir")


def die_at(step: int, changes: Sequence[str] = CHANGES) -> None:
    """Make the `step`-th of these calls of `os` this process's last; a write gets half of its bytes out before."""
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

    for name in changes:
        setattr(os, name, dying(getattr(os, name), name))


def forked(work: Callable[[], int | None]) -> int:
    """Have a child of this process, which must have one thread, do it.

    Returns:
        Its exit status: what the work gave, 1 where it raised, minus the signal it died of.
    """
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = work() or 0
        except BaseException:
            traceback.print_exc()
        os._exit(status)
    _, ended = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(ended)
