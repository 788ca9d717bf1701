"""Niceness: work that nobody waits for gives way to work that somebody does."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from streamlearn.clock import Clock

__all__ = ["BEHIND_LANES", "Courtesy", "give_way"]

# How much nicer than lanes what stages or compiles in a serving node is. No more: who answers waits for what such a
# thread holds when it loses its processor.
BEHIND_LANES = 10

_TASKS = Path("/proc/self/task")


def give_way(nice: int) -> None:
    """Let this thread, and those that it starts from now on, have a processor after others of the process.

    Where a platform knows no niceness of threads, nothing changes.

    Args:
        nice: 0 is as others are, 19 the nicest.
    """
    with contextlib.suppress(OSError, AttributeError):
        thread = threading.get_native_id()
        # One of a process that is nicer yet stays so.
        os.setpriority(os.PRIO_PROCESS, thread, max(nice, os.getpriority(os.PRIO_PROCESS, thread)))


class Courtesy:
    """How a thread gives way whose work is to be done soon, though nobody waits for it.

    It takes what processors others leave: whoever wakes up has its processor at once, where a merely nice thread keeps
    it for milliseconds. Processors that others leave nothing of would let it wait for ever, so that after some time it
    takes part again as a nice thread does. Linux lets it come back where the process may set niceness: with
    CAP_SYS_NICE, or RLIMIT_NICE of 20 - `nice`. Where it may not, the thread is nice, and no more.

    It is for processes of their own: who waits for a lock of a thread that gets no processor waits as long.

    Args:
        nice: How nice it is when it takes part.
        patience_s: How long it takes what is left alone.
        clock: What time is taken by.
    """

    def __init__(self, nice: int, patience_s: float, clock: Clock) -> None:
        self._nice, self._patience_s, self._clock = nice, patience_s, clock
        self._can_return = _can_return(nice)
        self._since_s: float | None = None

    @contextlib.contextmanager
    def given(self) -> Iterator[None]:
        """While this thread is in it, it gives way; so do threads that it starts."""
        give_way(self._nice)
        if not self._can_return:
            yield
            return
        os.sched_setscheduler(threading.get_native_id(), os.SCHED_IDLE, os.sched_param(0))
        self._since_s = self._clock.monotonic_s()
        try:
            yield
        finally:
            self._since_s = None
            _take_part(threading.get_native_id())

    def look(self) -> None:
        """Let it take part again if it was patient for long enough; to be called by another thread, now and then."""
        since_s = self._since_s
        if since_s is None or self._clock.monotonic_s() - since_s < self._patience_s:
            return
        self._since_s = None
        for task in _TASKS.iterdir():
            # One that has ended meanwhile needs nothing.
            with contextlib.suppress(OSError):
                _take_part(int(task.name))


def _take_part(thread: int) -> None:
    if os.sched_getscheduler(thread) == os.SCHED_IDLE:
        os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))


def _can_return(nice: int) -> bool:
    """Whether a thread that takes what is left can take part again; tried by one that ends then."""

    def tried() -> bool:
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, nice)
        os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
        os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))
        return True

    with ThreadPoolExecutor(1) as pool:
        try:
            return pool.submit(tried).result()
        except (OSError, AttributeError):
            return False
