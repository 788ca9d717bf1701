"""SteadyClock: a wall clock that does not run ahead of the monotonic clock. It does not know watermarks."""

from __future__ import annotations

import logging
import threading

from streamlearn.clock import Clock
from streamlearn.telemetry import gauge

__all__ = ["SteadyClock"]

_LOG = logging.getLogger(__name__)
_SLACK_MS = 5_000
_TRUSTED_AFTER_S = 600.0
_READ_S_MAX = 1.0


class SteadyClock:
    """Returns the wall time of `clock`. After the wall jumps ahead, it continues by the monotonic clock.

    A wall that is one hour ahead for one second would move the watermark by an hour for good, and the events of that
    hour would be late. A wall that goes back is followed at once. A wall that stays ahead for ten minutes is trusted
    again: the clock was corrected, or the machine slept.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._trusted = self._read_clocks()
        self._ahead_since_s: float | None = None
        self._ahead = gauge(
            "ingest",
            "wall_ahead",
            "seconds",
            "Seconds by which the wall clock is ahead of the monotonic clock; 0 while ingest uses the wall clock.",
        )

    def wall_ms(self) -> int:
        """Return the wall time, or what it would be without the jump."""
        with self._lock:
            wall_ms, now_s = self._read_clocks()
            trusted_ms, trusted_s = self._trusted
            expected_ms = trusted_ms + round((now_s - trusted_s) * 1_000)
            ahead_s = (wall_ms - expected_ms) / 1_000
            if wall_ms - expected_ms <= _SLACK_MS:
                if self._ahead_since_s is not None:
                    _LOG.warning("the wall clock agrees with the monotonic clock again")
            elif self._ahead_since_s is None or now_s - self._ahead_since_s < _TRUSTED_AFTER_S:
                if self._ahead_since_s is None:
                    self._ahead_since_s = now_s
                    _LOG.error("the wall clock jumped %.1f s ahead; watermarks use the monotonic clock", ahead_s)
                self._ahead.set(ahead_s)
                return expected_ms
            else:
                _LOG.warning(
                    "the wall clock stayed %.1f s ahead for %.0f s: watermarks use it again", ahead_s, _TRUSTED_AFTER_S
                )
            self._trusted, self._ahead_since_s = (wall_ms, now_s), None
            self._ahead.set(0)
            return wall_ms

    @property
    def ahead_ms(self) -> int:
        """How far the wall is ahead of `wall_ms`."""
        return max(0, self._clock.wall_ms() - self.wall_ms())

    def monotonic_s(self) -> float:
        """Return seconds on the monotonic clock."""
        return self._clock.monotonic_s()

    def sleep(self, seconds: float) -> None:
        """Sleep."""
        self._clock.sleep(seconds)

    def _read_clocks(self) -> tuple[int, float]:
        """Read both clocks at one moment; repeat if the process was paused in between."""
        while True:
            before_s = self._clock.monotonic_s()
            wall_ms, now_s = self._clock.wall_ms(), self._clock.monotonic_s()
            if now_s - before_s <= _READ_S_MAX:
                return wall_ms, now_s
