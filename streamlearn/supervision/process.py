"""MemberProcess: the process of a member, from its start to its end. It does not decide when to start or end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.supervision import tether
from streamlearn.supervision.log import LINE_BYTES_MAX, MemberLog
from streamlearn.supervision.member import Member
from streamlearn.supervision.pulse_receiver import PulseReceiver

__all__ = ["MemberProcess"]

# Processes that the member started may hold its output open a little longer.
_LAST_LINES_S_MAX = 5.0


class MemberProcess:
    """A process in its own session, so that Ctrl-C does not reach it. The kernel kills it when this process ends.

    Make it in the main thread: the kernel kills it when the thread that made it ends. It must send heartbeats within
    `silence_s_max`, unless that is 0. It gets `sockets` by their names, as systemd passes them. Raises OSError if the
    system cannot start another process.
    """

    def __init__(
        self,
        member: Member,
        log: MemberLog,
        silence_s_max: float = 0.0,
        clock: Clock = SYSTEM_CLOCK,
        *,
        sockets: Mapping[str, socket.socket] | None = None,
    ) -> None:
        assert threading.current_thread() is threading.main_thread()
        self._log, self._pulse = log, PulseReceiver()
        files = {name: one.fileno() for name, one in (sockets or {}).items()}
        listen = {"LISTEN_FDS": str(len(files)), "LISTEN_FDNAMES": ":".join(files)} if files else {}
        tied = [sys.executable, "-I", "-S", tether.__file__, str(os.getpid()), ",".join(map(str, files.values()))]
        try:
            self._process = subprocess.Popen(
                [*tied, *member.command],
                env=self._pulse.environ(silence_s_max) | listen,
                pass_fds=[*files.values()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError:
            self._pulse.close()
            raise
        at = datetime.fromtimestamp(clock.wall_ms() / 1000, UTC).isoformat(timespec="seconds")
        log.begin(f"{member.name} started as pid {self.pid} at {at}")
        self._reader = threading.Thread(target=self._read, name=f"log of {member.name}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def messages(self) -> Iterator[tuple[str, str]]:
        """Yield the messages that it sent since the last call; see `PulseReceiver`."""
        return self._pulse.messages(self.pid)

    def poll(self) -> int | None:
        """Return its exit status once it has ended; then kill the rest of its process group."""
        if self._process.returncode is None:
            if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return None
            # Until `wait`, no other process can get its id.
            self.kill()
            self._process.wait()
            self._reader.join(_LAST_LINES_S_MAX)
            self._pulse.close()
        return self._process.returncode

    def stop(self) -> None:
        """Ask it to end."""
        if self._process.returncode is None:
            os.kill(self.pid, signal.SIGTERM)

    def abort(self) -> None:
        """End it; Python's `faulthandler` writes the stack of each thread to its log."""
        if self._process.returncode is None:
            os.kill(self.pid, signal.SIGABRT)

    def kill(self) -> None:
        """Kill it and its process group."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def _read(self) -> None:
        out = self._process.stdout
        assert out is not None
        with out:
            while line := out.readline(LINE_BYTES_MAX):
                self._log.take(line)
