"""A lot's step without a runner: any bundle may fail, any worker may die, and the rows are those of the oracle."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streamlearn.errors import BadRecord, JoinFull, PipelineFailed
from streamlearn.features import Label, LabelGroup
from streamlearn.ingest import JoinPlan
from streamlearn.ingest.join.join_cache import LotShelf, close_shelf, open_shelf
from streamlearn.ingest.join.lot_join import NO_BOUND, LotJoin
from streamlearn.ingest.join.lot_log import BAGS, LotHead, PartitionTime, decode_head, encode_head
from streamlearn.ingest.join.ticks import TickRules, look_at, next_look_ms
from streamlearn.ingest.output.progress_keeper import partitions_of, silent_partitions
from streamlearn.ingest.reading.watermark import AFTER_ALL, BEFORE_ALL
from streamlearn.testing import ManualClock
from tests.ingest.one_lot import OneLot, blobs_of, lot_events, stopped
from tests.ingest.world import LATENESS_MS, Event, Shown, make_world, plan_of, rows_expected

RULES = TickRules(partitions=2, tick_ms=500, progress_ms=2_000)
AGE_MS = 350_000


def long_world(rng: random.Random, ages: int, requests: int) -> list[Event]:
    """Worlds one after another, so that windows pass and logs are let go of."""
    found: list[Event] = []
    for age in range(ages):
        for event in make_world(rng, requests):
            moved = event._replace(
                request=f"{age}-{event.request}", time=event.time + age * AGE_MS, offset=event.offset + age * 100_000
            )
            found.append(moved)
    return found


@settings(max_examples=25)
@given(st.integers(0, 1 << 32), st.integers(1, 8), st.floats(0, 0.4))
def test_whatever_fails_and_dies_the_rows_are_those_of_the_oracle(seed: int, ages: int, harm: float) -> None:
    rng = random.Random(seed)
    plan = plan_of()
    events = long_world(rng, ages, 8)
    runner = OneLot(plan, RULES, rows_max=rng.choice((1, 7, 1_000)))
    workers = [LotShelf(clock=ManualClock()), LotShelf(clock=ManualClock())]
    for blob in blobs_of(plan, rng, events, LATENESS_MS):
        while rng.random() < harm:
            _harm(rng, runner, workers)
            runner.come(blob, fails=True)
        runner.come(blob)
        while rng.random() < 0.7:
            if rng.random() < harm:
                _harm(rng, runner, workers)
                runner.fire(fails=True)
            if not runner.fire():
                break
    runner.fire_all()
    assert sorted(runner.rows, key=repr) == rows_expected(plan, events)
    assert runner.looks[-1].is_last
    assert not any(runner.state.bags)
    assert runner.state.timer_ms is None


def _harm(rng: random.Random, runner: OneLot, workers: list[LotShelf]) -> None:
    """A worker dies, or the lot goes to another, which may have an old join of it."""
    at = rng.randrange(len(workers))
    if rng.random() < 0.5:
        workers[at] = LotShelf(clock=ManualClock())
    runner.shelf = workers[at]


@settings(max_examples=12)
@given(st.integers(0, 1 << 32))
@example(3095)  # one look of the second join reports a time that is 12 s lower
def test_a_join_made_from_its_log_gives_row_for_row_what_the_one_in_memory_would_have(seed: int) -> None:
    plan = plan_of()
    events = long_world(random.Random(seed), 4, 8)
    found = []
    for dies in (False, True):
        rng, chance = random.Random(seed + 1), random.Random(seed + 2)
        runner = OneLot(plan, RULES)
        for blob in blobs_of(plan, rng, events, LATENESS_MS):
            if dies and chance.random() < 0.3:
                runner.shelf = LotShelf(clock=ManualClock())
            runner.come(blob)
            runner.fire_all()
        found.append(runner)
    kept, made = found
    assert made.rows == kept.rows
    assert [one.counts["rows"] for one in made.looks] == [one.counts["rows"] for one in kept.looks]
    # It may say later how far time has come, and never too early: progress is the most that any look said.
    said = [(late.reached_ms, at.reached_ms) for late, at in zip(made.looks, kept.looks, strict=True)]
    assert all(late <= at for late, at in said)
    assert said[-1][0] == said[-1][1]


def test_a_log_is_a_ring_of_bags_that_are_cleared_when_their_windows_are_over() -> None:
    plan, rng = plan_of(), random.Random(5)
    runner, held, used = OneLot(plan, RULES), [], set()
    blobs = blobs_of(plan, rng, long_world(rng, 30, 10), LATENESS_MS)
    for blob in sorted(blobs, key=lambda one: one.after_ms):  # no partition is far ahead of the other
        runner.come(blob)
        runner.fire_all()
        held.append(sum(len(bag) for bag in runner.state.bags))
        used |= {number for number, bag in enumerate(runner.state.bags) if bag}
        assert [at for at, bag in enumerate(runner.state.bags) if bag] == runner.head.filled
    assert used == set(range(BAGS))
    assert max(held) < len(held) / 4


def test_a_reader_that_was_stopped_lets_time_go_no_further_and_the_rest_comes_with_the_next_run() -> None:
    plan, rng = plan_of(), random.Random(7)
    events = make_world(rng, 60)
    blobs = blobs_of(plan, rng, events, LATENESS_MS)
    whole = OneLot(plan, RULES)
    for blob in blobs:
        whole.come(blob)
    whole.fire_all()
    runner = OneLot(plan, RULES)
    for blob in stopped(blobs, 0, 9) + stopped(blobs, 1, 6):
        runner.come(blob)
    runner.fire_all()
    last = runner.looks[-1]
    until_ms = min(one.after_ms for one in runner.head.partitions.values())
    assert 0 < until_ms < max(event.time for event in events)
    assert (last.is_last, last.reached_ms, runner.state.timer_ms) == (True, until_ms, None)
    assert all(one.reached_ms <= until_ms for one in runner.looks)
    early = [row for row in runner.rows if row.settle_time < until_ms]
    assert len(early) == len(runner.rows) > 20
    assert set(early) <= set(whole.rows)


def test_events_without_room_wait_until_time_has_come_to_them() -> None:
    plan = plan_of(pending_bytes_max=1 << 16)
    events = [Shown(f"request-{at}", at * 10_000, 0, at, 0, (1, 2), b"x" * 300) for at in range(1_000)]
    rules = TickRules(partitions=1, tick_ms=500, progress_ms=2_000)
    runner, before_ms = OneLot(plan, rules), BEFORE_ALL
    for begin in range(0, 1_000, 10):
        part = events[begin : begin + 10]
        runner.come(lot_events(plan, 0, part, before_ms, part[-1].time))
        before_ms = part[-1].time
    join = runner.shelf.take(3, runner.head.generation, runner.head.count)
    assert join is not None
    assert join.waiting > 50
    assert join.bytes > 2 * plan.settings.pending_bytes_max
    runner.shelf.put(3, join)
    runner.come(lot_events(plan, 0, [], before_ms, AFTER_ALL, closes=True))
    runner.fire_all()
    assert sorted(runner.rows, key=repr) == rows_expected(plan, list(events))


@settings(max_examples=12)
@given(st.integers(0, 1 << 32), st.booleans())
def test_a_join_whose_events_have_waited_for_room_can_be_made_again_from_its_log(seed: int, is_share: bool) -> None:
    rng, plan = random.Random(seed), plan_of() if is_share else plan_of(pending_bytes_max=1 << 16)
    events = [Shown(f"request-{at}", at * 10_000, 0, at, 0, (1, 2), b"x" * 2_000) for at in range(250)]
    runner, before_ms = OneLot(plan, replace_partitions(1)), BEFORE_ALL
    clock, bytes_max = ManualClock(), 1 << 16 if is_share else NO_BOUND
    runner.shelf = LotShelf(bytes_max, clock=clock)
    for begin in range(0, len(events), 10):
        part = events[begin : begin + 10]
        runner.come(lot_events(plan, 0, part, before_ms, part[-1].time))
        before_ms = part[-1].time
        if begin > 60 and rng.random() < 0.1:
            runner.shelf = LotShelf(bytes_max, clock=clock)
        if begin == 60:
            join = runner.shelf.take(3, runner.head.generation, runner.head.count)
            assert join is not None
            assert join.waiting
            runner.shelf.put(3, join)
        if begin >= 60 and rng.random() < 0.3:
            runner.fire()
    runner.come(lot_events(plan, 0, [], before_ms, AFTER_ALL, closes=True))
    runner.shelf = LotShelf(bytes_max, clock=clock)
    runner.fire_all()
    assert sorted(runner.rows, key=repr) == rows_expected(plan, list(events))


def test_what_all_lots_may_hold_is_shared_alike_and_none_waits_for_another() -> None:
    plan, bytes_max, lots = plan_of(), 1 << 19, 4
    shelf = LotShelf(bytes_max, clock=ManualClock())
    runners = [OneLot(plan, replace_partitions(1), lot=lot) for lot in range(lots)]
    worlds = [
        [Shown(f"{lot}-{at}", at * 4_000, 0, at, 0, (1, 2), b"x" * 1_000) for at in range(300)] for lot in range(lots)
    ]
    for runner in runners:
        runner.shelf = shelf
        runner.come(lot_events(plan, 0, [], 0, 0))
    assert shelf.share_bytes == bytes_max // lots
    holds, waited, before_ms = dict.fromkeys(range(lots), 0), set(), 0
    for begin in range(0, 300, 10):
        for lot, runner in enumerate(runners):
            part = worlds[lot][begin : begin + 10]
            # One lot's time stands still until all has come, and what comes to it waits; the others go on.
            runner.come(lot_events(plan, 0, part, before_ms, part[-1].time))
            if lot:
                runner.fire_all()
            join = shelf.take(lot, runner.head.generation, runner.head.count)
            assert join is not None
            waited |= {lot} if join.waiting else set()
            holds[lot] = max(holds[lot], join.bytes - join.waiting_bytes)
            shelf.put(lot, join)
        before_ms = worlds[0][begin + 9].time
    assert waited == {0}
    assert bytes_max / 4 < sum(holds.values()) < bytes_max
    assert shelf.fullness > 1
    for lot, runner in enumerate(runners):
        runner.come(lot_events(plan, 0, [], before_ms, AFTER_ALL, closes=True))
        runner.fire_all()
        assert sorted(runner.rows, key=repr) == rows_expected(plan, list(worlds[lot]))


def test_a_share_that_windows_never_fit_into_is_said_with_what_to_do() -> None:
    plan = plan_of()
    runner, shown = OneLot(plan, replace_partitions(1)), Shown("q", 0, 0, 0, 0, (1, 2), b"x" * 3_000)
    runner.shelf = LotShelf(1 << 16, clock=ManualClock())
    for lot in range(16):  # what others are here, and what they hold, is all the same
        runner.shelf.put(lot, LotJoin(plan))
    runner.come(lot_events(plan, 0, [shown, shown._replace(request="r")], 0, 1_000))
    runner.come(lot_events(plan, 0, [], 1_000, 1_000_000))
    with pytest.raises(JoinFull, match="wait for room") as raised:
        runner.fire_all()
    assert "4096 bytes" in raised.value.help
    assert "join.process_bytes_max" in raised.value.help


def test_windows_that_never_fit_are_said_with_what_to_do() -> None:
    plan = plan_of(pending_bytes_max=1 << 16)
    rules = TickRules(partitions=1, tick_ms=500, progress_ms=2_000)
    runner, before_ms = OneLot(plan, rules), BEFORE_ALL
    for begin in range(0, 500, 50):
        part = [Shown(f"request-{at}", at, 0, at, 0, (1, 2), b"x" * 300) for at in range(begin, begin + 50)]
        runner.come(lot_events(plan, 0, part, before_ms, part[-1].time))
        before_ms = part[-1].time
    runner.come(lot_events(plan, 0, [], before_ms, 1_000_000))
    with pytest.raises(JoinFull, match="wait for room") as raised:
        runner.fire_all()
    assert "join.pending_bytes_max" in raised.value.help


def test_a_history_that_is_replayed_is_looked_at_once_a_blob_and_not_at_every_tick() -> None:
    plan = plan_of()
    runner, before_ms, looks = OneLot(plan, RULES), BEFORE_ALL, 0
    for at in range(40):
        time_ms = at * 3_600_000
        shown = [Shown(f"q{at}", time_ms, 0, at, 0, (1, 2), b"x")]
        for partition in (0, 1):
            runner.come(lot_events(plan, partition, shown if partition == 0 else [], before_ms, time_ms))
        before_ms = time_ms
        looks += runner.fire_all()
    assert looks <= 3 * 40


def test_a_quiet_lot_is_looked_at_less_and_less_often_while_the_wall_stands_still() -> None:
    plan = plan_of()
    for wall_s, most in ((0.0, 30), (2.0, 10_000)):
        runner, looks = OneLot(plan, replace_partitions(1)), 0
        runner.come(lot_events(plan, 0, [], 0, 0))
        runner.watermarks[0] = 3_600_000  # as heartbeats move it: no blob says so
        while runner.fire():
            looks += 1
            runner.clock.sleep(wall_s)
        assert looks <= most
        assert (looks > 1_000) == (wall_s > 0)
        assert runner.looks[-1].reached_ms > 1_000_000


def replace_partitions(partitions: int) -> TickRules:
    return TickRules(partitions, RULES.tick_ms, RULES.progress_ms)


def test_looks_are_set_to_ticks_and_to_the_earliest_deadline() -> None:
    times = {0: PartitionTime(9_000, 10_250, False), 1: PartitionTime(9_500, 12_000, False)}
    head = LotHead(watermark_ms=9_000, partitions=times)
    assert next_look_ms(head, 9_100, RULES) == 10_000  # readers are there already
    head = LotHead(watermark_ms=10_000, partitions=times)
    assert next_look_ms(head, 10_100, RULES) == 10_500
    assert next_look_ms(head, 10_501, RULES) == 11_000
    assert next_look_ms(head, 99_000, RULES) == next_look_ms(head, None, RULES) == 12_500
    assert next_look_ms(head, None, RULES, quiet=3) == 26_500
    assert next_look_ms(LotHead(), None, RULES) is None
    assert next_look_ms(LotHead(partitions={0: times[0]}), None, RULES) == 11_500


def test_where_timers_fire_late_a_look_goes_no_further_than_one_that_fires_already() -> None:
    late = TickRules(RULES.partitions, RULES.tick_ms, RULES.progress_ms, lag_ms=1_000)
    times = {0: PartitionTime(7_000, 10_250, False), 1: PartitionTime(7_500, 12_000, False)}
    assert next_look_ms(LotHead(watermark_ms=7_000, partitions=times), 7_100, late) == 9_000
    assert next_look_ms(LotHead(watermark_ms=9_000, partitions=times), 9_100, late) == 9_500  # fires once more comes


def test_the_last_look_waits_for_what_was_given_with_the_last_blobs() -> None:
    ended = PartitionTime(7_000, AFTER_ALL, True)
    assert not look_at({0: ended, 1: ended}, 7_000, RULES).is_last
    assert look_at({0: ended, 1: ended}, 7_500, RULES) == look_at({0: ended, 1: ended}, 9_000, RULES)
    assert look_at({0: ended, 1: ended}, 7_500, RULES).limit_ms == AFTER_ALL
    head = LotHead(watermark_ms=7_000, partitions={0: ended, 1: ended})
    assert next_look_ms(head, None, RULES) == 7_500
    nothing = PartitionTime(AFTER_ALL, AFTER_ALL, True)
    assert next_look_ms(LotHead(partitions={0: nothing, 1: nothing}), None, RULES) is None
    assert next_look_ms(LotHead(latest_ms=5_000, partitions={0: nothing, 1: nothing}), 5_000, RULES) == 5_500


def test_a_lot_as_far_as_a_stopped_reader_is_not_looked_at_before_all_have_stopped() -> None:
    going, stopped_at = PartitionTime(9_000, 12_000, False), PartitionTime(10_000, 10_000, True)
    head = LotHead(watermark_ms=9_500, partitions={0: going, 1: stopped_at})
    assert next_look_ms(head, 9_600, RULES) == 10_000
    head = LotHead(watermark_ms=10_000, partitions={0: going, 1: stopped_at})
    assert next_look_ms(head, 10_100, RULES) is None
    assert next_look_ms(head, None, RULES, quiet=3) is None
    head = LotHead(watermark_ms=10_000, partitions={0: PartitionTime(12_000, 12_000, True), 1: stopped_at})
    assert next_look_ms(head, None, RULES) == 12_500
    before_time = PartitionTime(BEFORE_ALL, BEFORE_ALL, True)
    assert next_look_ms(LotHead(partitions={0: going, 1: before_time}), None, RULES) is None


def test_a_damaged_head_is_refused() -> None:
    head = LotHead(generation=5, count=7, partitions={1: PartitionTime(1, 2, True)})
    assert decode_head(encode_head(head)) == head
    with pytest.raises(BadRecord, match="cannot decode the head of a lot's log"):
        decode_head(encode_head(head)[:-1])


def test_a_shelf_is_the_process_s_and_gives_only_what_the_head_names() -> None:
    runner = OneLot(plan_of(), RULES)
    runner.come(lot_events(plan_of(), 0, [], 0, 1_000))
    head = runner.head
    assert runner.shelf.take(3, head.generation, head.count + 1) is None  # and it is gone
    assert runner.shelf.take(3, head.generation, head.count) is None
    shelf = open_shelf("memory://x", 7)
    assert open_shelf("memory://x", 7) is shelf
    assert open_shelf("memory://x", 8) is not shelf
    close_shelf("memory://x", 8)


def test_joins_that_nobody_asks_for_are_let_go_of() -> None:
    clock = ManualClock()
    runner = OneLot(plan_of(), RULES)
    runner.shelf = shelf = LotShelf(clock=clock)
    runner.come(lot_events(plan_of(), 0, [Shown("q", 0, 0, 0, 0, (1,), b"x")], 0, 1_000))
    held = shelf.bytes
    assert shelf.pending == 1
    clock.sleep(400)
    other = OneLot(plan_of(), RULES)
    other.come(lot_events(plan_of(), 0, [], 0, 1_000))
    join = other.shelf.take(3, other.head.generation, other.head.count)
    assert join is not None
    shelf.put(4, join)
    assert (shelf.pending, shelf.bytes) == (0, join.bytes)
    assert shelf.bytes < held


def test_without_a_log_a_lot_goes_on_in_its_process_and_fails_where_its_join_is_not() -> None:
    clock = ManualClock()
    runner = OneLot(plan_of(), RULES, keeps_log=False)
    runner.shelf = LotShelf(drops=False, clock=clock)
    events = [lot_events(plan_of(), 0, [Shown(name, 0, 0, 0, 0, (1,), b"x")], 0, 1_000) for name in ("q", "r", "s")]
    runner.come(events[0])
    clock.sleep(400)
    runner.shelf.put(4, LotJoin(plan_of()))  # which sweeps nothing
    runner.come(events[1])
    assert runner.shelf.pending == 2
    assert not any(runner.state.bags)
    before = runner.state.copy()
    runner.come(events[2], fails=True)  # what memory has is further than what the runner kept
    assert runner.state == before
    with pytest.raises(PipelineFailed, match="lot 3 is not in this process"):
        runner.come(events[2])


def test_every_partition_of_samples_is_spoken_for_by_some_lot() -> None:
    for lots_count in (1, 3, 4, 16):
        for partitions in (1, 2, 4, 7, 16):
            spoken = [partitions_of(lot, lots_count, partitions) for lot in range(lots_count)]
            assert {one for own in spoken for one in own} == set(range(partitions))
            said = silent_partitions(dict.fromkeys(range(lots_count), 5), [0], lots_count, partitions)
            assert set(said) == set(range(1, partitions))


def test_bytes_of_impressions_are_logged_for_the_shortest_window_and_the_rest_for_the_longest() -> None:
    plan, rng = plan_of(), random.Random(6)
    runner = OneLot(plan, RULES)
    held: dict[bool, int] = {False: 0, True: 0}
    blobs = blobs_of(plan, rng, long_world(rng, 8, 40), LATENESS_MS)
    for blob in sorted(blobs, key=lambda one: one.after_ms):
        runner.come(blob)
        runner.fire_all()
        for is_payload, bags in ((False, runner.head.events.bags), (True, runner.head.payloads.bags)):
            held[is_payload] = max(held[is_payload], sum(bag.entries for bag in bags))
    assert 0 < held[True] < held[False] / 3


def test_where_all_windows_are_alike_an_entry_has_its_bytes() -> None:
    plan = JoinPlan((LabelGroup("fast", 60, 60),), (Label("click", "click", "fast"),), "topic")
    runner = OneLot(plan, replace_partitions(1))
    runner.come(lot_events(plan, 0, [Shown("q", 0, 0, 0, 0, (1,), b"the event")], BEFORE_ALL, 1_000))
    assert runner.head.filled == [0]
    assert b"the event" in runner.state.bags[0][0]
    runner.shelf = LotShelf(clock=ManualClock())
    runner.come(lot_events(plan, 0, [], 1_000, AFTER_ALL, closes=True))
    runner.fire_all()
    assert [row.payload for row in runner.rows] == [b"the event"]
