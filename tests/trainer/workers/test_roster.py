"""The roster: every slice is learned once, in the order of steps, and those who are slow get fewer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlearn.trainer.workers.roster import Roster
from tests.campaign import examples


def roster(slices: int, *workers: str) -> Roster:
    made = Roster(slices)
    for worker in workers:
        made.see(worker, f"host:{worker}", 0.0)
    return made


def taken(of: Roster, worker: str, now_s: float = 0.0) -> Iterator[tuple[int, int]]:
    while (chosen := of.take(worker, now_s)) is not None:
        yield chosen


@settings(max_examples=examples(200))
@given(st.integers(1, 9), st.integers(1, 5), st.data())
def test_each_slice_is_learned_once_by_somebody_who_is_there(slices: int, steps: int, data: st.DataObject) -> None:
    names = [f"{number}" for number in range(data.draw(st.integers(1, 4)))]
    under_test, learned = roster(slices, *names), list[tuple[int, int]]()
    for _ in range(steps):
        under_test.offer()
    held: dict[str, list[tuple[int, int]]] = {name: [] for name in names}
    newest = dict.fromkeys(names, 0)
    while under_test.complete < steps:
        name = data.draw(st.sampled_from(names))
        if data.draw(st.booleans()) and (chosen := under_test.take(name, 0.0)) is not None:
            held[name].append(chosen)
            # It learns them in this order, and would wait for a slice that it has to learn after that one.
            assert chosen[0] >= newest[name]
            newest[name] = chosen[0]
        elif held[name]:
            step, number = held[name].pop(0)
            busy_s = data.draw(st.sampled_from([0.1, 1.0, 30.0]))
            assert under_test.done(name, step, number, busy_s, 0.0)
            assert not under_test.done(name, step, number, 1.0, 0.0), "it is done once"
            learned.append((step, number))
        else:  # whoever holds nothing is given something as long as there is anything for it
            for other in names:
                held[other] += taken(under_test, other)
                newest[other] = max([newest[other], *(step for step, _ in held[other])])
            assert any(held.values())
        assert all(len(ones) <= 2 for ones in held.values())
        whole = {step for step in range(1, steps + 1) if all((step, one) in learned for one in range(slices))}
        assert under_test.complete == max(n for n in range(steps + 1) if set(range(1, n + 1)) <= whole)
    assert sorted(learned) == [(step, number) for step in range(1, steps + 1) for number in range(slices)]


class Queue:
    """What a worker holds, in the order in which it got it."""

    def __init__(self) -> None:
        self.held = list[tuple[int, int]]()

    def first(self, complete: int) -> tuple[int, int] | None:
        """What it can learn now: the first one; or, while this waits for others, one that came after later steps."""
        for at, (step, number) in enumerate(self.held):
            is_early = any(before > step for before, _ in self.held[:at])
            if step == complete + 1 and (at == 0 or is_early):
                return step, number
        return None


@settings(max_examples=examples(200))
@given(st.integers(1, 5), st.integers(1, 6), st.data())
def test_whoever_is_lost_whenever_no_worker_waits_for_what_another_one_was_not_given(
    slices: int, steps: int, data: st.DataObject
) -> None:
    names, ahead = [f"{number}" for number in range(data.draw(st.integers(2, 4)))], data.draw(st.integers(0, 3))
    under_test, learned, losses = roster(slices, *names), list[tuple[int, int]](), data.draw(st.integers(0, 3))
    queues, offered = {name: Queue() for name in names}, 0

    def go_on() -> None:
        nonlocal offered
        while offered < min(steps, under_test.complete + 1 + ahead):
            offered = under_test.offer()
        under_test.release(min(steps, under_test.complete + 1), 0.0)

    def learn(name: str) -> bool:
        queues[name].held += taken(under_test, name)
        if (chosen := queues[name].first(under_test.complete)) is None:
            return False
        queues[name].held.remove(chosen)
        assert under_test.done(name, *chosen, 1.0, 0.0)
        learned.append(chosen)
        go_on()
        return True

    go_on()
    for _ in range(data.draw(st.integers(0, 60))):
        name = data.draw(st.sampled_from(names))
        if losses and data.draw(st.integers(0, 5)) == 0:
            losses -= 1
            assert under_test.give_back(under_test.remove(name))
            queues[name] = Queue()
            if len(names) == 1 or data.draw(st.booleans()):  # it comes again
                under_test.see(name, name, 0.0)
            else:
                names.remove(name)
        elif data.draw(st.booleans()):
            queues[name].held += taken(under_test, name)
        else:
            learn(name)
    while under_test.complete < steps:
        assert any([learn(name) for name in names]), "all wait"  # noqa: C419 — each of them has its turn
    assert sorted(learned) == [(step, number) for step in range(1, steps + 1) for number in range(slices)]


def test_a_slice_that_was_lost_too_often_is_given_to_nobody() -> None:
    under_test = roster(1, "a", "b")
    step = under_test.offer()
    assert not under_test.is_begun(step)
    for left in (True, True, True, False):
        (name,) = (name for name in "ab" if list(taken(under_test, name)))
        assert under_test.is_begun(step)
        assert under_test.give_back(under_test.remove(name)) is left
        under_test.see(name, name, 0.0)


def test_who_waited_for_a_slice_of_a_lost_worker_is_not_the_slow_one() -> None:
    under_test, limits = roster(2, "a", "b"), (500.0, 100.0)
    for _ in range(3):
        under_test.offer()
    under_test.release(1, 0.0)
    assert [under_test.take(name, 0.0) for name in "abab"] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    under_test.done("b", 1, 1, 1.0, 1.0)
    assert list(taken(under_test, "b")) == [(3, 0)]
    assert under_test.overdue({"a", "b"}, limits, 110.0) == ["a"]
    assert under_test.give_back(under_test.remove("a"))
    assert list(taken(under_test, "b", 110.0)) == [(1, 0)]  # those that wait for it do not count
    assert under_test.overdue({"b"}, limits, 209.0) == []
    assert under_test.overdue({"b"}, limits, 211.0) == ["b"]


def test_the_slices_of_a_step_are_divided_so_that_all_end_together() -> None:
    under_test, busy_s = roster(8, "fast", "slow"), {"fast": 1.0, "slow": 3.0}
    shares = dict.fromkeys(busy_s, 0)
    for _ in range(2):
        step, shares = under_test.offer(), dict.fromkeys(busy_s, 0)
        while under_test.complete < step:
            for worker in busy_s:
                if (chosen := under_test.take(worker, 0.0)) is not None:
                    shares[worker] += 1
                    under_test.done(worker, *chosen, busy_s[worker], 0.0)
    assert shares == {"fast": 6, "slow": 2}


def test_no_worker_is_given_a_slice_of_an_earlier_step_after_one_of_a_later_step() -> None:
    under_test = roster(4, "slow", "fast")
    for worker, slice_s in (("slow", 3.0), ("fast", 1.0)):
        member = under_test.members[worker]
        member.slices, member.slice_s = 2, slice_s
    for _ in range(2):
        under_test.offer()
    fast, slow = list(taken(under_test, "fast")), list(taken(under_test, "slow"))
    assert fast == [(1, 0), (1, 1)]
    assert slow == [(1, 2)]  # the last one is for the fast one, and those of the next step come after it
    under_test.done("fast", 1, 0, 60.0, 0.0)  # which is slow now
    assert list(taken(under_test, "slow")) == [(1, 3)]


def test_one_of_several_idle_workers_does_not_take_what_is_for_the_others() -> None:
    under_test = roster(2, "a", "b")
    under_test.offer()
    assert len(list(taken(under_test, "a"))) == 1
    assert list(taken(under_test, "b")) == [(1, 1)]
    under_test.offer()  # the slice of the next step is given ahead, and no third one
    assert list(taken(under_test, "a")) == [(2, 0)]
    under_test.offer()
    assert not list(taken(under_test, "a"))


def test_a_worker_that_goes_with_slices_is_known_to_have_held_them() -> None:
    under_test = roster(2, "a", "b")
    under_test.offer()
    list(taken(under_test, "a"))
    assert not under_test.remove("b")
    assert under_test.remove("a")
    assert not under_test.remove("a")


@pytest.mark.parametrize(
    ("connected", "seen_s", "now_s", "late"),
    [
        ({"a", "idle"}, 4.0, 5.0, []),
        ({"idle"}, 4.0, 4.3, []),  # its connection may come back
        ({"idle"}, 4.0, 4.5, ["a"]),
        ({"a"}, 4.0, 5.0, ["idle"]),
        ({"a", "idle"}, 4.0, 9.5, ["a"]),
        ({"a", "idle"}, 99.0, 101.0, ["a"]),
    ],
)
def test_a_worker_is_overdue_when_it_is_gone_or_silent_or_too_long_at_a_slice(
    connected: set[str], seen_s: float, now_s: float, late: list[str]
) -> None:
    under_test = roster(1, "a", "idle")
    under_test.release(under_test.offer(), 0.0)
    assert under_test.take("a", 0.0) is not None
    under_test.see("a", "a", seen_s)
    under_test.see("idle", "idle", 3.0 if "idle" not in connected else now_s)
    assert under_test.overdue(connected, (5.0, 100.0), now_s) == late


def test_steps_that_are_given_up_are_not_counted_as_learned_and_numbers_go_on() -> None:
    under_test = roster(1, "a")
    under_test.offer()
    chosen = under_test.take("a", 0.0)
    under_test.drop()
    assert chosen is not None
    assert not under_test.done("a", *chosen, 1.0, 0.0)
    assert (under_test.complete, under_test.released) == (1, 1)
    assert under_test.offer() == 2
    assert under_test.take("a", 0.0) == (2, 0)


def test_the_time_before_a_step_may_be_given_to_shards_is_nobodys_delay() -> None:
    under_test, limits = roster(1, "a"), (5.0, 100.0)
    step = under_test.offer()
    assert under_test.take("a", 0.0) is not None
    under_test.see("a", "a", 500.0)  # while the step waits for a version to be cut
    under_test.release(step, 500.0)
    assert under_test.overdue({"a"}, limits, 501.0) == []
    under_test.see("a", "a", 601.0)
    assert under_test.overdue({"a"}, limits, 601.0) == ["a"]


def test_with_fixed_slices_each_worker_gets_its_own_of_every_step_in_order() -> None:
    roster = Roster(4, {"a": range(2), "b": range(2, 4)})
    for worker in "ab":
        roster.see(worker, worker, 0.0)
    for _ in range(2):
        roster.offer()
    assert [roster.take("a", 0.0) for _ in range(3)] == [(1, 0), (1, 1), None]
    assert roster.take("b", 0.0) == (1, 2)
    assert roster.done("a", 1, 0, 9.0, 1.0)
    assert roster.take("a", 1.0) == (2, 0), "it waits for nobody's slices, and takes none of theirs"
    assert roster.take("b", 1.0) == (1, 3)
    for worker, slice in (("a", 1), ("b", 2), ("b", 3)):
        assert roster.done(worker, 1, slice, 0.1, 2.0)
    assert roster.complete == 1
    assert [roster.take("a", 2.0), roster.take("b", 2.0)] == [(2, 1), (2, 2)]
