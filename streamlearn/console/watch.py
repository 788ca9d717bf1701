"""Watch: reads a model's state in one thread for all visitors, and only while there are visitors.

A visitor waits for the store only up to a bound. If it hangs or fails, they get the last state, and the error.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec

from streamlearn.console.snapshot import Gathered
from streamlearn.errors import StreamlearnError
from streamlearn.telemetry import gauge
from streamlearn.versions.pointer.facts import Facts

__all__ = ["Seen", "Watch"]

_LOG = logging.getLogger(__name__)
_CLOSE_S = 5.0


@dataclass(frozen=True)
class Seen:
    """The last state that was gathered, also for the page as JSON, and the error of the last attempt, if it failed."""

    found: Gathered | None = None
    state: bytes = b"null"
    error: str = ""
    help: str = ""


class Watch:
    """Reads a model with `gather` every `refresh_s` in one thread; pauses after `idle_s` without a visit.

    `tell` converts the state for the page.
    """

    def __init__(
        self, gather: Callable[[], Gathered], tell: Callable[[Gathered], Facts], *, refresh_s: float, idle_s: float
    ) -> None:
        self._gather, self._tell = gather, tell
        self._refresh_s, self._idle_s = refresh_s, idle_s
        self._changed = threading.Condition()
        self._seen = Seen()
        self._visited_s = self._read_s = float("-inf")
        self._moves = 0  # grows when the last state, or the one that is being read, is out of date
        self._is_closed = False
        self._took = gauge("console", "look", "seconds", "How long the last read of store and registry took.")
        self._thread = threading.Thread(target=self._run, name="console-watch", daemon=True)
        self._thread.start()

    def seen(self, wait_s: float) -> Seen:
        """Return a recent state. After `wait_s`, return the last one with an error that it is late."""
        with self._changed:
            self._visited_s = now_s = time.monotonic()
            self._changed.notify_all()
            oldest_s = now_s - 2 * self._refresh_s
            if self._changed.wait_for(lambda: self._is_closed or self._read_s >= oldest_s, wait_s):
                return self._seen
            error = self._seen.error or f"store and registry have not answered within {wait_s:g} s"
            help = self._seen.help or "check whether the store answers: `streamlearn versions` shows more"
            return replace(self._seen, error=error, help=help)

    def look(self) -> None:
        """Read at once, because something was changed."""
        with self._changed:
            self._moves += 1
            self._read_s = float("-inf")
            self._visited_s = time.monotonic()
            self._changed.notify_all()

    def close(self) -> None:
        """Stop reading. A read that hangs ends with the process."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        while self._wait():
            moves, begin_s = self._moves, time.monotonic()
            seen = self._look()
            self._took.set(time.monotonic() - begin_s)
            with self._changed:
                self._seen = seen
                if moves == self._moves:
                    self._read_s = time.monotonic()
                self._changed.notify_all()

    def _wait(self) -> bool:
        """Wait until a read is due and there are visitors. Return false when the watch is closed."""
        with self._changed:
            while not self._is_closed:
                now_s = time.monotonic()
                due_s = self._read_s + self._refresh_s - now_s
                is_visited = now_s - self._visited_s < self._idle_s
                if is_visited and due_s <= 0:
                    return True
                self._changed.wait(due_s if is_visited else None)
            return False

    def _look(self) -> Seen:
        try:
            gathered = self._gather()
            return Seen(gathered, msgspec.json.encode(self._tell(gathered)))
        except StreamlearnError as error:
            return replace(self._seen, error=error.message, help=error.help)
        except Exception:
            # Keep the thread for the next read: an empty page is no help in an incident.
            _LOG.exception("reading the state of the model failed")
            return replace(self._seen, error="reading the state of the model failed", help="see the console's log")
