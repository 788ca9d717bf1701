"""Forked processes that are killed at a chosen change of files, for tests of what other processes then find."""

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

# The capacity of a pipe without a reader.
_NAMES_BYTES_MAX = 60_000

# The calls by which a local store changes what another process finds. Syncs are not among them: a process that dies at
# a sync leaves the same as one that dies at the next change.
_CHANGES = ("write", "link", "unlink", "mkdir", "rmdir")


def die_at(step: int) -> None:
    """Kill this process at its `step`-th change of files; a write first writes half of its bytes."""
    remaining = step

    def dying(original: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal remaining
            remaining -= 1
            if remaining >= 0:
                return original(*args, **kwargs)
            if name == "write":
                descriptor, data = args
                original(descriptor, data[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
            return None

        return call

    for name in _CHANGES:
        setattr(os, name, dying(getattr(os, name), name))


def forked(work: Callable[[], int | None]) -> int:
    """Run work in a fork of this process, which must have one thread.

    The child's writes need not reach the disk, because processes die here, but no machine.

    Returns:
        The exit status: the result of the work, 1 if it raised, or minus the signal that killed it.
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
    """Run work in a child, and import here the modules that it imported, so that later children need not.

    Imports at first use are most of the cost of a small child. Run them without threads in this process.
    """
    before = set(sys.modules)
    reader, writer = os.pipe()

    def report_imports() -> None:
        work()
        names = "\n".join(name for name in sys.modules if name not in before).encode()
        assert len(names) < _NAMES_BYTES_MAX
        os.write(writer, names)

    status = forked(report_imports)
    os.close(writer)
    with os.fdopen(reader) as names:
        for name in names.read().splitlines():
            with suppress(ImportError):
                importlib.import_module(name)
    assert not status, "see above"
