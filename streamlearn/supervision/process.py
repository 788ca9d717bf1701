"""MemberProcess: the process of a member, from its start to its end, and its messages. It decides nothing."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.pulse import PULSE_VARIABLE
from streamlearn.supervision import tether
from streamlearn.supervision.log import LINE_BYTES_MAX, MemberLog
from streamlearn.supervision.member import Member

__all__ = ["MemberProcess", "PulseReceiver"]

# Processes that the member started may hold its output open a little longer.
_LAST_LINES_S_MAX = 5.0
# Messages of `Pulse` have at most 60 bytes; longer ones are truncated and not understood.
_BYTES_MAX = 512
# More than a process sends between two calls of `messages`; the rest waits in the kernel, which bounds it.
_MESSAGES_MAX = 64
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid: `ucred` of unix(7)


class PulseReceiver:
    """Receives the messages of `streamlearn.pulse` from one process.

    Its socket is in a folder that only its owner may enter: nobody else can fill its queue and silence the process.

    A SIGKILL of this process leaves the folder with the socket behind, in the system's folder for temporary files.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="streamlearn-pulse-", ignore_cleanup_errors=True)
        self._name = f"{self._folder.name}/socket"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            self._socket.bind(self._name)
        except OSError:
            self.close()
            raise

    def environ(self, silence_s: float) -> dict[str, str]:
        """Return the environment for the process: it must send a heartbeat within `silence_s`, or none if that is 0.

        The tether adds WATCHDOG_PID.
        """
        own = ("WATCHDOG_", "LISTEN_", PULSE_VARIABLE)
        base = {name: value for name, value in os.environ.items() if not name.startswith(own)}
        watchdog = {"WATCHDOG_USEC": str(round(silence_s * 1e6))} if silence_s else {}
        return {**base, "NOTIFY_SOCKET": self._name, **watchdog}

    def messages(self, pid: int) -> Iterator[tuple[str, str]]:
        """Yield the names and values that the process sent since the last call; ignore other senders."""
        for _ in range(_MESSAGES_MAX):
            try:
                data, ancillary, *_ = self._socket.recvmsg(_BYTES_MAX, socket.CMSG_SPACE(_CREDENTIALS.size))
            except BlockingIOError:
                return
            senders = [_CREDENTIALS.unpack(item)[0] for _, kind, item in ancillary if kind == socket.SCM_CREDENTIALS]
            if senders == [pid]:
                for line in data.decode(errors="replace").splitlines():
                    name, _, value = line.partition("=")
                    yield name, value

    def close(self) -> None:
        """Close the socket and remove its folder."""
        self._socket.close()
        self._folder.cleanup()


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
