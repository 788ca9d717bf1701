"""Decisions about the pointer: each refusal by name, and random operators, publishers and judges against an oracle."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import process_time
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec.structs import replace

from streamlearn.errors import MoveRefused, RunOver, StreamlearnError, UsageError
from streamlearn.versions import Known, Pointer
from streamlearn.versions.pointer import (
    Canary,
    before,
    promote,
    publish,
    raise_floor,
    release,
    rollback,
    steps_back,
    taints_of,
)
from streamlearn.versions.record import decode_record, encode_record
from tests.campaign import examples
from tests.versions.racers import ref


def known(version: int, outcome: Any = "passed", **changed: Any) -> Known:
    return Known(ref=ref(version), kind="delta", outcome=outcome, written_wall_ms=version * 10, **changed)


def revert(version: int, of: int, outcome: Any = "passed") -> Known:
    return replace(known(version, outcome), kind="revert", content_of=ref(of))


FIVE = [known(version) for version in (1, 2, 4, 5, 6)]
AT_5 = Pointer(seq=9, active=ref(5), previous=ref(4), run=3)
# What training did after version 5, with 2 being the one gone back to.
LEFT = rollback(AT_5, FIVE, 2)


def refused(call: Callable[..., object], said: str, help: str, kind: type[StreamlearnError] = MoveRefused) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert said in caught.value.message
    assert help in caught.value.help


def test_a_new_version_is_followed() -> None:
    moved = publish(AT_5, FIVE, 6, 3)
    assert (moved.seq, moved.active, moved.previous, moved.run) == (10, ref(6), ref(5), 3)
    assert publish(Pointer(), FIVE, 1, 1).previous is None
    assert publish(AT_5, FIVE, 4, 4).active == ref(4)  # a newer run goes on from an older version


def test_a_run_that_is_over_promotes_nothing() -> None:
    refused(lambda: publish(AT_5, FIVE, 6, 2), "run 3 has moved the pointer", "newer one has taken over", RunOver)


def test_a_pointer_that_is_held_follows_nothing() -> None:
    refused(lambda: publish(replace(AT_5, held=True), FIVE, 6, 3), "held at 5", "release")


def test_a_pointer_that_tries_a_version_follows_no_other() -> None:
    tried = replace(AT_5, canary=Canary(version=ref(4), share=0.25))
    refused(lambda: publish(tried, FIVE, 6, 3), "version 4 is tried on 25% of the requests", "promote that version")


def test_an_older_version_is_not_followed() -> None:
    for version in (4, 5):
        refused(partial(publish, AT_5, FIVE, version, 3), "version 5 is active", "only newer")


def test_a_version_that_was_not_judged_is_not_followed_and_can_be_promoted() -> None:
    new = [*FIVE, known(7, None)]
    refused(lambda: publish(AT_5, new, 7, 3), "the judge said nothing yet", "wait for its verdict")
    assert promote(AT_5, new, 7).active == ref(7)


def test_a_version_that_was_rejected_and_all_after_it_are_not_served() -> None:
    bad = [*FIVE, known(7, "rejected"), known(8)]
    refused(lambda: publish(AT_5, bad, 7, 3), "the judge said rejected", "accept")
    refused(lambda: publish(AT_5, bad, 8, 3), "tainted since version 7", "promote MODEL 8 --accept")
    refused(lambda: promote(AT_5, bad, 7), "it is tainted", "promote MODEL 7 --accept")
    assert release(AT_5, bad).active == ref(6)
    accepted = promote(AT_5, bad, 7, accept=True)
    assert (accepted.active, accepted.accepted) == (ref(7), (7,))
    assert publish(accepted, bad, 8, 3).active == ref(8)


def test_a_version_that_is_not_there_is_refused_with_those_that_are() -> None:
    torn = [*FIVE, known(7, lacks="version 3 is gone")]
    for call in (
        lambda version: publish(AT_5, torn, version, 3),
        lambda version: promote(AT_5, torn, version),
        lambda version: rollback(AT_5, torn, version),
    ):
        refused(partial(call, 3), "not a version of the history", "complete and clean are 1, 2, 4, 5, 6")
        refused(partial(call, 7), "not complete: version 3 is gone", "complete and clean are 1, 2, 4, 5, 6")
        refused(partial(call, 0), "not a version of the history", "complete and clean")
    refused(lambda: promote(Pointer(), [], 1), "not a version of the history", "no version that is complete and clean")


def test_a_version_below_the_floor_is_refused() -> None:
    raised = raise_floor(AT_5, FIVE, 4)
    assert raised.floor == 4
    for call in (
        lambda: promote(raised, FIVE, 2),
        lambda: rollback(raised, FIVE, 2),
        lambda: publish(raised, FIVE, 2, 4),
    ):
        refused(call, "below the floor 4", "complete and clean are 4, 5, 6")
    refused(lambda: steps_back(raised, FIVE, 2), "no version 2 steps back of the active one, 5: 1 is older", "versions")
    refused(lambda: release(Pointer(floor=9), FIVE), "no clean version after none", "rewind")


def test_a_floor_only_rises_and_nothing_that_is_needed_goes() -> None:
    raised = raise_floor(AT_5, FIVE, 4)
    refused(lambda: raise_floor(raised, FIVE, 3), "floor 3 is below 4", "only rises")
    refused(lambda: raise_floor(AT_5, FIVE, 5), "version 4 cannot go: it is previous", "keep the active")
    refused(lambda: raise_floor(AT_5, FIVE, 6), "cannot go: it is", "keep the active")
    tried = replace(AT_5, previous=None, canary=Canary(version=ref(4), share=0.5))
    refused(lambda: raise_floor(tried, FIVE, 5), "version 4 cannot go: it is canary", "keep the active")
    refused(lambda: raise_floor(Pointer(), FIVE, 7), "version 6 cannot go: it is the newest", "goes on from it")
    refused(lambda: raise_floor(Pointer(), FIVE, 7), "version 6 cannot go: it is the newest", "goes on from it")


def test_a_rollback_holds_and_taints_what_it_left() -> None:
    assert (LEFT.active, LEFT.held, LEFT.taints, LEFT.previous) == (ref(2), True, (4,), ref(5))
    assert taints_of(LEFT, FIVE) == {4: 4, 5: 4, 6: 4}
    refused(lambda: promote(LEFT, FIVE, 4), "it is tainted", "rewind")
    tainted_between = replace(AT_5, active=ref(6), taints=(4,), accepted=(6,))
    refused(lambda: rollback(tainted_between, FIVE, 5), "it is tainted since version 4", "promote MODEL 5 --accept")
    refused(lambda: release(LEFT, FIVE), "no clean version after 2: versions 4, 5, 6 are tainted", "--accept")
    refused(lambda: publish(replace(LEFT, held=False), FIVE, 6, 3), "tainted since version 4", "--accept")


def test_a_rollback_to_the_active_version_only_holds_it_and_ends_a_trial() -> None:
    held = rollback(AT_5, FIVE, 5)
    assert (held.active, held.held, held.taints, held.previous) == (ref(5), True, (), ref(4))
    tried = rollback(promote(AT_5, FIVE, 6, share=0.1), FIVE, 5)
    assert (tried.canary, tried.taints) == (None, (6,))


def test_a_rollback_goes_back_and_never_forward() -> None:
    refused(lambda: rollback(AT_5, FIVE, 6), "newer than the active one, 5", "promote")
    refused(lambda: rollback(Pointer(), FIVE, 1), "newer than the active one, none", "promote")


def test_a_rollback_takes_back_what_was_accepted_after_where_it_goes() -> None:
    accepted = replace(AT_5, accepted=(2, 5))
    assert rollback(accepted, FIVE, 2).accepted == (2,)
    assert rollback(accepted, FIVE, 5).accepted == (2, 5)


def test_steps_back_count_clean_versions_alone() -> None:
    mixed = [known(1), known(2, None), known(3, lacks="gone"), known(4), known(5)]
    assert steps_back(AT_5, mixed, 1) == 4
    assert steps_back(AT_5, mixed, 2) == 1
    refused(lambda: steps_back(AT_5, mixed, 3), "no version 3 steps back of the active one, 5: 2 are older", "versions")
    refused(lambda: steps_back(AT_5, mixed, 0), "0 steps", "1 or more", UsageError)


def test_the_version_before_a_time_is_clean_and_before_the_active_one() -> None:
    assert before(AT_5, FIVE, 41) == 4
    assert before(AT_5, FIVE, 10_000) == 4
    assert before(AT_5, FIVE, 40) == 2
    refused(
        lambda: before(AT_5, FIVE, 10),
        "no version before 1970-01-01 00:00:00+00:00 of the active one, 5: 0 are older",
        "versions",
    )


def test_a_release_follows_the_newest_clean_version() -> None:
    put_back = [*FIVE, revert(7, of=2), known(8), known(9, None)]
    assert taints_of(LEFT, put_back) == {4: 4, 5: 4, 6: 4}
    freed = release(LEFT, put_back)
    assert (freed.active, freed.held, freed.canary) == (ref(8), False, None)
    assert release(rollback(AT_5, FIVE, 5), FIVE).active == ref(6)


def test_a_release_where_nothing_newer_is_bad_stays_and_follows() -> None:
    held = rollback(replace(AT_5, active=ref(6)), FIVE, 6)
    assert release(held, FIVE).held is False
    assert release(held, [*FIVE, known(7, None)]).active == ref(6)
    refused(lambda: release(held, [*FIVE, known(7, "rejected")]), "after 6: version 7 is tainted", "rewind")
    refused(lambda: release(Pointer(), []), "after none: none is newer", "rewind")
    many = [*FIVE, *(known(version, "rejected") for version in range(7, 14))]
    refused(lambda: release(held, many), "versions 7, 8, 9, 10, 11, ... are tainted", "rewind")


def test_a_revert_to_a_tainted_version_is_tainted() -> None:
    assert taints_of(LEFT, [*FIVE, revert(7, of=5), known(8)]) == {4: 4, 5: 4, 6: 4, 7: 4, 8: 4}
    assert 7 not in taints_of(LEFT, [*FIVE, revert(7, of=1)])
    assert taints_of(Pointer(), [known(1), revert(2, of=1, outcome="rejected"), known(3)]) == {2: 2, 3: 2}


def test_a_trial_needs_another_version_and_a_share() -> None:
    tried = promote(AT_5, FIVE, 6, share=0.1)
    assert (tried.active, tried.canary) == (ref(5), Canary(version=ref(6), share=0.1))
    assert promote(tried, FIVE, 6).canary is None
    refused(lambda: promote(AT_5, FIVE, 5, share=0.1), "it is the active one", "beside another")
    refused(lambda: promote(Pointer(), FIVE, 5, share=0.1), "no version is active", "beside another")
    for share in (0.0, 1.0, -1.0, float("nan")):
        refused(partial(promote, AT_5, FIVE, 6, share=share), "a share of", "0.1", UsageError)


def test_a_version_in_shadow_answers_nobody_and_so_may_be_tainted_and_leaves_no_taint() -> None:
    tried = promote(AT_5, FIVE, 6, share=1.0, shadow=True)
    assert (tried.active, tried.canary) == (ref(5), Canary(version=ref(6), share=1.0, shadow=True))
    assert tried.needed["shadow"] == ref(6)
    refused(lambda: publish(tried, [*FIVE, known(7)], 7, 3), "in shadow of 100% of the requests", "promote")
    ended = promote(tried, FIVE, 5)
    assert (ended.active, ended.canary) == (ref(5), None)
    assert rollback(tried, FIVE, 5).taints == ()
    assert rollback(tried, FIVE, 4).taints == (5,)
    bad = [*FIVE, known(7, "rejected")]
    assert promote(AT_5, bad, 7, share=0.5, shadow=True).accepted == ()
    refused(lambda: promote(AT_5, bad, 7, share=0.5), "it is tainted", "accept")
    refused(lambda: promote(AT_5, FIVE, 6, share=1.5, shadow=True), "a share of 1.5", "0.1", UsageError)


def test_a_canary_is_written_as_before_there_were_shadows_and_read_both_ways() -> None:
    tried = promote(AT_5, FIVE, 6, share=0.25)
    assert b"shadow" not in encode_record(tried)
    shadowed = promote(AT_5, FIVE, 6, share=0.25, shadow=True)
    for pointer in (tried, shadowed):
        found = decode_record(encode_record(pointer), Pointer, "a record")
        assert found.canary == pointer.canary


def test_an_older_version_is_not_promoted_where_newer_ones_would_be_followed_at_once() -> None:
    refused(lambda: promote(AT_5, FIVE, 2), "older than the active one, 5", "rollback MODEL --to 2")
    assert promote(replace(AT_5, held=True), FIVE, 2).active == ref(2)


def test_a_promotion_by_hand_keeps_the_hold() -> None:
    assert promote(replace(AT_5, held=True), FIVE, 6).held


def test_what_stays_is_tainted_though_what_it_began_with_is_gone() -> None:
    story = [known(1), known(2, "rejected"), known(3), revert(4, of=3), revert(5, of=1), known(6, None)]
    raised = raise_floor(Pointer(active=ref(4)), story, 3)
    assert (raised.floor, raised.taints, taints_of(raised, story[2:])) == (3, (3,), {3: 3, 4: 3})
    raised = raise_floor(Pointer(active=ref(4), accepted=(2,)), story, 3)
    assert taints_of(raised, story[2:]) == {}
    raised = raise_floor(Pointer(active=ref(5)), story, 4)
    assert taints_of(raised, story[3:]) == {4: 4}
    refused(lambda: publish(raised, story[3:], 6, 3), "the judge said nothing yet", "wait")


def test_a_rollback_taints_what_was_published_after_the_history_was_read() -> None:
    published = replace(AT_5, seq=10, active=ref(7), previous=ref(5))
    held = rollback(published, FIVE, 6)
    assert (held.active, held.taints) == (ref(6), (7,))
    tried = replace(AT_5, canary=Canary(version=ref(7), share=0.1))
    assert rollback(tried, FIVE[:-1], 5).taints == (7,)


def test_a_floor_forgets_no_taint_of_a_version_it_does_not_know() -> None:
    left = replace(AT_5, taints=(2, 7), accepted=(1, 8))
    raised = raise_floor(left, FIVE, 4)
    assert (7 in raised.taints, raised.accepted) == (True, (8,))


def test_a_floor_is_raised_in_a_long_history_without_comparing_all_with_all() -> None:
    long = [known(version) for version in range(1, 20_001)]
    begin_s = process_time()
    assert raise_floor(AT_5, long, 4).floor == 4
    assert process_time() - begin_s < 10  # all with all takes minutes


def test_what_is_below_the_floor_and_not_removed_yet_changes_nothing_of_what_stays() -> None:
    # 4 was rejected, 5 accepted all the same; both are below the floor, and 7 has the content of 5.
    story = [known(1), known(4, "rejected"), known(5), known(6), revert(7, 5), known(8)]
    pointer = replace(AT_5, accepted=(5,), active=ref(7), previous=ref(6))
    assert taints_of(pointer, story) == {4: 4}
    raised = raise_floor(pointer, story, 6)
    for still_there in (0, 1, 2, 3):
        assert [one for one in taints_of(raised, story[still_there:]) if one >= 6] == []
    # The other way round: a taint that began below the floor stays a taint.
    bad = replace(AT_5, active=ref(6), previous=ref(6))
    raised = raise_floor(bad, story, 6)
    for still_there in (0, 1, 2, 3):
        assert [one for one in taints_of(raised, story[still_there:]) if one >= 6] == [6, 7, 8]


class Oracle:
    """What DESIGN says of taints, over a history that forgets nothing."""

    def __init__(self) -> None:
        self.versions: dict[int, Known] = {}
        self.gone: set[int] = set()
        self.taints: set[int] = set()
        self.accepted: set[int] = set()

    def is_tainted(self, version: int) -> bool:
        one = self.versions[version]
        if version in self.accepted:
            return False
        if version in self.taints or one.outcome == "rejected":
            return True
        if one.content_of is not None:
            return self.is_tainted(one.content_of.version)
        older = [other for other in self.versions if other < version]
        return self.is_tainted(max(older)) if older else False

    @property
    def there(self) -> list[int]:
        return sorted(set(self.versions) - self.gone)

    @property
    def history(self) -> list[Known]:
        return [self.versions[version] for version in self.there]

    def is_fit(self, version: int) -> bool:
        """Whether it may be followed without anybody saying so."""
        judged = self.versions[version].outcome == "passed" or version in self.accepted
        return version in self.there and judged and not self.is_tainted(version)


_PICK = st.integers(0, 9)


class Machine(RuleBasedStateMachine):
    """Operators, publishers of several runs, a judge and retention, in any order."""

    @initialize()
    def begin(self) -> None:
        self.oracle, self.pointer, self.run = Oracle(), Pointer(), 1
        self.train(["passed"] * 4)
        self.follow(1, 0)

    def pick(self, at: int) -> int:
        """A version that is there, or at times one that is not."""
        there = self.oracle.there
        return there[-1 - at] if at < len(there) else at

    def moved(self, is_allowed: bool, call: Callable[[], Pointer], kind: type[StreamlearnError] = MoveRefused) -> bool:
        """Make a decision that is to be refused or not; gives whether it was made."""
        if not is_allowed:
            with pytest.raises(kind):
                call()
            return False
        now = call()
        assert now.seq == self.pointer.seq + 1
        assert now.floor >= self.pointer.floor
        assert now.run >= self.pointer.run
        self.pointer = now
        return True

    @property
    def active(self) -> int:
        return 0 if self.pointer.active is None else self.pointer.active.version

    def is_reachable(self, version: int) -> bool:
        return version in self.oracle.there and version >= self.pointer.floor

    @rule(outcomes=st.lists(st.sampled_from(["passed", "passed", "passed", "rejected", None]), min_size=1, max_size=3))
    def train(self, outcomes: list[Any]) -> None:
        for outcome in outcomes:
            version = max(self.oracle.versions, default=0) + 1 + len(outcomes) % 2
            self.oracle.versions[version] = known(version, outcome)

    @rule(at=_PICK, outcome=st.sampled_from(["passed", "passed", None]))
    def put_back(self, at: int, outcome: Any) -> None:
        if self.pick(at) in self.oracle.there:
            version = max(self.oracle.versions) + 1
            self.oracle.versions[version] = revert(version, self.pick(at), outcome)

    @rule(at=st.integers(0, 4), is_good=st.sampled_from([True, True, True, False]))
    def judge(self, at: int, is_good: bool) -> None:
        version = self.pick(at)
        if version in self.oracle.there and self.oracle.versions[version].outcome is None:
            said: Any = "passed" if is_good else "rejected"
            self.oracle.versions[version] = replace(self.oracle.versions[version], outcome=said)

    @rule()
    def take_over(self) -> None:
        self.run += 1

    @rule(at=st.integers(0, 3), older=st.sampled_from([0, 0, 0, 1]))
    def follow(self, at: int, older: int) -> None:
        version, run, oracle, pointer = self.pick(at), self.run - older, self.oracle, self.pointer
        if run < pointer.run:
            self.moved(False, lambda: publish(pointer, oracle.history, version, run), RunOver)
            return
        is_newer = pointer.active is None or version > self.active or run > pointer.run
        free = not pointer.held and pointer.canary is None
        is_fit = self.is_reachable(version) and oracle.is_fit(version)
        if self.moved(is_newer and free and is_fit, lambda: publish(pointer, oracle.history, version, run)):
            assert (self.active, self.pointer.run, self.pointer.held) == (version, run, False)

    @rule(at=_PICK, accept=st.booleans(), share=st.sampled_from([None, None, 0.5]))
    def serve(self, at: int, accept: bool, share: float | None) -> None:
        version, oracle, pointer = self.pick(at), self.oracle, self.pointer
        is_allowed = self.is_reachable(version) and (accept or not oracle.is_tainted(version))
        is_kept = version >= self.active or pointer.held
        is_allowed = is_allowed and (is_kept if share is None else self.active not in (0, version))
        if self.moved(is_allowed, lambda: promote(pointer, oracle.history, version, accept=accept, share=share)):
            if accept:
                oracle.accepted.add(version)
            tried = None if self.pointer.canary is None else self.pointer.canary.version.version
            assert self.pointer.held == pointer.held
            assert (self.active, tried) == ((version, None) if share is None else (self.pointer_at(pointer), version))
            assert not oracle.is_tainted(version)

    def pointer_at(self, pointer: Pointer) -> int:
        return 0 if pointer.active is None else pointer.active.version

    def go_back(self, to: int) -> None:
        oracle, pointer = self.oracle, self.pointer
        is_allowed = self.is_reachable(to) and 0 < to <= self.active and not oracle.is_tainted(to)
        if self.moved(is_allowed, lambda: rollback(pointer, oracle.history, to)):
            left = [version for version in oracle.there if version > to]
            if left and (to < self.pointer_at(pointer) or pointer.canary is not None):
                oracle.taints.add(left[0])
                oracle.accepted = {version for version in oracle.accepted if version < left[0]}
                assert all(oracle.is_tainted(version) or _is_put_back(oracle, version, left[0]) for version in left)
            assert (self.active, self.pointer.held, self.pointer.canary) == (to, True, None)

    @rule(at=_PICK)
    def roll_back(self, at: int) -> None:
        self.go_back(self.pick(at))

    @rule(steps=st.integers(1, 4), wall_ms=st.integers(0, 400), by_time=st.booleans())
    def roll_back_by(self, steps: int, wall_ms: int, by_time: bool) -> None:
        oracle = self.oracle
        older = [one for one in oracle.there if self.pointer.floor <= one < self.active and oracle.is_fit(one)]
        if by_time:
            older, steps = [one for one in older if one * 10 < wall_ms], 1
        if len(older) < steps:
            with pytest.raises(MoveRefused):
                self.found(steps, wall_ms, by_time)
            return
        assert self.found(steps, wall_ms, by_time) == older[-steps]
        self.go_back(older[-steps])

    def found(self, steps: int, wall_ms: int, by_time: bool) -> int:
        if by_time:
            return before(self.pointer, self.oracle.history, wall_ms)
        return steps_back(self.pointer, self.oracle.history, steps)

    @rule()
    def follow_again(self) -> None:
        oracle, pointer = self.oracle, self.pointer
        fit = [one for one in oracle.there if one >= pointer.floor and oracle.is_fit(one)]
        newest = fit[-1] if fit else -1
        last = oracle.there[-1]
        is_stuck = newest == self.active and last > self.active and oracle.is_tainted(last)
        if self.moved(newest >= self.active and not is_stuck, lambda: release(pointer, oracle.history)):
            assert (self.active, self.pointer.held, self.pointer.canary) == (newest, False, None)

    @rule(by=st.integers(-1, 6))
    def let_go(self, by: int) -> None:
        oracle, pointer = self.oracle, self.pointer
        floor = max(0, pointer.floor + by)
        goes = {one for one in oracle.there if one < floor}
        needed = {one.version for one in pointer.needed.values()}
        is_allowed = floor >= pointer.floor and not needed & goes and oracle.there[-1] not in goes
        if self.moved(is_allowed, lambda: raise_floor(pointer, oracle.history, floor)):
            oracle.gone |= goes
            assert (self.pointer.active, self.pointer.held) == (pointer.active, pointer.held)

    @invariant()
    def what_is_tainted_is_as_the_oracle_says(self) -> None:
        found = taints_of(self.pointer, self.oracle.history)
        assert {one for one in self.oracle.there if self.oracle.is_tainted(one)} == set(found)
        assert all(began <= version or began in found for version, began in found.items())
        numbers = (*self.pointer.taints, *self.pointer.accepted)
        assert set(numbers) <= set(self.oracle.there)

    @invariant()
    def what_is_served_can_be_read(self) -> None:
        assert {one.version for one in self.pointer.needed.values()} <= set(self.oracle.there)


def _is_put_back(oracle: Oracle, version: int, left: int) -> bool:
    """Whether a version after a rollback has the content of one that was not left."""
    line = [one for one in oracle.versions if left <= one <= version and oracle.versions[one].content_of is not None]
    return any(not oracle.is_tainted(one) for one in line)


TestMachine = Machine.TestCase
TestMachine.settings = hypothesis_settings(
    max_examples=examples(80), stateful_step_count=50, deadline=None, derandomize=True, database=None
)
