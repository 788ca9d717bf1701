"""A clock that moves only when told to."""

from __future__ import annotations

import threading

__all__ = ["ManualClock"]


class ManualClock:
    """A `Clock` for tests: `sleep` moves it forward at once, so that nothing waits.

    Args:
        wall_ms: The wall time it starts at.

    Examples:
        >>> clock = ManualClock(wall_ms=1_000)
        >>> clock.sleep(2.5)
        >>> clock.wall_ms(), clock.monotonic_s()
        (3500, 2.5)
    """

    def __init__(self, wall_ms: int = 1_700_000_000_000) -> None:
        self._begin_ms = wall_ms
        self._passed_s = 0.0
        self._lock = threading.Lock()

    def wall_ms(self) -> int:
        """Milliseconds since 1970 UTC."""
        return self._begin_ms + round(self._passed_s * 1000)

    def monotonic_s(self) -> float:
        """Seconds since it was made."""
        return self._passed_s

    def sleep(self, seconds: float) -> None:
        """Move forward."""
        assert seconds >= 0, seconds
        with self._lock:
            self._passed_s += seconds
