"""Announcer: copies to the registry what is in the store already. It never blocks its caller for long.

While the registry is unreachable, the announcer only remembers that, because the store has the complete state.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import RegistryUnreachable, StoreError, StreamlearnError
from streamlearn.telemetry import gauge
from streamlearn.versions.format.history import History
from streamlearn.versions.format.version_summary import Known
from streamlearn.versions.pointer.moves import Pointer
from streamlearn.versions.pointer.pointer_log import PointerLog
from streamlearn.versions.pointer.rebuild import is_stuck, rebuild_registry
from streamlearn.versions.pointer.registry import Note, Registry
from streamlearn.versions.store.interface import Store

__all__ = ["Announcer"]

_LOG = logging.getLogger(__name__)
# The longest backoff while the registry is unreachable, in units of `reach_s`.
_PAUSE_REACHES_MAX = 16
# Moves whose lines of the audit log are restored; an operator who wants more rebuilds the registry.
_NOTES_MAX = 100


class Announcer:
    """Announces one store's state to one registry. Several threads may call it at once.

    Each call makes one attempt, which takes at most `reach_s`. After a failure, attempts are suspended for a backoff
    that doubles, so an unreachable registry does not slow a publisher down. Call `keep_up` periodically.

    Examples:
        >>> from streamlearn.testing import MemoryRegistry
        >>> from streamlearn.versions import PointerLog, open_store
        >>> from streamlearn.versions.pointer.announcer import Announcer
        >>> store, registry = open_store("memory://announcer-example"), MemoryRegistry("ctr")
        >>> announcer = Announcer(store, registry)
        >>> registry.is_away = True
        >>> announcer.keep_up(), announcer.is_behind()
        (False, True)
    """

    def __init__(self, store: Store, registry: Registry, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._store, self._registry, self._clock = store, registry, clock
        # Its own history caches what it read from the store, and contains nothing from the registry.
        self._history = History(store, registry.model)
        self._log = PointerLog(store, registry.model)
        self._lock = threading.Lock()
        self._behind_since_s: float | None = None
        self._next_try_s, self._pause_s = 0.0, registry.settings.reach_s

    def is_behind(self) -> bool:
        """Return whether an announcement has not reached the registry yet."""
        return self._behind_since_s is not None

    def moved(self, pointer: Pointer, what: str) -> bool:
        """Announce a move of the pointer, and write its line of the audit log; `what` names it, such as "rollback".

        Returns:
            Whether the registry has it; if not, it follows later, and nodes read it from the store.
        """

        def announce() -> None:
            copy = self._registry.pointer()
            is_refused = not self._registry.announce(pointer)
            self._registry.note(Note.of_move(pointer, what))
            # The registry was reset, or another announcement did not reach it: more may be missing.
            is_incomplete = pointer.seq > 1 and (copy is None or copy.seq < pointer.seq - 1)
            if is_incomplete or (is_refused and is_stuck(self._registry, pointer)):
                self._rebuild()

        return self._try(announce)

    def published(self, known: Iterable[Known]) -> bool:
        """Announce new or changed summaries of versions."""
        entries = tuple(known)
        return self._try(lambda: self._registry.put_versions(entries))

    def dropped(self, versions: Sequence[int]) -> bool:
        """Announce versions that were deleted from the store."""
        return self._try(lambda: self._registry.drop_versions(versions))

    def keep_up(self) -> bool:
        """Compare the registry with the store, and rebuild it if it is behind; return whether it is up to date.

        If it is, this costs one read of each.
        """
        is_current = self._try(self._compare)
        if is_current:
            self._measure(0)
        return is_current

    def _compare(self) -> None:
        # The registry first: moves go to the store first, so the copy cannot be newer than what is read then.
        copy, newest = self._registry.pointer(), self._log.newest()
        if copy != newest and (copy is not None or newest.seq):
            self._rebuild()

    def _rebuild(self) -> None:
        rebuild_registry(self._store, self._registry, history=self._history, notes_max=_NOTES_MAX)

    def _try(self, announce: Callable[[], object]) -> bool:
        """Announce, and catch up on what was missed before."""
        with self._lock:
            now_s = self._clock.monotonic_s()
            if self._behind_since_s is not None and now_s < self._next_try_s:
                self._measure(now_s - self._behind_since_s)
                return False
            try:
                announce()
                if self._behind_since_s is not None:
                    self._rebuild()
            except (RegistryUnreachable, StoreError) as error:
                self._fell_behind(error)
                return False
            self._caught_up()
            return True

    def _fell_behind(self, error: StreamlearnError) -> None:
        now_s, reach_s = self._clock.monotonic_s(), self._registry.settings.reach_s
        if self._behind_since_s is None:
            self._behind_since_s, self._pause_s = now_s, reach_s
            _LOG.warning("the registry does not receive the state of the store for now: %s", error.message)
        self._next_try_s = now_s + self._pause_s
        self._pause_s = min(2 * self._pause_s, reach_s * _PAUSE_REACHES_MAX)
        self._measure(now_s - self._behind_since_s)

    def _caught_up(self) -> None:
        if self._behind_since_s is not None:
            extra = {"away_s": self._clock.monotonic_s() - self._behind_since_s}
            _LOG.info("the registry at %s has the state of the store again", self._registry.url, extra=extra)
            self._behind_since_s = None
            self._measure(0)

    def _measure(self, behind_s: float) -> None:
        # Declared at first use: a command that reaches the registry needs no metrics.
        help = "Time for which the registry has missed the state of the store; 0 while it is up to date."
        gauge("publisher", "registry_behind", "seconds", help, ("model",)).labels(self._registry.model).set(behind_s)
