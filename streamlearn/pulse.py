"""Pulse: what a process tells whoever runs it, in systemd's words: that it is ready, that it works, that it ends.

`streamlearn up` and systemd both give a process NOTIFY_SOCKET and WATCHDOG_USEC; where they are not, nothing is said.
A beat is sent by the loop that does the work, never by a thread that only beats: it proves that work goes round.
sd_notify(3) and sd_watchdog_enabled(3) say what the words mean.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from streamlearn.clock import SYSTEM_CLOCK, Clock

__all__ = ["PULSE", "Pulse"]

_READY, _BEAT, _STOPPING = "READY=1", "WATCHDOG=1", "STOPPING=1"
# A beat comes before so much of the silence that is borne has passed, and often enough that a wait with a bound of its
# own can take nearly all of it.
_OF_SILENCE, _EVERY_S_MAX = 3, 5.0


class Pulse:
    """Says how this process is; it neither raises nor waits, whatever becomes of who listens.

    Until it was ready it says nothing: how long a start may take is another's bound.

    Args:
        environ: The environment.
        clock: When the next beat is due.

    Examples:
        >>> pulse = Pulse({})
        >>> pulse.ready()
        >>> pulse.is_due
        False
    """

    def __init__(self, environ: Mapping[str, str], clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._address = _address(environ.get("NOTIFY_SOCKET", ""))
        self._silence_us = 0 if self._address is None else _silence_us(environ)
        # What is to be borne now, and what whoever listens was told of it.
        self._borne_us = self._told_us = self._silence_us
        self._is_ready = self._is_heard = False
        self._beat_s = 0.0

    @property
    def every_s(self) -> float:
        """How often somebody wants to hear of it at least; 0 where nobody does."""
        return min(self._silence_us / 1e6 / _OF_SILENCE, _EVERY_S_MAX)

    @property
    def is_due(self) -> bool:
        """Whether it is time for a beat: for whoever has to look whether there is reason for one."""
        is_asked = self._is_ready and (self._silence_us > 0 or not self._is_heard)
        return is_asked and self._clock.monotonic_s() - self._beat_s >= self.every_s

    def ready(self) -> None:
        """It does what it is for; saying so again changes nothing."""
        if not self._is_ready and self._address is not None:
            self._is_ready = True
            self._say()

    def beat(self) -> None:
        """Its work goes round. Call it as often as it does: between two beats that are due it costs nothing."""
        if self.is_due:
            self._say()

    def stopping(self) -> None:
        """It ends, and says no more."""
        if self._is_ready:
            self._say(_STOPPING)
            self._is_ready = False

    @contextmanager
    def patience(self, bound_s: float) -> Iterator[None]:
        """Work that goes round only once for so long: it may be silent until then, as it has a bound of its own.

        Args:
            bound_s: Its bound; the silence that is borne is added.
        """
        if not (self._is_ready and self._silence_us):
            yield
            return
        self._borne_us = self._silence_us + round(bound_s * 1e6)
        self._say()
        try:
            yield
        finally:
            self._borne_us = self._silence_us
            if self._is_ready:
                self._say()

    def _say(self, *words: str) -> None:
        """Say that it works, and what else is not known yet: whoever was too busy to take it before hears it now."""
        assert self._address is not None
        self._beat_s, borne_us = self._clock.monotonic_s(), self._borne_us
        said = [*words] if self._is_heard else [_READY, *words]
        if self._silence_us:
            said.append(_BEAT)
        if borne_us != self._told_us:
            said.append(f"WATCHDOG_USEC={borne_us}")
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as teller:
                teller.sendto("\n".join(said).encode(), self._address)
        except OSError:
            return
        self._is_heard, self._told_us = True, borne_us


def _address(named: str) -> str | None:
    """A path, or a name that is in no folder; systemd's other kinds are for virtual machines."""
    if named.startswith("@"):
        return f"\0{named[1:]}"
    return named if named.startswith("/") else None


def _silence_us(environ: Mapping[str, str]) -> int:
    """The silence that is borne of this process; 0 where it is asked of another, or of none."""
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0
    given = environ.get("WATCHDOG_USEC", "")
    return int(given) if given.isascii() and given.isdecimal() and len(given) < 20 else 0


PULSE = Pulse(os.environ)
"""This process's own."""
