"""LotJoin: one lot's join in a worker's memory, rebuilt from its log, with the events that it has no room for yet.

It knows no runner.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from streamlearn.errors import JoinFull
from streamlearn.ingest.join.columns import Joined
from streamlearn.ingest.join.core import JoinCore
from streamlearn.ingest.join.lot_events import LotEvents
from streamlearn.ingest.join.lot_log import Logged, LotHead
from streamlearn.ingest.join.plan import JoinPlan
from streamlearn.ingest.reading.watermark import BEFORE_ALL

__all__ = ["NO_BOUND", "LotJoin"]

# More bytes than any process has.
NO_BOUND = 1 << 62
_PARTS = 2
_DROPPED_ROWS = 100_000


@dataclass(slots=True)
class _Waiting:
    """Events without room, and how many of their parts (impressions, then actions) are in the join."""

    events: LotEvents
    size_bytes: int
    taken: int


class LotJoin:
    """One lot's join.

    Guaranteed: a join that is rebuilt from its log emits from then on the same rows as the join before. Not guaranteed:
    that a row comes once: rows of a failed bundle come again.

    At `join.pending_bytes_max`, or at its share of the process's limit (`share_bytes`, which may change), events wait
    outside (`waiting_bytes`), in the order in which they came. They are added once time has reached them and rows have
    left. Time does not pass waiting events. If that frees no room, nothing ever will, and it raises `JoinFull`.
    """

    def __init__(self, plan: JoinPlan, share_bytes: int = NO_BOUND) -> None:
        self._own_bytes, self.share_bytes = plan.settings.pending_bytes_max, share_bytes
        self._core = JoinCore(plan)
        self._waiting: deque[_Waiting] = deque()
        self.waiting_bytes = 0
        self._counted: Mapping[str, int] = self._core.counters
        self.generation = uuid.uuid4().int >> 65  # unique; 63 bits fit everywhere
        self.count = 0
        self.quiet = 0
        self.looked_s = 0.0

    @classmethod
    def rebuild(cls, plan: JoinPlan, head: LotHead, logged: Sequence[Logged], share_bytes: int = NO_BOUND) -> LotJoin:
        """Rebuild the join from its log: the same calls in the same order, without emitting rows again.

        Raises `JoinFull` if it does not fit: limits are lower than when the log was written, or there are more lots
        here.
        """
        join = cls(plan, share_bytes)
        for entry in logged:
            if entry.number < head.given:
                join._drop(entry.watermark_ms)
                join.add(entry.events, entry.size_bytes)
        join._drop(head.watermark_ms)
        join.advanced()
        for entry in logged:
            if entry.number >= head.given:
                join.add(entry.events, entry.size_bytes)
        return join

    def add(self, events: LotEvents, size_bytes: int) -> None:
        """Add events; without room they wait."""
        if not len(events):
            return
        taken = 0 if self._waiting else self._take_in(events, size_bytes)
        if taken < _PARTS:
            self._waiting.append(_Waiting(events, size_bytes, taken))
            self.waiting_bytes += size_bytes

    def arrived(self, rows_max: int) -> Iterator[Joined]:
        """Yield what is ready before time advances: interactions, and rows of late events."""
        while self._core.ready:
            yield self._core.take(rows_max)

    def advance(self, limit_ms: int, rows_max: int) -> Iterator[Joined]:
        """Advance time up to a limit, and yield what is due. Raises `JoinFull` if waiting events can never be added."""
        while True:
            reached_ms = limit_ms if not self._waiting else min(limit_ms, self._waiting[0].events.watermark_ms)
            if reached_ms > BEFORE_ALL:
                self._core.advance(reached_ms)
            while self._core.ready or self._core.letters:
                yield self._core.take(rows_max)
            before = len(self._waiting)
            self._take_in_waiting()
            if not self._waiting:
                if not before:
                    return
            elif len(self._waiting) == before:
                if reached_ms >= limit_ms:
                    return
                raise self._full(reached_ms)

    def advanced(self) -> Mapping[str, int]:
        """Return the counts since the last call."""
        counted = self._core.counters
        new = {name: count - self._counted.get(name, 0) for name, count in counted.items()}
        self._counted = counted
        return new

    @property
    def waiting(self) -> int:
        """Entries that wait for room."""
        return len(self._waiting)

    @property
    def fullness(self) -> float:
        """Bytes held, including waiting ones, as a share of the limit."""
        return (self._core.bytes + self.waiting_bytes) / min(self._own_bytes, self.share_bytes)

    @property
    def bytes(self) -> int:
        """Bytes held, including waiting ones."""
        return self._core.bytes + self.waiting_bytes

    @property
    def pending(self) -> int:
        """Impressions held."""
        return self._core.pending

    def next_deadline_ms(self) -> int | None:
        """Return the time of the next work; None while nothing is held."""
        return self._core.next_deadline_ms()

    def _take_in(self, events: LotEvents, size_bytes: int, taken: int = 0) -> int:
        """Return how many parts of the events are in the join: impressions, then actions."""
        if taken == 0 and self._core.bytes + size_bytes > self.share_bytes:
            return taken
        try:
            if taken == 0 and len(events.impressions):
                self._core.add_impressions(events.impressions)
            taken = 1
            if len(events.actions):
                self._core.add_actions(events.actions)
        except JoinFull:
            return taken
        return _PARTS

    def _take_in_waiting(self) -> None:
        while self._waiting:
            first = self._waiting[0]
            first.taken = self._take_in(first.events, first.size_bytes, first.taken)
            if first.taken < _PARTS:
                return
            self._waiting.popleft()
            self.waiting_bytes -= first.size_bytes

    def _drop(self, watermark_ms: int) -> None:
        """Advance to a time, and drop the rows that were emitted before."""
        for _ in self.advance(watermark_ms, _DROPPED_ROWS):
            pass

    def _full(self, reached_ms: int) -> JoinFull:
        message = (
            f"{len(self._waiting)} entries of {self.waiting_bytes} bytes wait for room in a join of "
            f"{self._core.bytes} bytes, and event time cannot pass {reached_ms} ms without them"
        )
        if self.share_bytes < self._own_bytes:
            hint = (
                f"the open windows do not fit into {self.share_bytes} bytes, the share of each lot in this "
                "process of join.process_bytes_max: raise it, or use more workers"
            )
        else:
            hint = (
                "the open windows do not fit into join.pending_bytes_max: raise it, or start over with more "
                "lots (ingest.lots, and a new progress topic)"
            )
        return JoinFull(message, help=hint)
