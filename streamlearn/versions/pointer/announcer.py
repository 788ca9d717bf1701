"""Announcer: tells the registry what the store was told before. It never keeps its caller from going on.

While the registry is away, or was never told, it only remembers that: what there is to tell is in the store.
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
from streamlearn.versions.pointer.rebuild import rebuild_registry
from streamlearn.versions.pointer.registry import Note, Registry
from streamlearn.versions.store.interface import Store

__all__ = ["Announcer"]

_LOG = logging.getLogger(__name__)
# The longest pause between two tries while the registry is away, in reaches.
_PAUSE_REACHES_MAX = 16
# Moves whose lines of the audit log are made up for; an operator who wants more rebuilds the registry.
_NOTES_MAX = 100


class Announcer:
    """Tells one registry of one store. Calls may come from several threads at once.

    Each call tries once, and takes `reach_s` at most for an answer; after a try that failed, others are put off for a
    while that doubles, so that a publisher is not slowed by a registry that is away. Call `keep_up` again and again.

    Args:
        store: Where the versions and the pointer are.
        registry: What is told.
        clock: For pauses.

    Examples:
        >>> from streamlearn.testing import MemoryRegistry
        >>> from streamlearn.versions import PointerLog, open_store
        >>> from streamlearn.versions.pointer.announcer import Announcer
        >>> store, registry = open_store("memory://announcer-example"), MemoryRegistry("ctr")
        >>> announcer = Announcer(store, registry)
        >>> registry.is_away = True
        >>> announcer.note("ada", "compact"), announcer.is_behind()
        (False, True)
    """

    def __init__(self, store: Store, registry: Registry, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._store, self._registry, self._clock = store, registry, clock
        # Its own, so that what it read of the store it need not read again; nothing of the registry is in it.
        self._history = History(store, registry.model)
        self._log = PointerLog(store, registry.model)
        self._lock = threading.Lock()
        self._behind_since_s: float | None = None
        self._next_try_s, self._pause_s = 0.0, registry.settings.reach_s

    def is_behind(self) -> bool:
        """Whether the registry lacks something that it was to be told."""
        return self._behind_since_s is not None

    def moved(self, pointer: Pointer, what: str) -> bool:
        """Tell of a move of the pointer, with its line of the audit log.

        Args:
            pointer: What the store has now.
            what: What was done, such as "rollback".

        Returns:
            Whether the registry knows; if not, it is told later, and nodes see it in the store.
        """
        version = 0 if pointer.active is None else pointer.active.version
        said = Note(
            wall_ms=pointer.wall_ms, by=pointer.by, what=what, seq=pointer.seq, version=version, reason=pointer.reason
        )

        def tell() -> None:
            held = self._registry.pointer()
            self._registry.announce(pointer)
            self._registry.note(said)
            if pointer.seq > 1 and (held is None or held.seq < pointer.seq - 1):
                # It was made anew meanwhile, or somebody's move was not told: what else it lacks is in the store.
                self._make_up()

        return self._try(tell)

    def published(self, known: Iterable[Known]) -> bool:
        """Tell of versions that are new, or of which something new is known."""
        some = tuple(known)
        return self._try(lambda: self._registry.put_versions(some))

    def dropped(self, versions: Sequence[int]) -> bool:
        """Tell of versions that the store has no more."""
        return self._try(lambda: self._registry.drop_versions(versions))

    def note(self, by: str, what: str, *, version: int = 0, reason: str = "") -> bool:
        """Tell of what is no move of the pointer. It is in no store: while the registry is away it is only logged."""
        said = Note(wall_ms=max(0, self._clock.wall_ms()), by=by, what=what, version=version, reason=reason)
        is_told = self._try(lambda: self._registry.note(said))
        if not is_told:
            extra = {"by": by, "version": version, "reason": reason}
            _LOG.info("%s is not in the audit log of the registry", what, extra=extra)
        return is_told

    def keep_up(self) -> bool:
        """See that the registry has what the store has, whoever told the store; make up for it if not.

        It costs a look at each when nothing is to be done.

        Returns:
            Whether the registry has it.
        """
        is_told = self._try(self._compare)
        if is_told:
            self._measure(0)
        return is_told

    def _compare(self) -> None:
        # The registry first: moves go to the store first, so that it can only be behind what is read then.
        held, newest = self._registry.pointer(), self._log.newest()
        if held != newest and (held is not None or newest.seq):
            self._make_up()

    def _make_up(self) -> None:
        rebuild_registry(self._store, self._registry, history=self._history, notes_max=_NOTES_MAX)

    def _try(self, tell: Callable[[], object]) -> bool:
        """Tell, and what was not told before."""
        with self._lock:
            now_s = self._clock.monotonic_s()
            if self._behind_since_s is not None and now_s < self._next_try_s:
                self._measure(now_s - self._behind_since_s)
                return False
            try:
                tell()
                if self._behind_since_s is not None:
                    self._make_up()
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
            away_s = self._clock.monotonic_s() - self._behind_since_s
            _LOG.info(
                "the registry at %s has the state of the store again", self._registry.url, extra={"away_s": away_s}
            )
            self._behind_since_s = None
            self._measure(0)

    def _measure(self, behind_s: float) -> None:
        # Not before it is needed: a verb that finds the registry has no use for metrics.
        help = "Time for which the registry has missed the state of the store; 0 while it is up to date."
        gauge("publisher", "registry_behind", "seconds", help, ("model",)).labels(self._registry.model).set(behind_s)
