"""ServingPosition: the newest known pointer and the tables that answer. It asks no registry and no store."""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, replace

from streamlearn.clock import Clock
from streamlearn.versions.format.record import VersionRef
from streamlearn.versions.pointer.moves import Canary, Pointer
from streamlearn.versions.replica.pointer_follower import wanted_of
from streamlearn.versions.replica.staged_versions import StagedVersions

__all__ = ["AppliedMove", "ServingPosition"]


@dataclass(frozen=True)
class AppliedMove:
    """The effect of a pointer move on a node.

    Attributes:
        ref: The version that now answers.
        took_ms: The time since the node learned of the pointer.
        is_other: Whether another version answered before, or the same one from other tables.
        is_done: Whether all versions that the pointer wants are ready; if not, the canary is missing.
        canary: The canary that is tried now; None for none, or for one that is not ready.
        turn: Counts these effects on a node; a later turn may have a lower seq.
    """

    seq: int
    ref: VersionRef
    took_ms: float
    is_other: bool
    is_done: bool
    canary: Canary | None
    turn: int


class ServingPosition:
    """The state shared by the thread that follows the pointer, the one that stages, and all readers.

    Attributes:
        pointer: The newest known pointer. The registry's is provisional until `look` has compared it with the store.
        current: The tables that answer; None before the first, and while a drained node rebuilds them.
        refuted: The last move that the registry announced and the store does not have.
        is_draining: Whether the tables are given up to build others.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self.pointer = Pointer()
        self.current: StagedVersions | None = None
        self.refuted: Pointer | None = None
        self.is_draining = False
        self._done = Pointer()
        self._turns = itertools.count(1)
        self._heard_s = self._news_s = clock.monotonic_s()
        self._behind_s: float | None = None

    @property
    def acted(self) -> int:
        """The seq of the pointer that was acted on; 0 for none, or for one that was refuted."""
        return self._done.seq

    @property
    def is_done(self) -> bool:
        """Whether the pointer was acted on."""
        return self._done.seq > 0 and self._done == self.pointer

    def hear(self, pointer: Pointer | None) -> bool:
        """Take the registry's pointer if it is newer and not refuted; returns whether it was taken."""
        with self._lock:
            self._news_s = self._clock.monotonic_s()
            if pointer is None or pointer.seq <= self.pointer.seq or pointer == self.refuted:
                return False
            self._take(pointer)
            return True

    def look(self, heard: Pointer, newest: Pointer) -> bool:
        """Take the store's newest move, and refute `heard` if the store does not have it.

        `heard` must be `pointer` as read before the store was: moves are written to the store before they are
        announced, so a store that has `heard` shows it or a later one. Returns whether `heard` was refuted.
        """
        with self._lock:
            self._news_s = self._clock.monotonic_s()
            is_refuted = newest.seq <= heard.seq and newest != heard and self.pointer == heard
            if is_refuted:
                # The refuted move may have been acted on in part, so act on the store's move even if that was done.
                self.refuted, self._done = heard, Pointer()
            if is_refuted or newest.seq > self.pointer.seq:
                self._take(newest)
            return is_refuted

    def move(self) -> AppliedMove | None:
        """Answer with the pointer's version if it is ready; returns None if nothing changed."""
        with self._lock:
            return self._moved(self.current)

    def switch(self, built: StagedVersions) -> AppliedMove | None:
        """Answer from other tables; readers of the old ones continue.

        The effect counts as another version (`is_other`), because it is in other tables.
        """
        with self._lock:
            move = self._moved(built)
            if built.active is None and built.is_ready(self.pointer.active):
                assert self.pointer.active is not None
                built.activate(self.pointer.active)
            self.current, self.is_draining = built, False
            if built.active is None:
                return None
            if move is None:
                canary = self.pointer.canary if built.are_ready(wanted_of(self.pointer)) else None
                return AppliedMove(self.acted, built.active, 0.0, True, False, canary, next(self._turns))
            return replace(move, is_other=True)

    def drop(self) -> None:
        """Answer from nothing until there are other tables."""
        with self._lock:
            self.current = None

    @property
    def behind_s(self) -> float:
        """How long the node has not done what the pointer wants."""
        behind_s = self._behind_s
        return 0.0 if behind_s is None else self._clock.monotonic_s() - behind_s

    @property
    def silent_s(self) -> float:
        """How long there was no news of the pointer."""
        return self._clock.monotonic_s() - self._news_s

    def _take(self, pointer: Pointer) -> None:
        self.pointer, self._heard_s = pointer, self._news_s
        if self._behind_s is None and pointer.active is not None:
            self._behind_s = self._news_s

    def _moved(self, staged: StagedVersions | None) -> AppliedMove | None:
        pointer = self.pointer
        if staged is None or pointer.active is None or pointer == self._done:
            return None
        before = staged.active
        if before != pointer.active and not staged.activate(pointer.active):
            return None
        is_done = staged.are_ready(wanted_of(pointer))
        if is_done:
            self._done, self._behind_s = pointer, None
        took_ms = (self._clock.monotonic_s() - self._heard_s) * 1_000
        is_other = before != pointer.active
        if not is_other and not is_done:
            return None
        canary = pointer.canary if is_done else None
        return AppliedMove(pointer.seq, pointer.active, took_ms, is_other, is_done, canary, next(self._turns))
