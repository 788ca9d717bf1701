"""LotShelf: the joins of all lots that a worker's process holds, shared by its threads.

A runner has many instances of a step, each in a thread of its own, and gives a key to one of them at a time. So the
process, not the step, owns the joins. This module knows no runner, nor what joins do.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import PipelineFailed
from streamlearn.ingest.join.lot_join import NO_BOUND, LotJoin
from streamlearn.ingest.process_registry import ProcessRegistry

__all__ = ["LotShelf", "close_shelf", "open_shelf"]

# A lot that was not used for this long has moved to another worker.
_UNUSED_S = 300.0


class _Entry(NamedTuple):
    join: LotJoin
    bytes: int
    pending: int
    fullness: float


class LotShelf:
    """Joins by lot.

    `take` removes a join, and `put` returns it: a failure in between leaves nothing behind, and the join is rebuilt
    from its log. Guaranteed: no other caller has a join that was taken.

    A runner must give a lot to one bundle at a time. `claim` marks the bundle that works on a lot, until `release`. A
    second one would have read the lot's state before the first has written its own, and one of both states would be
    lost.

    All lots in use here have equal shares of `bytes_max`: requests are hashed into them, so they are alike. A share is
    a lot's own, so no lot waits for another. If `drops`, joins that were not used for a long time are dropped, since
    they can be rebuilt.

    Attributes:
        heads: The head of each lot, for a runner that keeps nothing beyond its process.
        bytes: Bytes of the joins that are here.
        pending: Impressions in the joins that are here.
    """

    def __init__(self, bytes_max: int = NO_BOUND, *, drops: bool = True, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock, self._drops, self._bytes_max = clock, drops, bytes_max
        self._lock = threading.Lock()
        self._entries: dict[int, _Entry] = {}
        self._used_s: dict[int, float] = {}
        self._swept_s = clock.monotonic_s()
        self.bytes = self.pending = 0
        self._claims: dict[int, object] = {}
        self.heads: dict[int, bytes] = {}

    def claim(self, lot: int, owner: object) -> None:
        """Mark the owner that works on a lot. Raises `PipelineFailed` if another owner does."""
        with self._lock:
            claimant = self._claims.setdefault(lot, owner)
        if claimant is not owner:
            message = f"the runner gives lot {lot} to two bundles at once; the state of one of them would be lost"
            hint = (
                "this bundle was not stored: start ingest again. If it happens again, report it with the "
                "runner and its version; on Prism, keep the experiment prism_disable_sdf_split"
            )
            raise PipelineFailed(message, help=hint)

    def release(self, owner: object) -> None:
        """Release all lots of an owner, whether its bundle succeeded or not."""
        with self._lock:
            self._claims = {lot: claimant for lot, claimant in self._claims.items() if claimant is not owner}

    @property
    def fullness(self) -> float:
        """The share of its byte limit that the fullest join here holds."""
        with self._lock:
            return max((entry.fullness for entry in self._entries.values()), default=0.0)

    @property
    def share_bytes(self) -> int:
        """The byte limit of each lot's join, with the lots in use now."""
        with self._lock:
            return max(1, self._bytes_max // max(1, len(self._used_s)))

    def take(self, lot: int, generation: int, count: int) -> LotJoin | None:
        """Take a lot's join if it is the one that a head names; drop another one."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            self._used_s[lot] = now_s
            join = self._remove(lot)
        if join is None or (join.generation, join.count) != (generation, count):
            return None
        return join

    def put(self, lot: int, join: LotJoin) -> None:
        """Put a join back, and drop those not used for a long time."""
        now_s = self._clock.monotonic_s()
        entry = _Entry(join, join.bytes, join.pending, join.fullness)
        with self._lock:
            self._remove(lot)
            self._entries[lot], self._used_s[lot] = entry, now_s
            self.bytes += entry.bytes
            self.pending += entry.pending
            if self._drops and now_s - self._swept_s > _UNUSED_S:
                self._swept_s = now_s
                for other in [at for at, used_s in self._used_s.items() if now_s - used_s > _UNUSED_S]:
                    self._remove(other)
                    del self._used_s[other]

    def _remove(self, lot: int) -> LotJoin | None:
        entry = self._entries.pop(lot, None)
        if entry is None:
            return None
        self.bytes -= entry.bytes
        self.pending -= entry.pending
        return entry.join


_SHELVES: ProcessRegistry[tuple[str, int], LotShelf] = ProcessRegistry()


def open_shelf(progress_url: str, run: int, bytes_max: int = NO_BOUND, *, drops: bool = True) -> LotShelf:
    """Return the process's own shelf of a run, and drop those of the topic's other runs.

    It outlives the step's instances: a runner ends idle ones, and their joins would have to be rebuilt from their logs.
    """
    _SHELVES.discard(lambda key: key[0] == progress_url and key[1] != run)
    return _SHELVES.acquire((progress_url, run), lambda: LotShelf(bytes_max, drops=drops))


def close_shelf(progress_url: str, run: int) -> None:
    """Drop a run's joins."""
    _SHELVES.discard(lambda key: key == (progress_url, run))
