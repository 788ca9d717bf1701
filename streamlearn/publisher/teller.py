"""Teller: reports a publisher's versions and moves to the registry, and repeats reports that the registry missed.

The store stays the truth.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from streamlearn.clock import Clock
from streamlearn.versions import Known, Pointer, Registry, Store
from streamlearn.versions.pointer.announcer import Announcer

__all__ = ["Teller"]


class Teller:
    """Reports versions and moves to a registry; without one it does nothing."""

    def __init__(self, registry: Registry | None, store: Store, clock: Clock) -> None:
        self._announcer = None if registry is None else Announcer(store, registry, clock=clock)
        self._pause_s = 0.0 if registry is None else registry.settings.reach_s
        self._clock, self._lock = clock, threading.Lock()
        self._reported: dict[int, Known] = {}
        self._retry_s = 0.0

    @property
    def is_due(self) -> bool:
        """Whether the registry missed a report, and it is time to try again."""
        is_behind = self._announcer is not None and self._announcer.is_behind()
        return is_behind and self._clock.monotonic_s() >= self._retry_s

    def tell(self, known: Sequence[Known], moved: Pointer | None) -> None:
        """Report new, changed and removed versions, and a move; if the registry does not answer, `tell_again` does."""
        if self._announcer is None:
            return
        with self._lock:
            now = {version.version: version for version in known}
            new = [version for version in known if self._reported.get(version.version) != version]
            gone = [version for version in self._reported if version not in now]
            self._reported = now
            if new:
                self._announcer.published(new)
            if gone:
                self._announcer.dropped(gone)
            if moved is not None:
                self._announcer.moved(moved, "promote")
            else:
                self._announcer.keep_up()
            self._retry_s = self._clock.monotonic_s() + self._pause_s

    def tell_again(self) -> None:
        """Repeat the reports that the registry missed."""
        if self._announcer is not None:
            with self._lock:
                self._announcer.keep_up()
                self._retry_s = self._clock.monotonic_s() + self._pause_s
