"""Teller: tells the registry what a publisher did, and sees that what it missed is told. The store stays the truth."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from streamlearn.clock import Clock
from streamlearn.versions import Known, Pointer, Registry, Store
from streamlearn.versions.pointer.announcer import Announcer

__all__ = ["Teller"]


class Teller:
    """Tells a registry of versions and moves, when there is one.

    Args:
        registry: The registry; None tells nobody.
        store: Where versions and the pointer are.
        clock: What time is taken by.
    """

    def __init__(self, registry: Registry | None, store: Store, clock: Clock) -> None:
        self._announcer = None if registry is None else Announcer(store, registry, clock=clock)
        self._pause_s = 0.0 if registry is None else registry.settings.reach_s
        self._clock, self._lock = clock, threading.Lock()
        self._told: dict[int, Known] = {}
        self._retry_s = 0.0

    @property
    def is_due(self) -> bool:
        """Whether something was not told, and may be tried again now."""
        is_behind = self._announcer is not None and self._announcer.is_behind()
        return is_behind and self._clock.monotonic_s() >= self._retry_s

    def tell(self, known: Sequence[Known], moved: Pointer | None) -> None:
        """Tell what is new of versions, and of a move; a registry that does not answer is told later."""
        if self._announcer is None:
            return
        with self._lock:
            new = [one for one in known if self._told.get(one.version) != one]
            now = {one.version: one for one in known}
            gone = [version for version in self._told if version not in now]
            self._told = now
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
        """Tell what was missed."""
        if self._announcer is not None:
            with self._lock:
                self._announcer.keep_up()
                self._retry_s = self._clock.monotonic_s() + self._pause_s
