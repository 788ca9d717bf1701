"""LotStep: what is done when events of a lot come, and when it is looked at. It knows no runner, only what one keeps.

A runner keeps a lot's state and undoes what a failed bundle wrote; memory it does not undo. So the head names the join
that it is of, and any other join in memory is made again from the log. A runner that keeps nothing beyond its process
is spared the log: it gives no bundle twice, and the next run begins from what was acknowledged.
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

__all__ = ["Kept", "Looked", "LotStep"]


class Kept(Protocol):
    """What a runner keeps of one lot, and its timer."""

    def read_head(self) -> bytes | None:
        """The head; None: nothing came yet."""
        ...

    def write_head(self, head: bytes) -> None:
        """Replace the head."""
        ...

    def read_bag(self, bag: int) -> Iterable[bytes]:
        """The entries of a bag, in any order."""
        ...

    def add_to_bag(self, bag: int, entry: bytes) -> None:
        """Add an entry to a bag."""
        ...

    def clear_bag(self, bag: int) -> None:
        """Forget a bag's entries."""
        ...

    def set_timer(self, time_ms: int) -> None:
        """Have the lot looked at once the watermark has come there, and not at what was set before."""
        ...


class Looked(NamedTuple):
    """What a look has found.

    Attributes:
        reached_ms: The event time before which every sample due was given out; `BEFORE_ALL`: none is known.
        is_last: Whether nothing more comes to the lot in this run.
        counts: What was counted since the look before.
    """

    reached_ms: int
    is_last: bool
    counts: Mapping[str, int]


class LotStep:
    """Takes events in and gives rows out, for any lot.

    Args:
        plan: Windows, labels and bounds of joins.
        rules: When lots are looked at.
        shelf: Where joins are between two calls.
        rows_max: Rows that are given out at once.
        keeps_log: Whether events are logged, so that a join can be made again.
        clock: How fast event time goes by.
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

    def take_in(self, lot: int, events: LotEvents, kept: Kept, data: bytes | None = None) -> None:
        """Take in events of a lot.

        Args:
            lot: The lot.
            events: Of it.
            kept: Its state.
            data: They as they came, where they came as bytes, for the log.

        Raises:
            PipelineFailed: The lot's join is not in this process, and there is no log to make it again from.
        """
        before = decode_head(kept.read_head())
        join = self._join_of(lot, before, kept)
        after = with_events(before, events, self._spans)
        if len(events):
            if self._keeps_log:
                logged = encode_lot(events) if data is None else data
                for bag, entry in entries_of(before, after, events, logged, self._spans):
                    kept.add_to_bag(bag, entry)
            join.add(events, events.bytes)
            join.quiet = 0
            if join.waiting:
                count_waiting(1)
        wanted_ms = next_look_ms(after, join.next_deadline_ms(), self._rules)
        if wanted_ms is not None and (after.armed_ms is None or wanted_ms < after.armed_ms):
            kept.set_timer(wanted_ms)
            after = msgspec.structs.replace(after, armed_ms=wanted_ms)
        self._keep(lot, join, kept, after)

    def look(self, lot: int, at_ms: int, kept: Kept, give: Callable[[int, Joined, int], None]) -> Looked:
        """Give out what is due, once the timer has fired.

        Args:
            lot: The lot.
            at_ms: What the timer was set to.
            kept: Its state.
            give: Takes the lot, what its join gave out, and the event time that it has reached.

        Raises:
            JoinFull: Events wait for room that there will never be.
            PipelineFailed: The lot's join is not in this process, and there is no log to make it again from.
        """
        before = decode_head(kept.read_head())
        join = self._join_of(lot, before, kept)
        found = look_at(before.partitions, at_ms, self._rules)
        reached_ms = found.limit_ms if found.limit_ms < AFTER_ALL else self._end_ms(before)
        for joined in join.advance(found.limit_ms, self._rows_max):
            give(lot, joined, reached_ms)
        self._note_pace(join)
        after = msgspec.structs.replace(
            before,
            watermark_ms=max(before.watermark_ms, found.limit_ms),
            given=before.entries - join.waiting,
            armed_ms=None,
        )
        after, cleared = without_passed(after, self._spans)
        for bag in cleared if self._keeps_log else ():
            kept.clear_bag(bag)
        wanted_ms = None if found.is_last else next_look_ms(after, join.next_deadline_ms(), self._rules, join.quiet)
        if wanted_ms is not None:
            kept.set_timer(wanted_ms)
            after = msgspec.structs.replace(after, armed_ms=wanted_ms)
        counts = join.advanced()
        self._keep(lot, join, kept, after)
        return Looked(reached_ms, found.is_last, counts)

    def _join_of(self, lot: int, head: LotHead, kept: Kept) -> LotJoin:
        """The join in memory when it is what the head says; otherwise the one that the log is of."""
        found, share_bytes = self._shelf.take(lot, head.generation, head.count), self._shelf.share_bytes
        if found is not None:
            found.share_bytes = share_bytes
            return found
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
        logged = logged_of({bag: list(kept.read_bag(bag)) for bag in head.filled})
        return LotJoin.rebuild(self._plan, head, logged, share_bytes)

    def _keep(self, lot: int, join: LotJoin, kept: Kept, after: LotHead) -> None:
        join.count += 1
        kept.write_head(encode_head(msgspec.structs.replace(after, generation=join.generation, count=join.count)))
        self._shelf.put(lot, join)

    def _end_ms(self, head: LotHead) -> int:
        """Where a lot is when nothing follows, ever: behind all that was due. Later events may still be appended."""
        known_ms = [one.before_ms for one in head.partitions.values() if one.before_ms < AFTER_ALL]
        last_ms = BEFORE_ALL if head.latest_ms == BEFORE_ALL else head.latest_ms + self._plan.longest_window_ms + 1
        return max([last_ms, *known_ms, *([head.watermark_ms] if head.watermark_ms < AFTER_ALL else [])])

    def _note_pace(self, join: LotJoin) -> None:
        """Count looks that come sooner than progress is to be told: event time goes by faster than the wall."""
        now_s = self._clock.monotonic_s()
        join.quiet = join.quiet + 1 if now_s - join.looked_s < self._rules.progress_ms / 4_000 else 0
        join.looked_s = now_s
