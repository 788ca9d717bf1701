"""The guard: a small process that runs one command and ends it when its owner is gone.

It knows nothing of services and imports nothing from this project: it runs by its path, on a bare
interpreter.

    owner ── orders, one byte each (its stdin) ───────▶ guard ── child, in its own process group ──▶ command
    owner ◀── reports, one line each (its stdout) ── guard  (its stderr is the command's log)

Any end of the owner, also by SIGKILL, closes the pipe of orders, and the guard reads its end. The guard also
checks the parent's pid, because a forked child of the owner may keep the pipe open.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

__all__ = ["KILL", "PAUSE", "RESUME", "STOP", "main"]

STOP, KILL, PAUSE, RESUME = b"T", b"K", b"P", b"R"
_ORDERS = {KILL: signal.SIGKILL, PAUSE: signal.SIGSTOP, RESUME: signal.SIGCONT}
_REPORTED = {PAUSE: "paused", RESUME: "resumed"}
_OWNER_CHECK_S = 1.0
_PAUSE_WAIT_S = 1.0
_POLL_S = 0.02
_PAUSE_POLL_S = 0.002


def main(arguments: list[str]) -> int:
    """Run a command until it ends, the owner orders its end, or the owner is gone.

    The arguments are the owner's pid, the seconds between SIGTERM and SIGKILL, and the command. Returns the guard's
    exit status: 0 unless the command could not be started.
    """
    owner_pid, stop_wait_s, command = int(arguments[0]), float(arguments[1]), arguments[2:]
    wake = _wake_on_signals()
    try:
        child_pid = _start(command)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        _report("exited 127")
        return 1
    _report(f"started {child_pid}")
    status = _watch(child_pid, owner_pid, wake)
    if status is None:
        status = _end(child_pid, stop_wait_s)
    _signal_group(child_pid, signal.SIGKILL)  # processes that the command started and left
    _report(f"exited {status}")
    return 0


def _wake_on_signals() -> int:
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    return read_end


def _start(command: list[str]) -> int:
    actions = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), (os.POSIX_SPAWN_DUP2, 2, 1)]
    # Python ignores these signals, and the command would inherit that.
    ignored = [signal.SIGPIPE, signal.SIGXFSZ]
    return os.posix_spawnp(
        command[0], command, os.environ, file_actions=actions, setpgroup=0, setsigdef=ignored, setsigmask=[]
    )


def _watch(child_pid: int, owner_pid: int, wake: int) -> int | None:
    """Return the child's exit status, or None if the child must be ended."""
    while True:
        readable, _, _ = select.select([0, wake], [], [], _OWNER_CHECK_S)
        if wake in readable:
            os_signals = os.read(wake, 512)
            status = _reap(child_pid)
            if status is not None:
                return status
            if any(number != signal.SIGCHLD for number in os_signals):
                return None
        if 0 in readable:
            order = os.read(0, 1)
            if order not in _ORDERS:
                return None
            _signal_group(child_pid, _ORDERS[order])
            if order == PAUSE:
                status = _await_pause(child_pid)
                if status is not None:
                    return status
            if order in _REPORTED:
                _report(_REPORTED[order])
        if os.getppid() != owner_pid:
            return None


def _await_pause(child_pid: int) -> int | None:
    """Wait until the child has stopped; return its exit status if it ended instead."""
    deadline_s = time.monotonic() + _PAUSE_WAIT_S
    while time.monotonic() < deadline_s:
        pid, status = os.waitpid(child_pid, os.WNOHANG | os.WUNTRACED)
        if pid != 0:
            return None if os.WIFSTOPPED(status) else os.waitstatus_to_exitcode(status)
        time.sleep(_PAUSE_POLL_S)
    return None  # it was paused already


def _end(child_pid: int, stop_wait_s: float) -> int:
    _signal_group(child_pid, signal.SIGTERM)
    _signal_group(child_pid, signal.SIGCONT)  # a paused process cannot obey
    deadline_s = time.monotonic() + stop_wait_s
    while time.monotonic() < deadline_s:
        status = _reap(child_pid)
        if status is not None:
            return status
        time.sleep(_POLL_S)
    _signal_group(child_pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child_pid, 0)[1])


def _reap(child_pid: int) -> int | None:
    pid, status = os.waitpid(child_pid, os.WNOHANG)
    if pid == 0 or os.WIFSTOPPED(status):
        return None
    return os.waitstatus_to_exitcode(status)


def _signal_group(child_pid: int, number: int) -> None:
    try:
        os.killpg(child_pid, number)
    except ProcessLookupError:
        return


def _report(line: str) -> None:
    try:
        os.write(1, f"{line}\n".encode())
    except BrokenPipeError:
        return  # the owner is gone


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
