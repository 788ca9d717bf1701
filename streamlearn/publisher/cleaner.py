"""Cleaner: has old versions removed from the store, once an hour. It removes nothing itself."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from streamlearn.clock import Clock
from streamlearn.errors import StreamlearnError
from streamlearn.niceness import give_way
from streamlearn.publisher.meters import Meters

__all__ = ["Clean", "Cleaner"]

# Removes what retention no longer keeps; returns the number of files and of bytes.
Clean = Callable[[], tuple[int, int]]

_INTERVAL_S, _NICE = 3_600.0, 19
_log = logging.getLogger(__name__)


class Cleaner:
    """Calls `clean` at the first look and then once an hour, in a thread of low priority; without `clean` never."""

    def __init__(self, clean: Clean | None, meters: Meters, clock: Clock) -> None:
        self._clean, self._meters, self._clock = clean, meters, clock
        self._due_s = clock.monotonic_s()
        self._thread: threading.Thread | None = None

    def look(self) -> None:
        """Begin if it is due."""
        is_running = self._thread is not None and self._thread.is_alive()
        if self._clean is None or is_running or self._clock.monotonic_s() < self._due_s:
            return
        self._due_s = self._clock.monotonic_s() + _INTERVAL_S
        self._thread = threading.Thread(target=self._run, args=(self._clean,), name="streamlearn-clean", daemon=True)
        self._thread.start()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for the work that is under way."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self, clean: Clean) -> None:
        give_way(_NICE)
        try:
            files, size = clean()
        # Nothing waits for it, and what stays is removed by the next one.
        except Exception as error:
            reason = error.message if isinstance(error, StreamlearnError) else repr(error)
            self._meters.cleanups.labels("failed").inc()
            _log.warning("old versions could not be removed: %s", reason)
            return
        self._meters.cleanups.labels("done").inc()
        if files:
            _log.info("removed old versions: %d files, %.1f MB", files, size / 1e6)
