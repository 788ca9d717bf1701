"""Time as an argument: every part that needs the time takes a `Clock`; tests pass `testing.ManualClock`."""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["SYSTEM_CLOCK", "Clock", "SystemClock"]


class Clock(Protocol):
    """Where the time comes from. Wall time may jump; of monotonic time only differences mean anything."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970 UTC."""
        ...

    def monotonic_s(self) -> float:
        """Seconds on a clock that never goes back; only differences mean anything."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait; a manual clock moves itself forward instead."""
        ...


class SystemClock:
    """The machine's own time."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970 UTC."""
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """Seconds on the machine's monotonic clock."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait for that long."""
        time.sleep(seconds)


SYSTEM_CLOCK: Clock = SystemClock()
