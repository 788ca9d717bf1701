"""A clock that only the test moves."""

from __future__ import annotations

import threading

__all__ = ["ManualClock"]


class ManualClock:
    """A `Clock` for tests that begins at `wall_ms`; `sleep` moves it forward at once, without waiting.

    Examples:
        >>> clock = ManualClock(wall_ms=1_000)
        >>> clock.sleep(2.5)
        >>> clock.wall_ms(), clock.monotonic_s()
        (3500, 2.5)
    """

    def __init__(self, wall_ms: int = 1_700_000_000_000) -> None:
        self._begin_ms = wall_ms
        self._elapsed_s = 0.0
        self._lock = threading.Lock()

    def wall_ms(self) -> int:
        """See `Clock`."""
        return self._begin_ms + round(self._elapsed_s * 1000)

    def monotonic_s(self) -> float:
        """Return seconds since construction."""
        return self._elapsed_s

    def sleep(self, seconds: float) -> None:
        """Move the clock forward."""
        assert seconds >= 0, seconds
        with self._lock:
            self._elapsed_s += seconds
