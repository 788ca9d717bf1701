"""The leader: what it answers, whom it waits for, and what it keeps of those that are gone."""

from __future__ import annotations

import math
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import GroupLost, ShardNotReady, UsageError, WorkerLost
from streamlearn.ps import Epoch
from streamlearn.samples import FeatureColumns
from streamlearn.settings.workers import WorkersSettings
from streamlearn.testing import ManualClock
from streamlearn.trainer.columns import Inputs
from streamlearn.trainer.learning_loop import NoWorker
from streamlearn.trainer.workers.assembly import Assembly
from streamlearn.trainer.workers.leader import Leader
from streamlearn.trainer.workers.messages import Ask, Group, Idle, Leave, Members, Report, Setup, SliceWork, Welcome
from streamlearn.trainer.workers.slice_worker import Clients
from streamlearn.trainer.workers.slices import STRICT, SliceRule

_NONE = FeatureColumns({}, {})


class Parts:
    """A learner, rows and clients that do nothing."""

    steps, rate_scale, epoch = 0, 1.0, Epoch(1)

    def dense_update(self) -> Any:
        return SimpleNamespace(whole=np.zeros(2, np.float32), slots=[])

    def load_state(self, state: Any, steps: int) -> None:
        self.steps = steps

    def inputs(self, columns: Any) -> Inputs:
        return Inputs(1, _NONE, _NONE, np.zeros(4, np.int32), np.zeros((4, 1, 4), np.float32))


_ARRIVAL = SliceRule(may_repeat=True, at_once=True)


def leader(clock: Clock = SYSTEM_CLOCK, rule: SliceRule = STRICT, **more: Any) -> Leader:
    """A leader that learns nothing itself."""
    parts: Any = Parts()
    settings = WorkersSettings(slices=2, leader_learns=False)
    made = Leader(parts, parts, Clients(parts, parts), settings, Setup("s", ""), rule=rule, clock=clock, **more)
    made._own.learn = lambda stop: None  # type: ignore[method-assign]
    return made


def ask(worker: str, number: int = 1, session: int = 0, applied: int = 0) -> Ask:
    return Ask(worker, f"host:{worker}", Setup("s", "x"), number, session, applied)


def welcome(of: Leader, worker: str) -> Welcome:
    answer = of.answer(ask(worker))
    assert answer is not None
    assert isinstance(answer[0], Welcome)
    return answer[0]


def test_who_joins_before_the_leader_has_begun_is_welcomed_at_the_newest_step() -> None:
    under_test = leader()
    with under_test.session(threading.Event()):
        for _ in range(3):
            under_test.pack(Any, 0)  # type: ignore[arg-type]
    with under_test.session(threading.Event()):  # the three steps were given up
        assert welcome(under_test, "a").applied == 3
        offered = under_test.pack(Any, 0)  # type: ignore[arg-type]
        assert offered.number == 4


@pytest.mark.parametrize(
    ("loss", "logits"),
    [
        (math.nan, np.zeros((2, 1), np.float32)),
        (0.5, np.zeros((3, 1), np.float32)),
        (0.5, np.zeros((2, 1), np.int32)),
    ],
)
def test_a_report_that_cannot_be_is_refused_and_its_slice_is_not_done(loss: float, logits: Any) -> None:
    under_test = leader()
    with under_test.session(threading.Event()):
        session = welcome(under_test, "a").session
        offered = under_test.pack(Any, 0)  # type: ignore[arg-type]
        under_test.answer(ask("a", 2, session))
        with pytest.raises(UsageError):
            under_test.report(Report("a", session, offered.number, 0, loss, True, 1, 0.5), logits)
        assert not offered.reports
        good = Report("a", session, offered.number, 0, 0.5, True, 1, 0.5), np.zeros((2, 1), np.float32)
        under_test.report(*good)
        under_test.report(*good)  # the answer was lost
        assert list(offered.reports) == [0]


def test_a_worker_that_is_too_far_behind_is_welcomed_again_unless_it_holds_a_slice() -> None:
    under_test = leader()
    with under_test.session(threading.Event()):
        session = welcome(under_test, "a").session
        under_test._own.applied = 4
        assert under_test.answer(ask("a", 2, session, applied=0), always=True) == (Idle(session, 0, 0), ())
        under_test._own.applied = 5
        again = under_test.answer(ask("a", 3, session, applied=0))
        assert again is not None
        assert isinstance(again[0], Welcome)
        under_test.pack(Any, 0)  # type: ignore[arg-type]
        assert isinstance((under_test.answer(ask("a", 4, session, applied=5)) or [None])[0], SliceWork)
        assert isinstance((under_test.answer(ask("a", 5, session, applied=0), always=True) or [None])[0], SliceWork)


def test_nothing_is_kept_of_workers_that_are_gone() -> None:
    clock = ManualClock()
    under_test = leader(clock=clock)
    with under_test.session(threading.Event()):
        for number in range(50):
            session = welcome(under_test, f"{number:x}").session
            under_test.answer(ask(f"{number:x}", 2, session), always=True)
            clock.sleep(1.5)  # nobody is connected
        assert len(under_test.workers) == 1
        assert (len(under_test._told), len(under_test._answered)) == (1, 1)


def test_a_question_that_comes_after_a_later_one_takes_no_slice() -> None:
    under_test = leader()
    with under_test.session(threading.Event()):
        session = welcome(under_test, "a").session
        under_test.pack(None, 0)  # type: ignore[arg-type]
        later = under_test.answer(ask("a", 3, session))
        overtaken = under_test.answer(ask("a", 2, session))
        assert overtaken is not None
        assert isinstance(overtaken[0], Idle)
        assert under_test.answer(ask("a", 3, session)) == later


def test_a_worker_that_computes_other_numbers_than_those_before_is_refused() -> None:
    under_test = leader()
    with under_test.session(threading.Event()):
        session = welcome(under_test, "a").session
        other = structs.replace(ask("b"), setup=Setup("s", "y"))
        with pytest.raises(UsageError, match="computes other numbers"):
            under_test.answer(other)
        under_test.leave(Leave("a"))
        assert under_test.answer(other) is not None, "it is the first one now"
        with pytest.raises(UsageError, match="computes other numbers"):
            under_test.answer(ask("a", 2, session))


def given(of: Leader, worker: str, number: int, session: int) -> tuple[int, int]:
    """The slice that a worker is given."""
    answer = of.answer(ask(worker, number, session))
    assert answer is not None
    assert isinstance(answer[0], SliceWork)
    return answer[0].step, answer[0].slice


def reported(of: Leader, worker: str, session: int, step: int, number: int) -> None:
    of.report(Report(worker, session, step, number, 0.5, True, 1, 0.5), np.full((2, 1), int(worker, 16), np.float32))


def test_others_learn_the_slices_of_a_lost_worker_and_what_it_still_says_counts_for_nothing() -> None:
    under_test = leader(ManualClock(), _ARRIVAL)
    with under_test.session(threading.Event()):
        session = welcome(under_test, "a").session
        welcome(under_test, "b")
        offered = under_test.pack(Any, 0)  # type: ignore[arg-type]
        assert (given(under_test, "a", 2, session), given(under_test, "b", 2, session)) == ((1, 0), (1, 1))
        under_test.leave(Leave("a", "it does not reach a shard"))
        under_test._check(1)
        assert given(under_test, "b", 3, session) == (1, 0)
        reported(under_test, "a", session, 1, 0)
        assert not offered.reports
        back = under_test.answer(ask("a", 3, session))
        assert back is not None
        assert isinstance(back[0], Welcome), "it drops what it holds"
        again = under_test.answer(ask("a", 3, session))
        assert again is back, "the answer was lost"
        for number in range(2):
            reported(under_test, "b", session, 1, number)
        assert under_test._roster.complete == 1
        assert offered.learned(is_finite=True).logits.tolist() == [[11.0]] * 4
        assert not offered.learned(is_finite=False).is_finite, "shards took one that was not finite"


@pytest.mark.parametrize("rule", [STRICT, _ARRIVAL])
def test_the_slices_of_the_last_worker_or_of_any_strict_one_take_all_back(rule: SliceRule) -> None:
    under_test = leader(ManualClock(), rule)
    with under_test.session(threading.Event()):
        session = welcome(under_test, "a").session
        if not rule.may_repeat:
            welcome(under_test, "b")
        under_test.pack(Any, 0)  # type: ignore[arg-type]
        given(under_test, "a", 2, session)
        under_test.leave(Leave("a"))
        with pytest.raises(WorkerLost, match="left with slices"):
            under_test._check(1)


def test_training_that_stops_without_workers_publishes_no_part_of_a_step() -> None:
    stop = threading.Event()
    under_test = leader(ManualClock(), _ARRIVAL)
    with under_test.session(stop):
        session = welcome(under_test, "a").session
        under_test.pack(Any, 0)  # type: ignore[arg-type]
        stop.set()
        under_test.leave(Leave("a"))
        with pytest.raises(NoWorker):  # nothing of it was given
            under_test._check(1)
        welcome(under_test, "b")
        step, number = given(under_test, "b", 2, session)
        reported(under_test, "b", session, step, number)
        under_test.leave(Leave("b"))
        with pytest.raises(WorkerLost, match="a part of step 1"):
            under_test._check(1)
        welcome(under_test, "c")
        step, number = given(under_test, "c", 2, session)
        reported(under_test, "c", session, step, number)
        under_test.leave(Leave("c"))
        under_test._check(1)  # shards have all of it, and the leader finds out soon


def test_what_puts_workers_back_ends_a_group_as_do_members_that_leave() -> None:
    lost, error = list[str](), ShardNotReady("a shard was restarted", help="")

    def lose(reason: str) -> GroupLost:
        lost.append(reason)
        return GroupLost(reason, help="")

    sums: Any = SimpleNamespace(lost="", lose=lose)
    group = Assembly(Setup("s", "CPU"), "127.0.0.1:1", WorkersSettings(slices=2))
    group.answer(structs.replace(ask("a"), setup=Setup("s", "CPU"), address="127.0.0.1:2"))
    group.sums = sums
    with pytest.raises(GroupLost), leader(group=group).session(threading.Event()):
        raise error
    under_test = leader(group=group)
    with under_test.session(threading.Event()):
        welcome(under_test, "a")
        stranger = under_test.answer(ask("b"))
        assert stranger is not None
        assert isinstance(stranger[0], Group)
        under_test._check(0)
        under_test.leave(Leave("a"))
        with pytest.raises(GroupLost):
            under_test._check(0)
    assert lost == ["a shard was restarted", "gone are: host:a"]


def learns(of: Leader) -> tuple[list[str], float]:
    """The names of those that learn, and for how long there have been too few."""
    members = of.members()
    return [member.name for member in members.workers], round(members.short_s, 3)


def test_it_says_for_how_long_there_have_been_too_few_workers() -> None:
    clock = ManualClock()
    under_test = leader(clock, wanted=2)
    under_test.connected = lambda: {"a", "b", "c"}
    clock.sleep(3.0)
    with under_test.session(threading.Event()):
        assert learns(under_test) == ([], 3.0), "since it began"
        welcome(under_test, "a")
        assert learns(under_test) == (["host:a"], 3.0)
        welcome(under_test, "b")
        assert learns(under_test) == (["host:a", "host:b"], 0.0)
        clock.sleep(1.0)
        under_test.leave(Leave("a"))
        clock.sleep(1.0)
        assert learns(under_test) == (["host:b"], 2.0), "since a was seen"
        welcome(under_test, "c")
        assert learns(under_test) == (["host:b", "host:c"], 0.0)
        clock.sleep(1.0)
        under_test.leave(Leave("b"))
        assert learns(under_test) == (["host:c"], 3.0)
    assert under_test.members().wanted == 2


def test_a_worker_that_is_gone_is_not_named_although_no_step_has_missed_it() -> None:
    clock = ManualClock()
    under_test = leader(clock, wanted=2)
    with under_test.session(threading.Event()):
        under_test.connected = lambda: {"a", "b"}
        for worker in ("a", "b"):
            welcome(under_test, worker)
        clock.sleep(2.0)
        assert learns(under_test) == (["host:a", "host:b"], 0.0)
        under_test.connected = lambda: {"a"}
        assert learns(under_test) == (["host:a"], 2.0), "its connection is gone"
        under_test.connected = lambda: {"a", "b"}
        clock.sleep(4.0)
        assert learns(under_test) == ([], 6.0), "both are silent"
    assert learns(under_test) == (["host:a", "host:b"], 0.0), "between sessions nobody asks"
    assert len(under_test.workers) == 2, "nobody was given up by the question"


def test_without_a_number_of_workers_none_is_missing() -> None:
    clock = ManualClock()
    under_test = leader(clock)
    clock.sleep(3.0)
    assert under_test.members() == Members([])


def test_a_worker_more_than_wanted_may_go_before_one_is_missing() -> None:
    clock = ManualClock()
    under_test = leader(clock, wanted=1)
    with under_test.session(threading.Event()):
        for worker in ("a", "b"):
            welcome(under_test, worker)
            clock.sleep(2.0)
        under_test.connected = lambda: {"b"}
        assert learns(under_test) == (["host:b"], 0.0)
        under_test.connected = set
        assert learns(under_test) == ([], 2.0), "since b was seen"
