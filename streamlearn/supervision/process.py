"""MemberProcess: a member's process from its start to its end. When it is started and ended is decided elsewhere."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from datetime import UTC, datetime

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.supervision import tether
from streamlearn.supervision.log import LINE_BYTES_MAX, MemberLog
from streamlearn.supervision.member import Member

__all__ = ["MemberProcess", "how_ended"]

# What it started itself may hold its output open a little longer.
_LAST_WORDS_S_MAX = 5.0


class MemberProcess:
    """A process in a session of its own, so that Ctrl-C does not reach it, and that the kernel ends with this one.

    Make it in the main thread: the kernel ends it with the thread that made it.

    Args:
        member: What it is.
        log: Where what it says goes.
        clock: What the time of its start is taken by.

    Raises:
        OSError: The system has no room for it.
    """

    def __init__(self, member: Member, log: MemberLog, clock: Clock = SYSTEM_CLOCK) -> None:
        assert threading.current_thread() is threading.main_thread()
        self._member, self._log = member, log
        self._is_ready = threading.Event()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", tether.__file__, str(os.getpid()), *member.command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        at = datetime.fromtimestamp(clock.wall_ms() / 1000, UTC).isoformat(timespec="seconds")
        log.begin(f"{member.name} started as pid {self.pid} at {at}")
        self._reader = threading.Thread(target=self._read, name=f"log of {member.name}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    @property
    def is_ready(self) -> bool:
        """Whether it said that it is ready."""
        return self._is_ready.is_set()

    def poll(self) -> int | None:
        """Its exit status, once it has ended and with it all that it left in its session's group."""
        if self._process.returncode is None:
            if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return None
            # As long as it was not waited for its number is nobody else's.
            self.kill()
            self._process.wait()
            self._reader.join(_LAST_WORDS_S_MAX)
        return self._process.returncode

    def stop(self) -> None:
        """Ask it to end."""
        if self._process.returncode is None:
            os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """End it and what is in its group."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def _read(self) -> None:
        out, word = self._process.stdout, self._member.ready_word
        assert out is not None
        with out:
            while line := out.readline(LINE_BYTES_MAX):
                text = self._log.take(line)
                if word and word in text:
                    self._is_ready.set()


def how_ended(status: int | None) -> str:
    """A status as people say it.

    Examples:
        >>> how_ended(1), how_ended(-9), how_ended(None)
        ('status 1', 'SIGKILL', 'nothing: it did not end')
    """
    if status is None:
        return "nothing: it did not end"
    if status >= 0:
        return f"status {status}"
    with suppress(ValueError):
        return signal.Signals(-status).name
    return f"signal {-status}"
