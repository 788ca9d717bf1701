"""Time as an argument: every part that needs the time takes a `Clock`; tests pass `testing.ManualClock`."""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["SYSTEM_CLOCK", "Clock", "SystemClock"]


class Clock(Protocol):
    """A source of time. Wall time may jump."""

    def wall_ms(self) -> int:
        """Return milliseconds since 1970 UTC."""
        ...

    def monotonic_s(self) -> float:
        """Return seconds on a clock that never goes back; only differences have a meaning."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait; a manual clock moves itself forward instead."""
        ...


class SystemClock:
    """The machine's clock."""

    def wall_ms(self) -> int:
        """See `Clock`."""
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """See `Clock`."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """See `Clock`."""
        time.sleep(seconds)


SYSTEM_CLOCK: Clock = SystemClock()
