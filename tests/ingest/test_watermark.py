"""Watermarks, against a model that does the same one record at a time."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streamlearn.ingest.reading.watermark import (
    AFTER_ALL,
    BEFORE_ALL,
    TimeRules,
    TopicClock,
    end,
    heartbeat,
    read,
    read_all,
    watermark_of,
)

DISORDER_MS, AHEAD_MS = 10, 100
WALL_MS = 1_000


def rules(time: Literal["wall", "event"] = "event") -> TimeRules:
    return TimeRules(time, DISORDER_MS, AHEAD_MS)


def times(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


# Steps: records with their times, a heartbeat, an end mark, or the partition's end; each with its wall time.
steps = st.lists(
    st.one_of(
        st.tuples(st.just("records"), st.lists(st.integers(0, 2_000), max_size=8), st.integers(0, 2_000)),
        st.tuples(st.just("records"), st.lists(st.integers(0, 40), max_size=40), st.integers(0, 2_000)),
        st.tuples(st.just("all"), st.just(0), st.integers(0, 2_000)),
        st.tuples(st.just("heartbeat"), st.integers(0, 2_000), st.integers(0, 2_000)),
        st.tuples(st.just("end"), st.just(0), st.just(0)),
    ),
    max_size=12,
)
modes = st.sampled_from(["wall", "event"])


class Model:
    """One topic's partition, told in the words of the rules."""

    def __init__(self, time: str) -> None:
        self.time = time
        self.possible: list[int] = []
        self.newest: list[int] = []
        self.promises: list[int] = []
        self.ended = False

    def now(self) -> int:
        return max([BEFORE_ALL, *self.possible, *self.promises])

    def record(self, time_ms: int, wall_ms: int) -> bool:
        if self.time == "wall":
            if time_ms > wall_ms + AHEAD_MS:
                return False
            self.newest.append(min(time_ms, wall_ms))
            return True
        if self.now() > BEFORE_ALL and time_ms > self.now() + AHEAD_MS:
            return False
        self.possible.append(time_ms)
        return True

    def end_of_read(self, count: int) -> None:
        """In wall time records are judged together: those near most of the newest advance the clock."""
        if self.time == "wall" and count:
            self.newest = self.newest[-max(count, 31) :]
            if len(self.newest) < 3:
                return
            median_ms = sorted(self.newest)[(len(self.newest) - 1) // 2]
            self.possible += [one for one in self.newest if one <= median_ms + DISORDER_MS]
            self.newest = self.newest[-31:]

    def bound(self) -> int:
        reached = max(self.possible, default=BEFORE_ALL)
        return max([reached - DISORDER_MS, *self.promises])


@given(modes, steps)
def test_a_clock_is_what_a_model_says_that_reads_one_record_after_the_other(time: str, read_: list[Any]) -> None:
    model, clock, said = Model(time), TopicClock(), TimeRules(time, DISORDER_MS, AHEAD_MS)  # type: ignore[arg-type]
    for kind, what, wall_ms in read_:
        if kind == "records":
            clock, limits = read(clock, said, times(*what), wall_ms)
            judged = [one <= limit for one, limit in zip(what, limits.tolist(), strict=True)]
            assert judged == [model.record(one, wall_ms) for one in what]
            model.end_of_read(sum(judged))
        elif kind == "all":
            clock = read_all(clock, said, wall_ms)
            model.possible += [one for one in model.newest if one >= wall_ms - DISORDER_MS]
        elif kind == "heartbeat":
            clock = heartbeat(clock, said, what, wall_ms)
            model.promises.append(min(what, wall_ms) if time == "wall" else what)
        else:
            clock = end(clock)
            model.ended = True
        assert clock.now_ms == model.now()
        assert watermark_of([clock], said, [None]) == (AFTER_ALL if model.ended else max(BEFORE_ALL, model.bound()))


partitions = st.lists(
    st.tuples(st.integers(0, 2_000), st.integers(0, 2_000), st.booleans(), st.none() | st.integers(0, 2_000)),
    min_size=1,
    max_size=5,
)


@given(modes, partitions, st.integers(0, 2_000))
def test_the_watermark_is_the_least_of_those_that_are_waited_for(time: str, found: list[Any], floor_ms: int) -> None:
    said = TimeRules(time, DISORDER_MS, AHEAD_MS)  # type: ignore[arg-type]
    clocks = [TopicClock(reached, promised, ended) for reached, promised, ended, _ in found]
    proofs = [proof for *_, proof in found]
    watermark_ms = watermark_of(clocks, said, proofs, floor_ms)
    alive = [one for one in found if not one[2]]
    if not alive:
        assert watermark_ms == AFTER_ALL
        return
    waited_for = [one for one in alive if time == "event" or one[3] is None]
    if waited_for:
        assert watermark_ms == max(floor_ms, min(max(one[1], one[0] - DISORDER_MS) for one in waited_for))
    else:
        assert watermark_ms == max(floor_ms, min(one[3] for one in alive) - DISORDER_MS)


def test_an_idle_partition_leaves_the_minimum_and_does_not_push_it_to_the_wall() -> None:
    busy, quiet = TopicClock(reached_ms=500), TopicClock(reached_ms=100)
    assert watermark_of([busy, quiet], rules("wall"), [None, None]) == 90
    assert watermark_of([busy, quiet], rules("wall"), [None, WALL_MS]) == 490


def test_when_all_are_idle_wall_time_moves_on_and_event_time_does_not() -> None:
    both = [TopicClock(reached_ms=500), TopicClock(reached_ms=100)]
    assert watermark_of(both, rules("wall"), [WALL_MS + 50, WALL_MS]) == WALL_MS - DISORDER_MS
    assert watermark_of(both, rules("event"), [WALL_MS + 50, WALL_MS]) == 90


def test_a_record_from_a_future_does_not_move_time_and_those_after_it_are_judged_without_it() -> None:
    clock, limits = read(TopicClock(), rules(), times(50, 151, 60, 149), WALL_MS)
    assert (clock.reached_ms, limits.tolist()) == (149, [AFTER_ALL, 150, 150, 160])


def test_the_events_of_a_record_move_time_within_it_and_what_lies_beyond_a_gap_is_impossible() -> None:
    # The event at 390 lies beyond a gap, so the record moves time to 190 alone.
    inside = {0: times(100, 190, 20, 390), 1: times(290, 250)}
    clock, limits = read(TopicClock(reached_ms=10), rules(), times(390, 290), WALL_MS, inside.__getitem__)
    assert (clock.reached_ms, limits.tolist()) == (290, [290, 290])
    # Whatever can be read of it: a record without events moves no time.
    clock, limits = read(TopicClock(reached_ms=10), rules(), times(390), WALL_MS, lambda at: times())
    assert (clock.reached_ms, limits.tolist()) == (10, [110])


def test_a_producer_whose_clock_is_fast_does_not_make_the_others_late() -> None:
    clock, limits = read(TopicClock(), rules("wall"), times(*[WALL_MS + 90] * 3), WALL_MS)
    assert clock.reached_ms == WALL_MS
    assert limits.tolist() == [WALL_MS + AHEAD_MS] * 3


def test_in_a_backlog_a_producer_whose_clock_is_fast_does_not_make_the_records_behind_it_late() -> None:
    clock = TopicClock()
    for begin in range(0, 400, 4):  # each read ends with a record that is 500 ms fast
        clock, _ = read(clock, rules("wall"), times(begin, begin + 1, begin + 2, begin + 503), WALL_MS)
        assert clock.reached_ms <= begin + 2 + DISORDER_MS
    assert clock.reached_ms == 398


def test_one_or_two_records_prove_no_time_before_the_partition_ends() -> None:
    clock, _ = read(TopicClock(), rules("wall"), times(700, 1), WALL_MS)
    assert clock.reached_ms == BEFORE_ALL
    clock, _ = read(clock, rules("wall"), times(2), WALL_MS)
    assert clock.reached_ms == 2
    clock, _ = read(TopicClock(), rules("wall"), times(WALL_MS - 2), WALL_MS)
    assert read_all(clock, rules("wall"), WALL_MS).reached_ms == WALL_MS - 2


def test_records_beyond_a_gap_advance_the_clock_once_most_lie_there_or_the_partition_ends() -> None:
    clock, _ = read(TopicClock(), rules("wall"), times(1, 2, 3, 4, 600), WALL_MS)
    assert clock.reached_ms == 4
    assert read_all(clock, rules("wall"), 605).reached_ms == 600
    clock, _ = read(clock, rules("wall"), times(*range(601, 606)), WALL_MS)
    assert clock.reached_ms == 605


def test_at_the_end_of_a_partition_that_lags_behind_the_wall_a_fast_clock_makes_no_other_record_late() -> None:
    clock, lag_ms = TopicClock(), 7_000
    for wall_ms in range(10_000, 12_000):  # a mirror gives one record a read; each 200th is 500 ms fast
        time_ms = wall_ms - lag_ms
        assert clock.now_ms <= time_ms + DISORDER_MS
        clock, _ = read(clock, rules("wall"), times(time_ms + 500 * (wall_ms % 200 == 0)), wall_ms)
        clock = read_all(clock, rules("wall"), wall_ms)
    assert clock.now_ms >= 11_999 - lag_ms - DISORDER_MS


def test_a_watermark_never_goes_back() -> None:
    assert watermark_of([TopicClock(reached_ms=100)], rules(), [None], floor_ms=400) == 400
