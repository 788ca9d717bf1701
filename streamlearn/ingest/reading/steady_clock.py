"""SteadyClock: a clock whose wall does not run ahead of the monotonic clock. It decides nothing about watermarks."""

from __future__ import annotations

import logging
import threading

from streamlearn.clock import Clock
from streamlearn.telemetry import gauge

__all__ = ["SteadyClock"]

_LOG = logging.getLogger(__name__)
_SLACK_MS = 5_000
_BELIEVED_AFTER_S = 600.0
_LOOK_S_MAX = 1.0


class SteadyClock:
    """Gives the wall's time, unless the wall steps ahead: then the time goes on by the monotonic clock.

    A wall that is one hour ahead for one second would move the watermark by an hour for good, and what comes in that
    hour would be late. A wall that goes back is followed at once. One that stays ahead for ten minutes is believed: its
    clock was set right, or the machine slept.

    Args:
        clock: The clock whose wall may step.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._known = self._look()
        self._ahead_since_s: float | None = None
        self._ahead = gauge(
            "ingest",
            "wall_ahead",
            "seconds",
            "Seconds by which the wall clock is ahead of the monotonic clock; 0 while ingest uses the wall clock.",
        )

    def wall_ms(self) -> int:
        """The wall's time, or what it would be had it not stepped ahead."""
        with self._lock:
            wall_ms, now_s = self._look()
            known_ms, known_s = self._known
            expected_ms = known_ms + round((now_s - known_s) * 1_000)
            ahead_s = (wall_ms - expected_ms) / 1_000
            if wall_ms - expected_ms <= _SLACK_MS:
                if self._ahead_since_s is not None:
                    _LOG.warning("the wall clock agrees with the monotonic clock again")
            elif self._ahead_since_s is None or now_s - self._ahead_since_s < _BELIEVED_AFTER_S:
                if self._ahead_since_s is None:
                    self._ahead_since_s = now_s
                    _LOG.error("the wall clock jumped %.1f s ahead; watermarks use the monotonic clock", ahead_s)
                self._ahead.set(ahead_s)
                return expected_ms
            else:
                _LOG.warning(
                    "the wall clock stayed %.1f s ahead for %.0f s: watermarks use it again", ahead_s, _BELIEVED_AFTER_S
                )
            self._known, self._ahead_since_s = (wall_ms, now_s), None
            self._ahead.set(0)
            return wall_ms

    @property
    def ahead_ms(self) -> int:
        """How far the wall is ahead of what `wall_ms` gives."""
        return max(0, self._clock.wall_ms() - self.wall_ms())

    def monotonic_s(self) -> float:
        """Seconds on the monotonic clock."""
        return self._clock.monotonic_s()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        self._clock.sleep(seconds)

    def _look(self) -> tuple[int, float]:
        """Both clocks at one moment: a process that was stopped between the two looks again."""
        while True:
            before_s = self._clock.monotonic_s()
            wall_ms, now_s = self._clock.wall_ms(), self._clock.monotonic_s()
            if now_s - before_s <= _LOOK_S_MAX:
                return wall_ms, now_s
