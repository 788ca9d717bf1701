"""The tether: has the kernel kill this process when its owner ends, then becomes the command it was given.

It imports nothing of this project: it is run by its path, on a bare interpreter, and is gone once the command runs.
What it asks of the kernel (`PR_SET_PDEATHSIG`, Linux alone) stays with the command.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1
_NOT_STARTED = 127


def main(arguments: list[str]) -> int:
    """Become a command that ends with its owner.

    Args:
        arguments: The owner's pid, then the command.

    Returns:
        The exit status, where there is no such command or no owner any more.
    """
    owner_pid, command = int(arguments[0]), arguments[1:]
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        print(
            f"error: the kernel cannot tie this process to its parent: {os.strerror(ctypes.get_errno())}",
            file=sys.stderr,
        )
        return _NOT_STARTED
    if os.getppid() != owner_pid:
        return _NOT_STARTED  # the owner ended before the kernel was asked
    # The pulse that is asked for is the command's, and not that of what it starts itself.
    if "WATCHDOG_USEC" in os.environ:
        os.environ["WATCHDOG_PID"] = str(os.getpid())
    # Python ignores SIGPIPE, and what is ignored would stay so in the command.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"error: {command[0]}: {error.strerror}", file=sys.stderr)
        return _NOT_STARTED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
