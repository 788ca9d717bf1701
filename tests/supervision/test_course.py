"""The course: who is started, started again, stopped and killed, and when; decided on a clock that stands still."""

from __future__ import annotations

import signal
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from streamlearn.errors import EXIT_USAGE
from streamlearn.settings.up import UpSettings
from streamlearn.supervision import Member
from streamlearn.supervision.course import ABORTED_S_MAX, KILLED_S_MAX, LOOK_S_MAX, Act, Course, Order, State
from streamlearn.supervision.member import INGEST, NODES, SHARDS, TRAINER
from streamlearn.testing import ManualClock

SETTINGS = UpSettings(
    restarts_max=3,
    restarts_window_s=100,
    backoff_first_ms=1_000,
    backoff_ms_max=4_000,
    stop_s_max=20,
    start_s_max=30,
    silence_s_max=0,
)
WATCHED = structs.replace(SETTINGS, silence_s_max=10)
MEMBERS = (
    Member("shard-0", SHARDS, ("ps",), ready_s_max=30),
    Member("ingest", INGEST, ("ingest",), may_end=True),
    Member("trainer", TRAINER, ("train",), needs=("shard-0",)),
    Member("node-1", NODES, ("serve",)),
    Member("node-2", NODES, ("serve",)),
)


class Played:
    """A course, and what was ordered of it."""

    def __init__(self, members: Sequence[Member] = MEMBERS, settings: UpSettings = SETTINGS) -> None:
        self.clock = ManualClock()
        self.course = Course(members, settings, self.clock)

    def orders(self) -> list[str]:
        return [f"{one.act} {one.name}" for one in self.course.orders()]

    def up(self) -> Played:
        """Everything started and ready."""
        while not self.course.is_up:
            self.orders()
            for one in self.course.standings:
                self.course.ready(one.member.name)
        assert self.orders() == []
        return self

    def watch(self, seconds: int, *beating: str) -> list[str]:
        """What is ordered while some beat, looked at often."""
        found = []
        for _ in range(seconds):
            self.clock.sleep(1)
            for name in beating:
                self.course.beat(name)
            found += self.orders()
        return found

    def state(self, name: str) -> State:
        return self.course.standing(name).state


@pytest.fixture
def played() -> Played:
    return Played()


@pytest.fixture
def watched() -> Played:
    return Played(settings=WATCHED)


def test_all_are_started_at_once_but_for_those_that_need_others(played: Played) -> None:
    assert played.orders() == ["start shard-0", "start ingest", "start node-1", "start node-2"]
    assert played.orders() == []
    assert [str(one.state) for one in played.course.standings] == [
        "starting", "starting", "waiting", "starting", "starting",
    ]  # fmt: skip
    played.course.ready("shard-0")
    assert played.orders() == ["start trainer"]
    for name in ("node-1", "node-2", "ingest", "trainer"):
        assert not played.course.is_up
        played.course.ready(name)
    assert played.course.is_up


def test_what_ends_is_started_again_after_a_wait_that_doubles(played: Played) -> None:
    played.up()
    for wait_s in (1, 2, 4):
        played.course.ended("trainer", -signal.SIGKILL)
        played.clock.sleep(wait_s - 0.01)
        assert played.orders() == []
        played.clock.sleep(0.01)
        assert played.orders() == ["start trainer"]
    assert played.course.standing("trainer").restarts == 3


def test_status_0_is_an_end_for_ingest_alone(played: Played) -> None:
    played.up()
    for name in ("ingest", "trainer", "node-1", "shard-0"):
        played.course.ended(name, 0)
    assert [played.state(one) for one in ("ingest", "trainer", "node-1", "shard-0")] == [
        State.ENDED, State.WAITING, State.WAITING, State.WAITING,
    ]  # fmt: skip
    played.clock.sleep(1)
    # The trainer waits for the shard.
    assert played.orders() == ["start shard-0", "start node-1"]
    played.course.ready("shard-0")
    assert played.orders() == ["start trainer"]


def test_ingest_that_fails_is_started_again(played: Played) -> None:
    played.up().course.ended("ingest", 1)
    played.clock.sleep(1)
    assert played.orders() == ["start ingest"]


def test_at_the_bound_all_are_stopped_and_it_is_said_who_and_why(played: Played) -> None:
    played.up()
    for _ in range(3):
        played.course.ended("node-2", 1)
        played.clock.sleep(4)
        assert played.orders() == ["start node-2"]
    played.course.ended("node-2", 7)
    (given_up,) = played.course.given_up
    assert (given_up.name, given_up.status, given_up.restarts) == ("node-2", 7, 3)
    assert "restarts_max is 3 in 100 s" in given_up.why
    assert played.orders() == ["stop ingest"]
    assert played.course.is_stopping


def test_restarts_of_long_ago_do_not_count_and_the_wait_begins_anew(played: Played) -> None:
    played.up()
    for _ in range(10):
        played.course.ended("trainer", 1)
        played.clock.sleep(1)
        assert played.orders() == ["start trainer"]
        played.clock.sleep(100)
    assert played.course.given_up == []
    assert played.course.standing("trainer").restarts == 10


def test_without_restarts_the_first_end_is_the_last() -> None:
    played = Played(settings=UpSettings(restarts_max=0)).up()
    played.course.ended("trainer", 1)
    assert [one.name for one in played.course.given_up] == ["trainer"]


def test_a_usage_error_before_all_were_ready_stops_all(played: Played) -> None:
    played.orders()
    for name in ("shard-0", "ingest", "node-2"):
        played.course.ready(name)
    played.course.ended("node-1", EXIT_USAGE)
    assert ["usage error" in one.why for one in played.course.given_up] == [True]
    assert played.orders() == ["stop ingest"]


def test_a_usage_error_later_gives_up_that_process_alone(played: Played) -> None:
    played.up().course.ended("ingest", EXIT_USAGE)
    played.clock.sleep(60)
    assert played.orders() == []
    assert not played.course.is_stopping
    assert (played.state("ingest"), played.state("node-1")) == (State.GIVEN_UP, State.RUNNING)
    # Even with nothing left to train or to serve, what is left goes on.
    for name in ("trainer", "node-1", "node-2"):
        played.course.ended(name, EXIT_USAGE)
    assert played.orders() == []
    played.course.stop()
    assert played.orders() == ["stop shard-0"]
    played.course.ended("shard-0", 0)
    assert played.course.is_over
    assert [one.name for one in played.course.given_up] == ["ingest", "trainer", "node-1", "node-2"]


def test_who_was_given_up_alone_can_be_tried_again(played: Played) -> None:
    played.up().course.ended("ingest", 1)
    played.clock.sleep(1)
    played.orders()
    played.course.ended("ingest", EXIT_USAGE)
    assert played.course.retry() == ["ingest"]
    assert played.course.given_up == []
    assert played.orders() == ["start ingest"]
    played.course.ready("ingest")
    assert played.course.is_up
    assert played.course.retry() == []


def test_who_waits_for_one_that_was_given_up_does_not_keep_the_rest_alive() -> None:
    members = (MEMBERS[0], MEMBERS[2])
    played = Played(members).up()
    played.course.ended("trainer", 1)
    played.course.ended("shard-0", EXIT_USAGE)
    assert played.course.is_over


def test_who_was_given_up_is_not_tried_again_once_all_are_stopped(played: Played) -> None:
    played.up().course.ended("ingest", EXIT_USAGE)
    played.course.stop()
    assert played.course.retry() == []
    assert played.state("ingest") is State.GIVEN_UP


def test_a_shard_that_does_not_get_ready_is_killed_and_started_again(played: Played) -> None:
    played.orders()
    played.clock.sleep(29)
    assert played.orders() == []
    played.clock.sleep(1)
    assert played.orders() == ["kill shard-0"]
    assert played.orders() == []
    played.course.ended("shard-0", -signal.SIGKILL)
    played.clock.sleep(1)
    assert played.orders() == ["start shard-0"]
    assert played.course.standing("shard-0").restarts == 1


@pytest.mark.parametrize("status", [0, 3])
def test_a_member_that_may_end_is_not_started_again_whatever_it_lost(played: Played, status: int) -> None:
    played.up().course.ended("ingest", status)
    played.clock.sleep(60)
    assert played.orders() == []
    assert played.course.given_up == []


def test_stages_are_stopped_one_after_another(played: Played) -> None:
    played.up().course.stop()
    assert played.orders() == ["stop ingest"]
    assert played.orders() == []
    played.course.ended("ingest", 0)
    assert played.orders() == ["stop trainer"]
    played.course.ended("trainer", 0)
    assert played.orders() == ["stop node-1", "stop node-2"]
    played.course.ended("node-2", 0)
    assert played.orders() == []
    played.course.ended("node-1", 0)
    assert played.orders() == ["stop shard-0"]
    assert [one.member.name for one in played.course.standings if one.is_alive] == ["shard-0"]
    played.course.ended("shard-0", 0)
    assert played.course.is_over
    assert all(one.stopped_well for one in played.course.standings)


def test_who_does_not_stop_in_time_is_killed_and_then_comes_the_next_stage(played: Played) -> None:
    played.up().course.stop()
    assert played.orders() == ["stop ingest"]
    played.clock.sleep(20)
    assert played.orders() == ["kill ingest"]
    assert played.orders() == []
    played.course.ended("ingest", -signal.SIGKILL)
    assert played.orders() == ["stop trainer"]
    assert not played.course.standing("ingest").stopped_well


def test_a_second_word_kills_all_that_are_there_at_once(played: Played) -> None:
    played.up().course.stop()
    played.orders()
    played.course.kill()
    assert played.orders() == ["kill shard-0", "kill ingest", "kill trainer", "kill node-1", "kill node-2"]
    assert played.orders() == []
    for one in MEMBERS:
        played.course.ended(one.name, -signal.SIGKILL)
    assert played.course.is_over


def test_who_cannot_even_be_killed_is_left(played: Played) -> None:
    played.up().course.kill()
    played.orders()
    for one in MEMBERS[1:]:
        played.course.ended(one.name, -signal.SIGKILL)
    played.clock.sleep(KILLED_S_MAX)
    assert played.orders() == []
    assert played.state("shard-0") is State.LEFT
    assert played.course.is_over


def test_who_waits_for_its_next_start_has_ended_when_all_are_stopped(played: Played) -> None:
    played.up().course.ended("trainer", 1)
    played.course.stop()
    assert played.orders() == ["stop ingest"]
    assert played.state("trainer") is State.ENDED
    assert played.course.standing("trainer").stopped_well


def test_sigterm_before_anything_was_under_way_is_no_failure(played: Played) -> None:
    played.orders()
    played.course.stop()
    played.course.ended("ingest", -signal.SIGTERM)
    assert played.course.standing("ingest").stopped_well
    played.course.ended("node-1", 1)
    assert not played.course.standing("node-1").stopped_well


OTHERS = tuple(one.name for one in MEMBERS if one.name != "trainer")


def test_who_is_silent_for_too_long_is_told_to_end_then_killed_and_started_again(watched: Played) -> None:
    watched.up()
    assert watched.watch(9, *OTHERS) == []
    assert watched.watch(1, *OTHERS) == ["abort trainer"]
    assert watched.watch(round(ABORTED_S_MAX) - 1, *OTHERS) == []
    assert watched.watch(1, *OTHERS) == ["kill trainer"]
    watched.course.ended("trainer", -signal.SIGKILL)
    assert watched.watch(1, *OTHERS) == ["start trainer"]
    standing = watched.course.standing("trainer")
    assert (standing.hangs, standing.restarts) == (1, 1)
    # A start takes what it takes; then it counts anew.
    assert watched.watch(60, *OTHERS) == []
    watched.course.ready("trainer")
    assert watched.orders() == []
    assert watched.watch(9, *OTHERS) == []
    assert watched.watch(1, *OTHERS) == ["abort trainer"]


def test_hangs_are_restarts_and_at_the_bound_all_are_stopped(watched: Played) -> None:
    watched.up()
    for _ in range(3):
        assert "abort trainer" in watched.watch(10, *OTHERS)
        watched.course.ended("trainer", -signal.SIGABRT)
        assert "start trainer" in watched.watch(4, *OTHERS)
        watched.course.ready("trainer")
        assert watched.orders() == []
    assert "abort trainer" in watched.watch(10, *OTHERS)
    watched.course.ended("trainer", -signal.SIGABRT)
    assert [one.name for one in watched.course.given_up] == ["trainer"]
    assert watched.course.standing("trainer").hangs == 4


def test_time_in_which_nobody_looked_does_not_count(watched: Played) -> None:
    watched.up()
    assert watched.watch(8, *OTHERS) == []
    # As when the machine sleeps: what was said meanwhile is heard late, or was never said.
    watched.clock.sleep(3_600)
    assert watched.orders() == []
    assert watched.course.standing("trainer").silent_s == pytest.approx(8 + LOOK_S_MAX)
    assert watched.watch(1, *OTHERS) == ["abort trainer"]


def test_who_asks_for_patience_may_be_silent_for_longer_until_it_asks_no_more(watched: Played) -> None:
    watched.up().course.bear("trainer", 60)
    assert watched.watch(59, *OTHERS) == []
    watched.course.beat("trainer")
    watched.course.bear("trainer", 10)
    assert watched.orders() == []
    assert watched.watch(9, *OTHERS) == []
    assert watched.watch(1, *OTHERS) == ["abort trainer"]


def test_who_says_that_it_ends_may_take_as_long_as_if_it_was_told_to(watched: Played) -> None:
    watched.up().course.stopping("trainer")
    assert watched.orders() == []
    assert watched.watch(round(SETTINGS.stop_s_max) - 1, *OTHERS) == []
    assert watched.watch(1, *OTHERS) == ["abort trainer"]


def test_nobody_is_watched_where_silence_may_last_for_ever() -> None:
    played = Played(settings=SETTINGS).up()
    played.course.bear("trainer", 10)
    assert played.watch(1_000) == []


def test_silence_ends_nobody_who_is_being_stopped(watched: Played) -> None:
    watched.up().course.stop()
    assert watched.watch(20) == ["stop ingest"]
    assert watched.watch(1) == ["kill ingest"]


def test_who_hangs_when_all_are_stopped_is_not_waited_for(watched: Played) -> None:
    others = tuple(one.name for one in MEMBERS if one.name != "node-1")
    assert watched.up().watch(10, *others) == ["abort node-1"]
    watched.course.stop()
    assert watched.orders() == ["stop ingest"]
    assert watched.watch(round(ABORTED_S_MAX)) == ["kill node-1"]


# What may happen: a member ends or says that it is ready, time passes, somebody asks for a stop or a kill.
_HAPPENED = st.one_of(
    st.tuples(st.just("ends"), st.sampled_from([one.name for one in MEMBERS]), st.sampled_from([0, 1, -9])),
    st.tuples(
        st.sampled_from(["ready", "beat", "stopping"]), st.sampled_from([one.name for one in MEMBERS]), st.just(0)
    ),
    st.tuples(st.just("sleeps"), st.just(""), st.integers(0, 60)),
    st.tuples(st.sampled_from(["stop", "kill"]), st.just(""), st.just(0)),
)


class Judge:
    """Holds what may never be, whatever happens."""

    def __init__(self) -> None:
        self.played = Played(settings=WATCHED)
        self.alive, self.stopped = set[str](), set[str]()
        self.starts: dict[str, list[float]] = {one.name: [] for one in MEMBERS}

    def obey(self) -> None:
        course = self.played.course
        orders = course.orders()
        self.alive -= {one.member.name for one in course.standings if one.state is State.LEFT}
        for order in orders:
            self._check(order, course.is_stopping)

    def _check(self, order: Order, is_stopping: bool) -> None:
        now_s, stages = self.played.clock.monotonic_s(), {one.name: one.stage for one in MEMBERS}
        if order.act is Act.START:
            assert not is_stopping
            assert order.name not in self.alive
            self.alive.add(order.name)
            self.starts[order.name].append(now_s)
            lately = [at_s for at_s in self.starts[order.name] if now_s - at_s < SETTINGS.restarts_window_s]
            assert len(lately) <= SETTINGS.restarts_max + 1
            if order.name == "trainer":
                assert self.played.state("shard-0") is State.RUNNING
        else:
            assert order.name in self.alive
        if order.act is Act.STOP:
            assert is_stopping
            assert order.name not in self.stopped
            self.stopped.add(order.name)
            assert all(stages[one] >= stages[order.name] for one in self.alive)

    def happen(self, what: str, name: str, number: int) -> None:
        course = self.played.course
        if what == "ends" and name in self.alive:
            self.alive.remove(name)
            course.ended(name, number)
        elif what in ("ready", "beat", "stopping"):
            getattr(course, what)(name)
        elif what == "sleeps":
            # Whoever carries out orders looks often.
            for _ in range(number):
                self.played.clock.sleep(1)
                self.obey()
        elif what in ("stop", "kill"):
            getattr(course, what)()
        self.obey()


@given(st.lists(_HAPPENED, max_size=60))
def test_whatever_happens_the_rules_hold_and_a_stop_ends_in_time(happened: list[tuple[str, str, int]]) -> None:
    judge = Judge()
    judge.obey()
    for what, name, number in happened:
        judge.happen(what, name, number)
    course = judge.played.course
    course.stop()
    begun_s, bound_s = judge.played.clock.monotonic_s(), 4 * (SETTINGS.stop_s_max + KILLED_S_MAX) + 8
    # Nobody obeys: each stage takes its deadline, and what is killed does not end either.
    while not course.is_over:
        judge.happen("sleeps", "", 1)
        assert judge.played.clock.monotonic_s() - begun_s <= bound_s
    assert course.orders() == []
