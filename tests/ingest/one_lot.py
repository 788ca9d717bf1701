"""A runner of one lot: it keeps state, fires timers, fails bundles, and gives the lot to one worker or another."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from streamlearn.ingest import Joined, JoinPlan
from streamlearn.ingest.join.join_cache import LotShelf
from streamlearn.ingest.join.lot_events import LotEvents, decode_lot, encode_lot
from streamlearn.ingest.join.lot_log import BAGS, LotHead, decode_head
from streamlearn.ingest.join.lot_step import LookResult, LotStep
from streamlearn.ingest.join.ticks import TickRules
from streamlearn.ingest.reading.watermark import AFTER_ALL, BEFORE_ALL
from streamlearn.testing import ManualClock
from tests.ingest.world import Done, Event, Row, Shown, columns_of_actions, columns_of_impressions, rows_of

LOT = 3


@dataclass
class State:
    """What is kept of the lot."""

    head: bytes | None = None
    bags: list[list[bytes]] = field(default_factory=lambda: [[] for _ in range(BAGS)])
    timer_ms: int | None = None

    def copy(self) -> State:
        return State(self.head, [list(bag) for bag in self.bags], self.timer_ms)

    def read_head(self) -> bytes | None:
        return self.head

    def write_head(self, head: bytes) -> None:
        self.head = head

    def read_bag(self, bag: int) -> list[bytes]:
        return list(reversed(self.bags[bag]))  # a bag has no order

    def add_to_bag(self, bag: int, entry: bytes) -> None:
        self.bags[bag].append(entry)

    def clear_bag(self, bag: int) -> None:
        self.bags[bag].clear()

    def set_timer(self, time_ms: int) -> None:
        self.timer_ms = time_ms


class FailedBundle(Exception):
    """Chance had it fail."""


class OneLot:
    """Runs one lot. What a bundle gave out counts once it is committed."""

    def __init__(
        self, plan: JoinPlan, rules: TickRules, rows_max: int = 1_000, *, keeps_log: bool = True, lot: int = LOT
    ) -> None:
        self.plan, self.rules, self.rows_max, self.keeps_log, self.lot = plan, rules, rows_max, keeps_log, lot
        self.state = State()
        self.rows: list[Row] = []
        self.looks: list[LookResult] = []
        self.given_twice = 0
        self.shelf = LotShelf(clock=ManualClock())
        self.clock = ManualClock()
        self.watermarks = dict.fromkeys(range(rules.partitions), BEFORE_ALL)

    @property
    def head(self) -> LotHead:
        return decode_head(self.state.head)

    @property
    def watermark_ms(self) -> int:
        return min(self.watermarks.values())

    def bundle(self, work: Callable[[LotStep, State, list[Row]], LookResult | None], *, fails: bool = False) -> None:
        """Do something, and commit it unless it fails."""
        state = self.state.copy()
        rows: list[Row] = []
        step = LotStep(
            self.plan, self.rules, self.shelf, rows_max=self.rows_max, keeps_log=self.keeps_log, clock=self.clock
        )
        looked = work(step, state, rows)
        if fails:
            self.given_twice += len(rows)
            return
        self.state = state
        self.rows += rows
        if looked is not None:
            self.looks.append(looked)

    def come(self, events: LotEvents, *, fails: bool = False) -> None:
        """Events come; the runner's watermark follows."""
        data = encode_lot(events)

        def take_in(step: LotStep, state: State, rows: list[Row]) -> None:
            step.take_in(self.lot, decode_lot(data), state, lambda lot, joined, _: rows.extend(rows_of(joined)), data)

        self.bundle(take_in, fails=fails)
        if not fails:
            self.watermarks[events.partition] = AFTER_ALL if events.closes else events.after_ms

    def fire(self, *, fails: bool = False) -> bool:
        """Fire the timer if the watermark has come to it; whether it did."""
        at_ms = self.state.timer_ms
        if at_ms is None or at_ms > self.watermark_ms:
            return False

        def look(step: LotStep, state: State, rows: list[Row]) -> LookResult:
            state.timer_ms = None

            def give(lot: int, joined: Joined, reached_ms: int) -> None:
                assert lot == self.lot
                assert all(row.settle_time < reached_ms for row in rows_of(joined))
                rows.extend(rows_of(joined))

            return step.look(self.lot, at_ms, state, give)

        self.bundle(look, fails=fails)
        return True

    def fire_all(self) -> int:
        """Fire until nothing is due; how often."""
        fired = 0
        while self.fire():
            fired += 1
            assert fired < 10_000
        return fired


def blobs_of(
    plan: JoinPlan, rng: random.Random, events: Sequence[Event], lateness_ms: int, *, partitions: int = 2
) -> list[LotEvents]:
    """What readers of some partitions give of events, in an order in which it may come; the last of each closes."""
    queues = []
    for partition in range(partitions):
        own = [one for number, one in enumerate(events) if number % partitions == partition]
        arrivals = sorted((one.time + rng.randrange(lateness_ms), number, one) for number, one in enumerate(own))
        queue, before_ms, at = [], BEFORE_ALL, 0
        while at < len(arrivals):
            end = min(len(arrivals), at + rng.randrange(1, 12))
            after_ms = arrivals[end - 1][0] - lateness_ms
            queue.append(lot_events(plan, partition, [one for *_, one in arrivals[at:end]], before_ms, after_ms))
            before_ms, at = after_ms, end
        queue.append(lot_events(plan, partition, [], before_ms, AFTER_ALL, closes=True))
        queues.append(queue)
    found = []
    while any(queues):
        found.append(rng.choice([queue for queue in queues if queue]).pop(0))
    return found


def lot_events(
    plan: JoinPlan, partition: int, events: Sequence[Event], before_ms: int, after_ms: int, *, closes: bool = False
) -> LotEvents:
    """Events as those of one lot of a blob."""
    impressions = columns_of_impressions([one for one in events if isinstance(one, Shown)])
    actions = columns_of_actions(plan, [one for one in events if isinstance(one, Done)])
    return LotEvents(LOT, partition, closes, before_ms, impressions, actions, after_ms)


def stopped(blobs: Sequence[LotEvents], partition: int, keep: int) -> list[LotEvents]:
    """What comes when the reader of a partition is told to stop after some blobs."""
    own = [one for one in blobs if one.partition == partition]
    until_ms = own[keep].watermark_ms
    assert not len(own[-1])
    return [*own[:keep], replace(own[-1], watermark_ms=until_ms, after_ms=until_ms)]
