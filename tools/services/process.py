"""Owned process: a command with a log, and the guard that ends it with its owner.

It does not know what the command serves: the caller decides when it is ready.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from streamlearn.errors import ServiceError
from tools.services import guard

__all__ = ["OwnedProcess", "log_tail", "run_to_end"]

_TAIL_LINES = 20
_TAIL_BYTES = 16_384
_POLL_S = 0.02
_GUARD_WAIT_S = 60.0


class OwnedProcess:
    """A running command in a process group of its own, which never outlives the process that started it.

    Args:
        name: Its name in messages.
        command: Program and arguments.
        folder: Its working folder, with its log `NAME.log`, which is appended to and kept.
        environment: Variables in addition to those of this process.
        stop_wait_s_max: Seconds between SIGTERM and SIGKILL.

    Raises:
        ServiceError: The program cannot be started.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        folder: Path,
        *,
        environment: Mapping[str, str] | None = None,
        stop_wait_s_max: float = 10.0,
    ) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self.exit_status: int | None = None
        self._stop_wait_s_max = stop_wait_s_max
        self._reports = b""
        arguments = [
            sys.executable,
            "-I",
            "-S",
            guard.__file__,
            str(os.getpid()),
            str(stop_wait_s_max),
            *command,
        ]
        with self.log.open("ab") as log:
            self._guard = subprocess.Popen(
                arguments,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=folder,
                env={**os.environ, **(environment or {})},
                start_new_session=True,  # the owner handles Ctrl-C in the terminal
            )
        self.pid = self._await_start()

    def is_alive(self) -> bool:
        """Return whether the command is running; a paused one is."""
        self._read_reports(0.0)
        return self.exit_status is None

    def stop(self) -> None:
        """Send SIGTERM, then SIGKILL after a bounded wait; return when the command is gone."""
        self._order(guard.STOP)
        self._await_end(self._stop_wait_s_max + _GUARD_WAIT_S)

    def kill(self) -> None:
        """Send SIGKILL to the process group; return when the command is gone."""
        self._order(guard.KILL)
        self._await_end(_GUARD_WAIT_S)

    def pause(self) -> None:
        """Send SIGSTOP: connections stay open without answers. Return when the command has stopped."""
        self._order_and_await(guard.PAUSE, b"paused\n")

    def resume(self) -> None:
        """Send SIGCONT after a pause."""
        self._order_and_await(guard.RESUME, b"resumed\n")

    def wait_until(self, answers: Callable[[], bool], wait_s_max: float) -> None:
        """Wait until `answers`, which must be brief, returns True.

        Raises:
            ServiceError: The command ended, or the wait was too long; with the end of its log.
        """
        deadline_s = time.monotonic() + wait_s_max
        while self.is_alive():
            if answers():
                return
            if time.monotonic() > deadline_s:
                self.fail(f"{self.name} (pid {self.pid}) did not answer within {wait_s_max:g} s")
            time.sleep(_POLL_S)
        self.fail(f"{self.name} ended with status {self.exit_status} before it answered")

    def fail(self, failure: str) -> NoReturn:
        """Raise an error with the end of this process's log.

        Raises:
            ServiceError: Always.
        """
        message = f"{failure}; its log ends with\n{log_tail(self.log)}"
        raise ServiceError(message, help=f"read the whole log: {self.log}")

    def _await_start(self) -> int:
        deadline_s = time.monotonic() + _GUARD_WAIT_S
        while b"started " not in self._reports and self.exit_status is None and time.monotonic() < deadline_s:
            self._read_reports(_POLL_S)
        if b"started " not in self._reports:
            self._close()
            self.fail(f"{self.name} could not be started")
        return int(self._reports.split(b"started ")[1].split(b"\n")[0])

    def _read_reports(self, wait_s: float) -> None:
        """Read reports of the guard, and wait at most `wait_s` for them."""
        report = self._guard.stdout
        if report is None or report.closed or not select.select([report], [], [], wait_s)[0]:
            return
        piece = os.read(report.fileno(), 4096)
        self._reports += piece
        if b"exited " in self._reports and self._reports.endswith(b"\n"):
            self.exit_status = int(self._reports.split(b"exited ")[1])
            self._close()
        elif not piece:
            # The guard itself was ended, so this process must end the command.
            if b"started " in self._reports:
                _end_group(int(self._reports.split(b"started ")[1].split(b"\n")[0]))
            self.exit_status = -signal.SIGKILL
            self._close()

    def _order(self, order: bytes) -> None:
        if not self.is_alive() or self._guard.stdin is None:
            return
        try:
            self._guard.stdin.write(order)
            self._guard.stdin.flush()
        except BrokenPipeError:
            return  # the command has just ended, as its report says

    def _order_and_await(self, order: bytes, report: bytes) -> None:
        before = self._reports.count(report)
        self._order(order)
        deadline_s = time.monotonic() + _GUARD_WAIT_S
        while self.exit_status is None and self._reports.count(report) == before:
            if time.monotonic() > deadline_s:
                self.fail(f"the guard of {self.name} (pid {self.pid}) did not respond within {_GUARD_WAIT_S:g} s")
            self._read_reports(_POLL_S)

    def _await_end(self, wait_s_max: float) -> None:
        deadline_s = time.monotonic() + wait_s_max
        while self.exit_status is None:
            if time.monotonic() > deadline_s:
                _end_group(self.pid)
                self._guard.kill()
                self._close()
                self.fail(f"{self.name} (pid {self.pid}) did not end within {wait_s_max:g} s")
            self._read_reports(_POLL_S)

    def _close(self) -> None:
        for pipe in (self._guard.stdin, self._guard.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()
        try:
            self._guard.wait(_GUARD_WAIT_S)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            self._guard.wait()


def _end_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def log_tail(log: Path, lines: int = _TAIL_LINES) -> str:
    """Return the last lines of a log, indented, or a note that there are none."""
    if not log.exists():
        return "  (there is no log)"
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
        text = file.read().decode(errors="replace")
    return "\n".join(f"  {line}" for line in text.splitlines()[-lines:]) or "  (the log is empty)"


def run_to_end(
    name: str,
    command: Sequence[str],
    folder: Path,
    *,
    wait_s_max: float,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run an `OwnedProcess` that ends by itself, and end it after `wait_s_max`.

    Raises:
        ServiceError: It failed or took too long; with the end of its log.
    """
    process = OwnedProcess(name, command, folder, environment=environment)
    try:
        deadline_s = time.monotonic() + wait_s_max
        while process.is_alive():
            if time.monotonic() > deadline_s:
                process.fail(f"{name} took longer than {wait_s_max:g} s")
            time.sleep(_POLL_S)
        if process.exit_status != 0:
            process.fail(f"{name} failed with status {process.exit_status}")
    finally:
        process.stop()
