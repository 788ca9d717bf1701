"""LotStep: the work when events of a lot come, and when its timer fires. It knows a runner only by the state it keeps.

A runner keeps a lot's state, and undoes the writes of a failed bundle; it does not undo memory. So the head names the
join that it belongs to, and any other join in memory is rebuilt from the log. A runner that keeps nothing beyond its
process needs no log: it delivers no bundle twice, and the next run begins from acknowledged progress.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

import msgspec

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import PipelineFailed
from streamlearn.ingest.join.columns import Joined
from streamlearn.ingest.join.join_cache import LotShelf
from streamlearn.ingest.join.lot_events import LotEvents, encode_lot
from streamlearn.ingest.join.lot_join import LotJoin
from streamlearn.ingest.join.lot_log import (
    LogSpans,
    LotHead,
    decode_head,
    encode_head,
    entries_of,
    logged_of,
    with_events,
    without_passed,
)
from streamlearn.ingest.join.meters import count_rebuilt, count_waiting
from streamlearn.ingest.join.plan import JoinPlan
from streamlearn.ingest.join.ticks import TickRules, look_at, next_look_ms
from streamlearn.ingest.reading.watermark import AFTER_ALL, BEFORE_ALL

__all__ = ["LookResult", "LotState", "LotStep"]


class LotState(Protocol):
    """The state that a runner keeps of one lot, and its timer."""

    def read_head(self) -> bytes | None:
        """Return the head; None before the first events."""

    def write_head(self, head: bytes) -> None:
        """Replace the head."""

    def read_bag(self, bag: int) -> Iterable[bytes]:
        """Return the entries of a bag, in any order."""

    def add_to_bag(self, bag: int, entry: bytes) -> None:
        """Add an entry to a bag."""

    def clear_bag(self, bag: int) -> None:
        """Remove a bag's entries."""

    def set_timer(self, time_ms: int) -> None:
        """Set the lot's timer to a watermark, instead of the time before."""


class LookResult(NamedTuple):
    """The result of a look at a lot.

    Attributes:
        reached_ms: The event time before which every due sample was emitted; `BEFORE_ALL` if unknown.
        is_last: Whether nothing more comes to the lot in this run.
        counts: Counts since the look before.
    """

    reached_ms: int
    is_last: bool
    counts: Mapping[str, int]


class LotStep:
    """Takes events in and emits at most `rows_max` rows at once, for any lot. The shelf holds joins between calls.

    With `keeps_log` it logs events, so that a join can be rebuilt. Without a log it raises `PipelineFailed` if a lot's
    join is not in this process. The clock measures how fast event time advances.
    """

    def __init__(
        self,
        plan: JoinPlan,
        rules: TickRules,
        shelf: LotShelf,
        *,
        rows_max: int,
        keeps_log: bool = True,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._plan, self._rules, self._shelf, self._rows_max, self._clock = plan, rules, shelf, rows_max, clock
        self._spans, self._keeps_log = LogSpans.of(plan), keeps_log

    def take_in(
        self,
        lot: int,
        events: LotEvents,
        state: LotState,
        give: Callable[[int, Joined, int], None],
        data: bytes | None = None,
    ) -> None:
        """Take in events of a lot, and give what is ready at once: interactions, and rows that came late.

        A join that is rebuilt later gives what came since its last look once more.

        `data` are the same events as bytes, for the log, if they came as bytes.
        """
        before = decode_head(state.read_head())
        join = self._join_of(lot, before, state)
        after = with_events(before, events, self._spans)
        if len(events):
            if self._keeps_log:
                encoded = encode_lot(events) if data is None else data
                for bag, entry in entries_of(before, after, events, encoded, self._spans):
                    state.add_to_bag(bag, entry)
            join.add(events, events.bytes)
            # Time may stand still until the next action, which can be long after this one.
            for joined in join.arrived(self._rows_max):
                give(lot, joined, before.watermark_ms)
            join.quiet = 0
            if join.waiting:
                count_waiting(1)
        next_ms = next_look_ms(after, join.next_deadline_ms(), self._rules)
        if next_ms is not None and (after.armed_ms is None or next_ms < after.armed_ms):
            after = _with_timer(after, next_ms, state)
        self._keep(lot, join, state, after)

    def look(self, lot: int, at_ms: int, state: LotState, give: Callable[[int, Joined, int], None]) -> LookResult:
        """Emit what is due once the timer has fired at `at_ms`. Raises `JoinFull` if waiting events can never be added.

        `give` takes the lot, its join's output, and the event time that it has reached.
        """
        before = decode_head(state.read_head())
        join = self._join_of(lot, before, state)
        timer = look_at(before.partitions, at_ms, self._rules)
        reached_ms = timer.limit_ms if timer.limit_ms < AFTER_ALL else self._end_ms(before)
        for joined in join.advance(timer.limit_ms, self._rows_max):
            give(lot, joined, reached_ms)
        self._note_pace(join)
        watermark_ms, given = max(before.watermark_ms, timer.limit_ms), before.entries - join.waiting
        after = msgspec.structs.replace(before, watermark_ms=watermark_ms, given=given, armed_ms=None)
        after, cleared = without_passed(after, self._spans)
        for bag in cleared if self._keeps_log else ():
            state.clear_bag(bag)
        next_ms = None if timer.is_last else next_look_ms(after, join.next_deadline_ms(), self._rules, join.quiet)
        if next_ms is not None:
            after = _with_timer(after, next_ms, state)
        counts = join.advanced()
        self._keep(lot, join, state, after)
        return LookResult(reached_ms, timer.is_last, counts)

    def _join_of(self, lot: int, head: LotHead, state: LotState) -> LotJoin:
        """Return the join in memory if it is the one that the head names; otherwise the log's."""
        join, share_bytes = self._shelf.take(lot, head.generation, head.count), self._shelf.share_bytes
        if join is not None:
            join.share_bytes = share_bytes
            return join
        if not head.count:
            return LotJoin(self._plan, share_bytes)
        if not self._keeps_log:
            message = f"the join of lot {lot} is not in this process, and this runner keeps no log to rebuild it from"
            hint = (
                "the runner delivered a bundle twice or to two processes; start again: the next run reads "
                "unacknowledged events again"
            )
            raise PipelineFailed(message, help=hint)
        count_rebuilt()
        logged = logged_of({bag: list(state.read_bag(bag)) for bag in head.filled})
        return LotJoin.rebuild(self._plan, head, logged, share_bytes)

    def _keep(self, lot: int, join: LotJoin, state: LotState, after: LotHead) -> None:
        join.count += 1
        state.write_head(encode_head(msgspec.structs.replace(after, generation=join.generation, count=join.count)))
        self._shelf.put(lot, join)

    def _end_ms(self, head: LotHead) -> int:
        """Return a lot's time when nothing more comes: after everything due. Later runs may still add events."""
        known_ms = [time.before_ms for time in head.partitions.values() if time.before_ms < AFTER_ALL]
        last_ms = BEFORE_ALL if head.latest_ms == BEFORE_ALL else head.latest_ms + self._plan.longest_window_ms + 1
        return max([last_ms, *known_ms, *([head.watermark_ms] if head.watermark_ms < AFTER_ALL else [])])

    def _note_pace(self, join: LotJoin) -> None:
        """Count looks that come sooner than progress is due: event time is faster than the wall."""
        now_s = self._clock.monotonic_s()
        join.quiet = join.quiet + 1 if now_s - join.looked_s < self._rules.progress_ms / 4_000 else 0
        join.looked_s = now_s


def _with_timer(head: LotHead, time_ms: int, state: LotState) -> LotHead:
    state.set_timer(time_ms)
    return msgspec.structs.replace(head, armed_ms=time_ms)
