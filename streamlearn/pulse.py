"""Pulse: reports a process to its supervisor: ready, heartbeat, stopping.

`streamlearn up` and systemd set NOTIFY_SOCKET and WATCHDOG_USEC and get systemd's messages, see sd_notify(3) and
sd_watchdog_enabled(3). Where STREAMLEARN_PULSE names a file, as in a container, its text is the state and its time of
change the last heartbeat, for `streamlearn probe`. The loop that does the work sends the heartbeat, never a separate
thread: so a heartbeat proves progress.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from streamlearn.clock import SYSTEM_CLOCK, Clock

__all__ = ["PULSE", "PULSE_READY", "PULSE_VARIABLE", "Pulse", "process_of"]

PULSE_VARIABLE = "STREAMLEARN_PULSE"
PULSE_READY = "ready"
"""The text of the file of a process that works."""

_READY, _BEAT, _STOPPING = "READY=1", "WATCHDOG=1", "STOPPING=1"
# Heartbeats come at a third of the watchdog's timeout, and often enough that a wait with a bound of its own can take
# nearly all of the timeout.
_BEATS_PER_TIMEOUT, _EVERY_S_MAX = 3, 5.0


class Pulse:
    """Sends the state of this process. It never raises or blocks, whatever the receiver does.

    It sends no heartbeat before `ready`: another setting limits how long a start may take.

    Examples:
        >>> pulse = Pulse({})
        >>> pulse.ready()
        >>> pulse.is_due
        False
    """

    def __init__(self, environ: Mapping[str, str], clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._address = _address(environ.get("NOTIFY_SOCKET", ""))
        file = environ.get(PULSE_VARIABLE, "")
        self._file = Path(file) if file else None
        self._default_timeout_us = 0 if self._address is None else _timeout_us(environ)
        # The watchdog's timeout that is needed now, and the one that the receiver knows.
        self._timeout_us = self._sent_timeout_us = self._default_timeout_us
        self._is_ready = self._is_ready_sent = False
        self._beat_s = 0.0

    @property
    def every_s(self) -> float:
        """The interval of heartbeats; 0 if nothing waits for them."""
        if not self._default_timeout_us:
            return _EVERY_S_MAX if self._file else 0.0
        return min(self._default_timeout_us / 1e6 / _BEATS_PER_TIMEOUT, _EVERY_S_MAX)

    @property
    def is_due(self) -> bool:
        """Whether a heartbeat is due: for callers that first have to check that the work makes progress."""
        is_wanted = self._is_ready and (self.every_s > 0 or not self._is_ready_sent)
        return is_wanted and self._clock.monotonic_s() - self._beat_s >= self.every_s

    def ready(self) -> None:
        """Report that the process is ready; further calls do nothing."""
        if not self._is_ready and (self._address is not None or self._file is not None):
            self._is_ready = True
            self._send()

    def beat(self) -> None:
        """Send a heartbeat if one is due. Call it with every round of the work: it costs nothing if none is due."""
        if self.is_due:
            self._send()

    def stopping(self) -> None:
        """Report that the process stops; nothing is sent after that."""
        if self._is_ready:
            self._send(_STOPPING)
            self._is_ready = False

    @contextmanager
    def patience(self, bound_s: float) -> Iterator[None]:
        """Extend the watchdog's timeout by `bound_s` for one piece of work that has this bound of its own."""
        if not (self._is_ready and self.every_s):
            yield
            return
        self._timeout_us = self._default_timeout_us + round(bound_s * 1e6)
        self._send()
        try:
            yield
        finally:
            self._timeout_us = self._default_timeout_us
            if self._is_ready:
                self._send()

    def _send(self, *lines: str) -> None:
        """Send a heartbeat with these lines, and with all state that a busy receiver did not accept before."""
        self._beat_s, timeout_us = self._clock.monotonic_s(), self._timeout_us
        self._write("stopping" if _STOPPING in lines else PULSE_READY, timeout_us - self._default_timeout_us)
        if self._address is None:
            self._is_ready_sent = True
            return
        message = [*lines] if self._is_ready_sent else [_READY, *lines]
        if self._default_timeout_us:
            message.append(_BEAT)
        if self._default_timeout_us and timeout_us != self._sent_timeout_us:
            message.append(f"WATCHDOG_USEC={timeout_us}")
        if not message:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
                sender.sendto("\n".join(message).encode(), self._address)
        except OSError:
            return
        self._is_ready_sent, self._sent_timeout_us = True, timeout_us

    def _write(self, state: str, patience_us: int) -> None:
        """Write the state into the file, as if it were written at the end of the time that is asked for."""
        if self._file is None:
            return
        until_s = self._clock.wall_ms() / 1_000 + patience_us / 1e6
        with suppress(OSError):
            part = self._file.with_name(f"{self._file.name}.{os.getpid()}")
            part.write_text(f"{state} {process_of(os.getpid())}")
            os.utime(part, (until_s, until_s))
            part.replace(self._file)


def process_of(pid: int) -> str:
    """Return the number of a process and when it began, which no later process has; empty if there is none."""
    try:
        began = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""
    return f"{pid} {began}"


def _address(name: str) -> str | None:
    """Return the address of a path or an abstract name; systemd's other kinds are for virtual machines."""
    if name.startswith("@"):
        return f"\0{name[1:]}"
    return name if name.startswith("/") else None


def _timeout_us(environ: Mapping[str, str]) -> int:
    """Return the watchdog's timeout for this process; 0 if there is none or it is for another process."""
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0
    text = environ.get("WATCHDOG_USEC", "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else 0


PULSE = Pulse(os.environ)
"""The pulse of this process."""
