"""The tether: makes the kernel kill this process when its owner ends, then becomes the command it was given.

It imports nothing of this project, because it runs by its path in a bare interpreter and is gone once the command runs.
The request to the kernel (`PR_SET_PDEATHSIG`, Linux only) stays in effect for the command.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import sys

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1
_NOT_STARTED = 127
_FIRST = 3


def main(arguments: list[str]) -> int:
    """Become a command that ends with its owner.

    The arguments are the owner's pid, the descriptors of listening sockets for the command, separated by commas, and
    the command. Returns only if it could not, with the exit status.
    """
    owner_pid, files, command = int(arguments[0]), arguments[1], arguments[2:]
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        reason = os.strerror(ctypes.get_errno())
        print(f"error: the kernel cannot tie this process to its parent: {reason}", file=sys.stderr)
        return _NOT_STARTED
    if os.getppid() != owner_pid:
        return _NOT_STARTED  # the owner ended before the call above
    # The heartbeat is for the command itself, not for processes that it starts.
    if "WATCHDOG_USEC" in os.environ:
        os.environ["WATCHDOG_PID"] = str(os.getpid())
    if files:
        _pass_on([int(file) for file in files.split(",")])
    # Python ignores SIGPIPE, and the command would inherit that.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"error: {command[0]}: {error.strerror}", file=sys.stderr)
        return _NOT_STARTED


def _pass_on(files: list[int]) -> None:
    """Pass descriptors to the command as systemd does: from 3 on, in their order."""
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, _FIRST + len(files)) for file in files]
    for file in files:
        os.close(file)
    for number, file in enumerate(moved, _FIRST):
        os.dup2(file, number)
    os.environ["LISTEN_PID"] = str(os.getpid())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
