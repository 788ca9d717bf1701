"""PulseReceiver: receives the messages of `streamlearn.pulse` from one process. It decides nothing."""

from __future__ import annotations

import os
import socket
import struct
import tempfile
from collections.abc import Iterator

__all__ = ["PulseReceiver"]

# Messages of `Pulse` have at most 60 bytes; longer ones are truncated and not understood.
_BYTES_MAX = 512
# More than a process sends between two calls of `messages`; the rest waits in the kernel, which bounds it.
_MESSAGES_MAX = 64
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid: `ucred` of unix(7)


class PulseReceiver:
    """A socket in a folder that only its owner may enter: nobody else can fill its queue and silence the process.

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
        own = ("WATCHDOG_", "LISTEN_")
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
