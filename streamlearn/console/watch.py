"""Watch: what a model is like, looked at by one thread for however many visitors, and only while there are some.

A visitor never waits for the store longer than a bound: where it hangs or fails, the last that was seen is given, with
what went wrong since.
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
    """What a visitor is given.

    Attributes:
        found: What was gathered last; None before the first time.
        state: The page's state of it, as JSON; `null` before the first time.
        error: What went wrong when it was last tried; empty when nothing did.
        help: What to do about that.
    """

    found: Gathered | None = None
    state: bytes = b"null"
    error: str = ""
    help: str = ""


class Watch:
    """Looks at a model again and again while somebody asks.

    Args:
        gather: Reads the model; called by one thread.
        tell: The page's state of what was gathered.
        refresh_s: The pause between two looks.
        idle_s: Nobody is there when nobody asked for so long.
    """

    def __init__(
        self, gather: Callable[[], Gathered], tell: Callable[[Gathered], Facts], *, refresh_s: float, idle_s: float
    ) -> None:
        self._gather, self._tell = gather, tell
        self._refresh_s, self._idle_s = refresh_s, idle_s
        self._changed = threading.Condition()
        self._seen = Seen()
        self._asked_s = self._ended_s = float("-inf")
        self._wanted = 0  # grows whenever what was seen, or is being looked at, is no longer how things are
        self._is_closed = False
        self._took = gauge("console", "look", "seconds", "How long the last read of store and registry took.")
        self._thread = threading.Thread(target=self._run, name="console-watch", daemon=True)
        self._thread.start()

    def seen(self, wait_s: float) -> Seen:
        """What a look gave that is not older than a visitor may expect.

        Args:
            wait_s: How long a look is waited for; then what was seen before is given, and that it is late.
        """
        with self._changed:
            self._asked_s = asked_s = time.monotonic()
            self._changed.notify_all()
            oldest_s = asked_s - 2 * self._refresh_s
            if self._changed.wait_for(lambda: self._is_closed or self._ended_s >= oldest_s, wait_s):
                return self._seen
            said = self._seen.error or f"store and registry have not answered within {wait_s:g} s"
            help = self._seen.help or "check whether the store answers: `streamlearn versions` shows more"
            return replace(self._seen, error=said, help=help)

    def look(self) -> None:
        """Look at once: something was done."""
        with self._changed:
            self._wanted += 1
            self._ended_s = float("-inf")
            self._asked_s = time.monotonic()
            self._changed.notify_all()

    def close(self) -> None:
        """Look no more. A look that hangs is left to the end of the process."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        while self._wait():
            wanted, began_s = self._wanted, time.monotonic()
            seen = self._look()
            self._took.set(time.monotonic() - began_s)
            with self._changed:
                self._seen = seen
                if wanted == self._wanted:
                    self._ended_s = time.monotonic()
                self._changed.notify_all()

    def _wait(self) -> bool:
        """Wait until a look is due and somebody is there. Gives whether to go on."""
        with self._changed:
            while not self._is_closed:
                now_s = time.monotonic()
                due_s = self._ended_s + self._refresh_s - now_s
                is_somebody = now_s - self._asked_s < self._idle_s
                if is_somebody and due_s <= 0:
                    return True
                self._changed.wait(due_s if is_somebody else None)
            return False

    def _look(self) -> Seen:
        try:
            found = self._gather()
            return Seen(found, msgspec.json.encode(self._tell(found)))
        except StreamlearnError as error:
            return replace(self._seen, error=error.message, help=error.help)
        except Exception:
            # The thread stays for the next look: a page that shows nothing is no help in an incident.
            _LOG.exception("reading the state of the model failed")
            return replace(self._seen, error="reading the state of the model failed", help="see the console's log")
