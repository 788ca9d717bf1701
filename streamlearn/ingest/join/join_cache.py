"""LotShelf: the joins of all lots that a worker's process holds, shared by its threads.

A runner has many instances of a step, each in a thread of its own, and gives a key to one of them at a time. So joins
are not the step's but the process's. It knows no runner and not what joins do.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import PipelineFailed
from streamlearn.ingest.join.lot_join import NO_BOUND, LotJoin

__all__ = ["LotShelf", "close_shelf", "open_shelf"]

# A lot that was not asked for during that long is another worker's now.
_UNASKED_S = 300.0


class _Place(NamedTuple):
    join: LotJoin
    bytes: int
    pending: int
    fullness: float


class LotShelf:
    """Joins by lot.

    `take` takes a join off, and `put` puts it back: whoever fails in between leaves nothing behind, and the join is
    made again from its log. Guaranteed: nobody else has a join that was taken.

    A runner is to give a lot to one bundle at a time. `claim` says which one works on a lot, until `release`; another
    that comes meanwhile read its state before the first had kept its own, and what one of the two keeps would be lost.

    What joins may hold together is shared among the lots that are worked on here, alike: requests are hashed into them,
    so they are alike. A share is a lot's own, whatever the others do, so none ever waits for another.

    Attributes:
        heads: The head of each lot, of a runner that keeps nothing beyond its process.

    Args:
        bytes_max: What all joins may hold together.
        drops: Whether joins that nobody asked for in a long time are dropped, since they can be made again.
        clock: For how long a lot was not asked for.
    """

    def __init__(self, bytes_max: int = NO_BOUND, *, drops: bool = True, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock, self._drops, self._bytes_max = clock, drops, bytes_max
        self._lock = threading.Lock()
        self._places: dict[int, _Place] = {}
        self._asked_s: dict[int, float] = {}
        self._swept_s = clock.monotonic_s()
        self._bytes = self._pending = 0
        self._claims: dict[int, object] = {}
        self.heads: dict[int, bytes] = {}

    def claim(self, lot: int, owner: object) -> None:
        """Say who works on a lot.

        Raises:
            PipelineFailed: Somebody else does.
        """
        with self._lock:
            found = self._claims.setdefault(lot, owner)
        if found is not owner:
            message = f"the runner gives lot {lot} to two bundles at once; the state of one of them would be lost"
            hint = (
                "this bundle was not stored: start ingest again. If it happens again, report it with the "
                "runner and its version; on Prism, keep the experiment prism_disable_sdf_split"
            )
            raise PipelineFailed(message, help=hint)

    def release(self, owner: object) -> None:
        """Say that an owner's bundle is over, whatever became of it."""
        with self._lock:
            for lot in [lot for lot, one in self._claims.items() if one is owner]:
                del self._claims[lot]

    @property
    def bytes(self) -> int:
        """Bytes of the joins that are here."""
        return self._bytes

    @property
    def pending(self) -> int:
        """Impressions in the joins that are here."""
        return self._pending

    @property
    def fullness(self) -> float:
        """Of the fullest join that is here: what it holds of what it may."""
        with self._lock:
            return max((one.fullness for one in self._places.values()), default=0.0)

    @property
    def share_bytes(self) -> int:
        """What the join of each lot may hold, as many as are worked on now."""
        with self._lock:
            return max(1, self._bytes_max // max(1, len(self._asked_s)))

    def take(self, lot: int, generation: int, count: int) -> LotJoin | None:
        """Take a lot's join off, if it is what a head says; another is dropped."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            self._asked_s[lot] = now_s
            join = self._remove(lot)
        if join is None or (join.generation, join.count) != (generation, count):
            return None
        return join

    def put(self, lot: int, join: LotJoin) -> None:
        """Put a join back, and drop those nobody asked for in a long time."""
        now_s = self._clock.monotonic_s()
        place = _Place(join, join.bytes, join.pending, join.fullness)
        with self._lock:
            self._remove(lot)
            self._places[lot], self._asked_s[lot] = place, now_s
            self._bytes += place.bytes
            self._pending += place.pending
            if self._drops and now_s - self._swept_s > _UNASKED_S:
                self._swept_s = now_s
                for other in [at for at, asked_s in self._asked_s.items() if now_s - asked_s > _UNASKED_S]:
                    self._remove(other)
                    del self._asked_s[other]

    def _remove(self, lot: int) -> LotJoin | None:
        place = self._places.pop(lot, None)
        if place is None:
            return None
        self._bytes -= place.bytes
        self._pending -= place.pending
        return place.join


_LOCK = threading.Lock()
_SHELVES: dict[str, tuple[int, LotShelf]] = {}


def open_shelf(progress_url: str, run: int, bytes_max: int = NO_BOUND, *, drops: bool = True) -> LotShelf:
    """The process's own shelf of a run. That of another run before it is let go of.

    It outlives the step's instances: a runner ends those that it has no work for, and joins would have to be made
    again from their logs.
    """
    with _LOCK:
        found = _SHELVES.get(progress_url)
        if found is None or found[0] != run:
            found = _SHELVES[progress_url] = (run, LotShelf(bytes_max, drops=drops))
        return found[1]


def close_shelf(progress_url: str, run: int) -> None:
    """Let go of a run's joins."""
    with _LOCK:
        if progress_url in _SHELVES and _SHELVES[progress_url][0] == run:
            del _SHELVES[progress_url]
