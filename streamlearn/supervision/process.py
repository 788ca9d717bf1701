"""MemberProcess: a member's process from its start to its end. When it is started and ended is decided elsewhere."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.supervision import tether
from streamlearn.supervision.ear import Ear
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
        log: Where what it writes goes.
        silence_s_max: How often it is asked to say that it works; 0 for never.
        clock: What the time of its start is taken by.

    Raises:
        OSError: The system has no room for it.
    """

    def __init__(self, member: Member, log: MemberLog, silence_s_max: float = 0.0, clock: Clock = SYSTEM_CLOCK) -> None:
        assert threading.current_thread() is threading.main_thread()
        self._log, self._ear = log, Ear()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", tether.__file__, str(os.getpid()), *member.command],
                env=self._ear.environ(silence_s_max),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError:
            self._ear.close()
            raise
        at = datetime.fromtimestamp(clock.wall_ms() / 1000, UTC).isoformat(timespec="seconds")
        log.begin(f"{member.name} started as pid {self.pid} at {at}")
        self._reader = threading.Thread(target=self._read, name=f"log of {member.name}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    def words(self) -> Iterator[tuple[str, str]]:
        """What it has said of itself since the last time; see `Ear`."""
        return self._ear.words(self.pid)

    def poll(self) -> int | None:
        """Its exit status, once it has ended and with it all that it left in its session's group."""
        if self._process.returncode is None:
            if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return None
            # As long as it was not waited for its number is nobody else's.
            self.kill()
            self._process.wait()
            self._reader.join(_LAST_WORDS_S_MAX)
            self._ear.close()
        return self._process.returncode

    def stop(self) -> None:
        """Ask it to end."""
        if self._process.returncode is None:
            os.kill(self.pid, signal.SIGTERM)

    def abort(self) -> None:
        """Have it write where each of its threads stands, and end: Python's `faulthandler` does."""
        if self._process.returncode is None:
            os.kill(self.pid, signal.SIGABRT)

    def kill(self) -> None:
        """End it and what is in its group."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def _read(self) -> None:
        out = self._process.stdout
        assert out is not None
        with out:
            while line := out.readline(LINE_BYTES_MAX):
                self._log.take(line)


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
