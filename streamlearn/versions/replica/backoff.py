"""Backoff: when to retry work that failed. It knows no reason."""

from __future__ import annotations

from streamlearn.clock import Clock

__all__ = ["Backoff"]


class Backoff:
    """Waits that double up to a bound.

    Examples:
        >>> from streamlearn.testing import ManualClock
        >>> clock = ManualClock()
        >>> waits = Backoff(200, 30_000, clock)
        >>> waits.fail(), waits.fail(), waits.is_due
        (0.2, 0.4, False)
        >>> clock.sleep(0.4)
        >>> waits.is_due
        True
    """

    def __init__(self, first_ms: int, ms_max: int, clock: Clock) -> None:
        self._first_s, self._s_max, self._clock = first_ms / 1000, ms_max / 1000, clock
        self._wait_s = 0.0
        self._until_s: float | None = None

    @property
    def is_due(self) -> bool:
        """Whether a retry is allowed now."""
        return self._until_s is None or self._clock.monotonic_s() >= self._until_s

    @property
    def left_s(self) -> float:
        """The time until a retry is allowed."""
        return 0.0 if self._until_s is None else max(0.0, self._until_s - self._clock.monotonic_s())

    def fail(self) -> float:
        """Record a failure; returns the wait."""
        self._wait_s = min(self._s_max, self._wait_s * 2) if self._wait_s else min(self._first_s, self._s_max)
        self._until_s = self._clock.monotonic_s() + self._wait_s
        return self._wait_s

    def clear(self) -> None:
        """Record a success."""
        self._wait_s, self._until_s = 0.0, None
