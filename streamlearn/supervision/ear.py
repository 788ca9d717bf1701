"""Ear: where one process is heard that says how it is in systemd's words (`streamlearn.pulse`); it decides nothing."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator

__all__ = ["Ear"]

# The words of `Pulse` have 60 bytes; what is longer is cut, and is no word then.
_BYTES_MAX = 512
# More than a process says between two looks; what is beyond waits in the kernel, which bounds it.
_WORDS_MAX = 64
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid: `ucred` of unix(7)


class Ear:
    """A socket whose name is in no folder: nothing is left of it, however this process ends."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            self._socket.bind("")  # the kernel gives it a name that nobody has
        except OSError:
            self._socket.close()
            raise
        self._name = "@" + os.fsdecode(self._socket.getsockname()[1:])

    def environ(self, silence_s: float) -> dict[str, str]:
        """What the process has in its environment; the tether adds whose it is.

        Args:
            silence_s: For how long it may be silent; 0 for ever.
        """
        base = {name: value for name, value in os.environ.items() if not name.startswith("WATCHDOG_")}
        asked = {"WATCHDOG_USEC": str(round(silence_s * 1e6))} if silence_s else {}
        return {**base, "NOTIFY_SOCKET": self._name, **asked}

    def words(self, pid: int) -> Iterator[tuple[str, str]]:
        """Names and values that a process has said since the last time; what others say is not heard."""
        for _ in range(_WORDS_MAX):
            try:
                said, ancillary, *_ = self._socket.recvmsg(_BYTES_MAX, socket.CMSG_SPACE(_CREDENTIALS.size))
            except BlockingIOError:
                return
            senders = [_CREDENTIALS.unpack(data)[0] for _, kind, data in ancillary if kind == socket.SCM_CREDENTIALS]
            if senders == [pid]:
                for line in said.decode(errors="replace").splitlines():
                    name, _, value = line.partition("=")
                    yield name, value

    def close(self) -> None:
        """Hear nothing more."""
        self._socket.close()
