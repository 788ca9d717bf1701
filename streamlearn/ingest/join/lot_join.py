"""LotJoin: one lot's join in a worker's memory, made from its log, with the events it has no room for yet.

It knows no runner: what is kept, and when it is looked at, others decide.
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

# More than any process has.
NO_BOUND = 1 << 62
_PARTS = 2
_DROPPED_ROWS = 100_000


@dataclass(slots=True)
class _Waiting:
    """Events without room, and how many parts of them are in: impressions, then actions."""

    events: LotEvents
    size_bytes: int
    taken: int


class LotJoin:
    """One lot's join.

    Guaranteed: a join that is made from its log gives out from then on what the one before it would have given out.
    Not guaranteed: that a row comes once: rows of a bundle that failed come again.

    At `join.pending_bytes_max`, or at its share of the process's bound, events wait outside, as bytes, in the order in
    which they came; they are taken in once time has gone up to them and rows have left. Time does not go beyond events
    that wait. Where that makes no room there will never be any, and it raises `JoinFull`.

    Args:
        plan: Windows, labels and bounds.
        share_bytes: Its share of what all joins of a process may hold.

    Attributes:
        share_bytes: The same. It may change: what is held already stays.
    """

    def __init__(self, plan: JoinPlan, share_bytes: int = NO_BOUND) -> None:
        self._own_bytes, self.share_bytes = plan.settings.pending_bytes_max, share_bytes
        self._core = JoinCore(plan)
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self._counted: Mapping[str, int] = self._core.counters
        self.generation = uuid.uuid4().int >> 65  # a number nobody else has; 63 bits fit everywhere
        self.count = 0
        self.quiet = 0
        self.looked_s = 0.0

    @classmethod
    def rebuild(cls, plan: JoinPlan, head: LotHead, logged: Sequence[Logged], share_bytes: int = NO_BOUND) -> LotJoin:
        """The join that a log is of: the same calls in the same order, without what was given out before.

        Raises:
            JoinFull: It does not fit: bounds are less than when the log was written, or there are more lots here.
        """
        made = cls(plan, share_bytes)
        for entry in logged:
            if entry.number < head.given:
                made._drop(entry.watermark_ms)
                made.add(entry.events, entry.size_bytes)
        made._drop(head.watermark_ms)
        made.advanced()
        for entry in logged:
            if entry.number >= head.given:
                made.add(entry.events, entry.size_bytes)
        return made

    def add(self, events: LotEvents, size_bytes: int) -> None:
        """Take events in; where there is no room they wait."""
        if not len(events):
            return
        taken = 0 if self._waiting else self._take_in(events, size_bytes)
        if taken < _PARTS:
            self._waiting.append(_Waiting(events, size_bytes, taken))
            self._waiting_bytes += size_bytes

    def advance(self, limit_ms: int, rows_max: int) -> Iterator[Joined]:
        """Move time up to a limit, and give out what is due.

        Raises:
            JoinFull: Events wait that there will never be room for.
        """
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
        """What was counted since the last call."""
        counted = self._core.counters
        found = {name: count - self._counted.get(name, 0) for name, count in counted.items()}
        self._counted = counted
        return found

    @property
    def waiting(self) -> int:
        """Entries that wait for room."""
        return len(self._waiting)

    @property
    def waiting_bytes(self) -> int:
        """Bytes that wait for room."""
        return self._waiting_bytes

    @property
    def fullness(self) -> float:
        """Bytes that are held of those that may be, with what waits for room."""
        return (self._core.bytes + self._waiting_bytes) / min(self._own_bytes, self.share_bytes)

    @property
    def bytes(self) -> int:
        """Bytes that are held, with what waits."""
        return self._core.bytes + self._waiting_bytes

    @property
    def pending(self) -> int:
        """Impressions that are held."""
        return self._core.pending

    def next_deadline_ms(self) -> int | None:
        """When there is something to do; None while nothing is held."""
        return self._core.next_deadline_ms()

    def _take_in(self, events: LotEvents, size_bytes: int, taken: int = 0) -> int:
        """How many parts of events are in: impressions, then actions."""
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
            self._waiting_bytes -= first.size_bytes

    def _drop(self, watermark_ms: int) -> None:
        """Go on to where rows were given out, without giving them out again."""
        for _ in self.advance(watermark_ms, _DROPPED_ROWS):
            pass

    def _full(self, reached_ms: int) -> JoinFull:
        message = (
            f"{len(self._waiting)} entries of {self._waiting_bytes} bytes wait for room in a join of "
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
