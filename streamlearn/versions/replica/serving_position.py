"""Seat: the pointer a node has heard of, and the tables it answers from. It asks no registry and no store."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace

from streamlearn.clock import Clock
from streamlearn.versions.format.record import VersionRef
from streamlearn.versions.pointer.moves import Canary, Pointer
from streamlearn.versions.replica.pointer_follower import wanted_of
from streamlearn.versions.replica.staged_versions import Staged

__all__ = ["Followed", "Seat"]


@dataclass(frozen=True)
class Followed:
    """What a node did about a pointer.

    Attributes:
        seq: Of the pointer.
        ref: The version that answers since.
        took_ms: From when it was heard of.
        is_other: Whether another version answered before, or the same from other tables.
        is_done: Whether all that the pointer wants is ready now; if not, the canary is not yet.
        canary: The version that is tried beside it since; None for none, or one that is not ready.
        turn: Its place among what this node did; a later turn may follow a lower seq.
    """

    seq: int
    ref: VersionRef
    took_ms: float
    is_other: bool
    is_done: bool
    canary: Canary | None
    turn: int


class Seat:
    """What is shared by the thread that follows the pointer, the one that stages, and all who read.

    Args:
        clock: What time is taken by.

    Attributes:
        pointer: The newest that was heard of. What the registry says is provisional until `look` has compared it.
        current: The tables that are answered from; None before there are any, and while a node that drained builds.
        refuted: The last move that was heard of and that the store does not have.
        is_draining: Whether the tables are given up to build others.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self.pointer = Pointer()
        self.current: Staged | None = None
        self.refuted: Pointer | None = None
        self.is_draining = False
        self._done = Pointer()
        self._turns = 0
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
        """Take the registry's copy of the pointer if it is newer and was not refuted; gives whether it was taken."""
        with self._lock:
            self._news_s = self._clock.monotonic_s()
            if pointer is None or pointer.seq <= self.pointer.seq or pointer == self.refuted:
                return False
            self._take(pointer)
            return True

    def look(self, heard: Pointer, newest: Pointer) -> bool:
        """Take the newest move of the store, and give up what was heard if the store does not have it.

        Args:
            heard: `pointer`, read before the store: moves are in the store before anybody hears of them.
            newest: The newest move of the store, which is `heard` or a later one wherever the store has `heard`.

        Returns:
            Whether `heard` was given up.
        """
        with self._lock:
            self._news_s = self._clock.monotonic_s()
            is_refuted = newest.seq <= heard.seq and newest != heard and self.pointer == heard
            if is_refuted:
                # What was heard may have been acted on in part, so whatever was done before is done again.
                self.refuted, self._done = heard, Pointer()
            if is_refuted or newest.seq > self.pointer.seq:
                self._take(newest)
            return is_refuted

    def move(self) -> Followed | None:
        """Answer with what the pointer says, if it is ready; None when there is nothing to do, or it is not."""
        with self._lock:
            return self._moved(self.current)

    def switch(self, built: Staged) -> Followed | None:
        """Answer from other tables from now on; who reads the old ones goes on.

        Gives what was done, as though the version were another: it is in other tables.
        """
        with self._lock:
            moved = self._moved(built)
            if built.active is None and built.is_ready(self.pointer.active):
                assert self.pointer.active is not None
                built.activate(self.pointer.active)
            self.current, self.is_draining = built, False
            if built.active is None:
                return None
            if moved is None:
                canary = self.pointer.canary if built.are_ready(wanted_of(self.pointer)) else None
                self._turns += 1
                moved = Followed(
                    self.acted, built.active, 0.0, is_other=True, is_done=False, canary=canary, turn=self._turns
                )
            return replace(moved, is_other=True)

    def drop(self) -> None:
        """Answer from nothing until there are other tables."""
        with self._lock:
            self.current = None

    @property
    def behind_s(self) -> float:
        """Since when the pointer wants what this node does not do."""
        behind_s = self._behind_s
        return 0.0 if behind_s is None else self._clock.monotonic_s() - behind_s

    @property
    def silent_s(self) -> float:
        """Since when nothing was heard of the pointer."""
        return self._clock.monotonic_s() - self._news_s

    def _take(self, pointer: Pointer) -> None:
        self.pointer, self._heard_s = pointer, self._news_s
        if self._behind_s is None and pointer.active is not None:
            self._behind_s = self._news_s

    def _moved(self, staged: Staged | None) -> Followed | None:
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
        self._turns += 1
        return Followed(pointer.seq, pointer.active, took_ms, is_other, is_done, canary, self._turns)
