"""Niceness: background threads yield the processor to threads that answer requests."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from streamlearn.clock import Clock

__all__ = ["BEHIND_LANES", "Courtesy", "give_way"]

# Niceness of staging and compiling relative to the lanes of a node. A higher value would hurt: a lane waits for any
# lock that such a thread holds when it loses its processor.
BEHIND_LANES = 10

_TASKS = Path("/proc/self/task")


def give_way(nice: int) -> None:
    """Raise the niceness of this thread, and of threads that it starts later, to at least `nice` (0 to 19).

    Nothing changes on platforms without niceness of threads.
    """
    with contextlib.suppress(OSError, AttributeError):
        thread = threading.get_native_id()
        # A thread of a process that is already nicer stays so.
        os.setpriority(os.PRIO_PROCESS, thread, max(nice, os.getpriority(os.PRIO_PROCESS, thread)))


class Courtesy:
    """Runs a thread on idle processors only, for a limited time; after that it competes with niceness `nice`.

    A waking thread preempts an idle-policy thread at once, but a merely nice one only after milliseconds. On a busy
    machine an idle-policy thread would never run, so after `patience_s` the thread returns to the normal policy. Linux
    allows the return only to processes that may set niceness: with CAP_SYS_NICE, or RLIMIT_NICE of 20 - `nice`. Other
    processes only raise the niceness.

    Use it in a process of its own: a thread that waits for a lock of an idle-policy thread waits as long as it does.
    """

    def __init__(self, nice: int, patience_s: float, clock: Clock) -> None:
        self._nice, self._patience_s, self._clock = nice, patience_s, clock
        self._can_return = _can_return(nice)
        self._idle_since_s: float | None = None

    @contextlib.contextmanager
    def given(self) -> Iterator[None]:
        """Within the context, this thread and threads that it starts yield to others."""
        give_way(self._nice)
        if not self._can_return:
            yield
            return
        os.sched_setscheduler(threading.get_native_id(), os.SCHED_IDLE, os.sched_param(0))
        self._idle_since_s = self._clock.monotonic_s()
        try:
            yield
        finally:
            self._idle_since_s = None
            _use_normal_policy(threading.get_native_id())

    def look(self) -> None:
        """Return all threads to the normal policy after `patience_s`. Another thread calls this from time to time."""
        since_s = self._idle_since_s
        if since_s is None or self._clock.monotonic_s() - since_s < self._patience_s:
            return
        self._idle_since_s = None
        for task in _TASKS.iterdir():
            with contextlib.suppress(OSError):  # the thread may have ended meanwhile
                _use_normal_policy(int(task.name))


def _use_normal_policy(thread: int) -> None:
    if os.sched_getscheduler(thread) == os.SCHED_IDLE:
        os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))


def _can_return(nice: int) -> bool:
    """Return whether an idle-policy thread may return to the normal policy; a short-lived thread tries it."""

    def try_return() -> bool:
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, nice)
        os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
        os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))
        return True

    with ThreadPoolExecutor(1) as pool:
        try:
            return pool.submit(try_return).result()
        except (OSError, AttributeError):
            return False
