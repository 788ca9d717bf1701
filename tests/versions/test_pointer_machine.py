"""Decisions about the pointer by random operators, publishers and judges, against an oracle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec.structs import replace

from streamlearn.errors import MoveRefused, RunOver, StreamlearnError
from streamlearn.versions import Known, Pointer
from streamlearn.versions.pointer.moves import (
    before,
    promote,
    publish,
    raise_floor,
    release,
    rollback,
    steps_back,
    taints_of,
)
from tests.campaign import examples
from tests.versions.test_pointer import known, revert


class Oracle:
    """What DESIGN says of taints, over a history that forgets nothing."""

    def __init__(self) -> None:
        self.versions: dict[int, Known] = {}
        self.gone: set[int] = set()
        self.taints: set[int] = set()
        self.accepted: set[int] = set()
        self.served: set[int] = set()
        # Served versions that a rollback left and nobody accepted since.
        self.left: set[int] = set()

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
        assert now is self.pointer or now.seq == self.pointer.seq + 1
        assert now.floor >= self.pointer.floor
        assert now.run >= self.pointer.run
        self.pointer = now
        self.oracle.served |= {ref.version for name, ref in now.needed.items() if name != "previous"}
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
                oracle.left = {left for left in oracle.left if oracle.is_tainted(left)}
            tried = None if self.pointer.canary is None else self.pointer.canary.version.version
            assert self.pointer.held == pointer.held
            assert (self.active, tried) == ((version, None) if share is None else (self.pointer_at(pointer), version))
            assert not oracle.is_tainted(version)

    def pointer_at(self, pointer: Pointer) -> int:
        return 0 if pointer.active is None else pointer.active.version

    def answering(self, pointer: Pointer) -> list[int]:
        return [ref.version for name, ref in pointer.needed.items() if name != "previous"]

    def go_back(self, to: int) -> None:
        oracle, pointer = self.oracle, self.pointer
        is_allowed = self.is_reachable(to) and 0 < to <= self.active and not oracle.is_tainted(to)
        if self.moved(is_allowed, lambda: rollback(pointer, oracle.history, to)):
            newer = [version for version in oracle.there if version > to]
            was_left = any(version > to and not oracle.is_tainted(version) for version in oracle.served)
            if was_left or any(version > to for version in self.answering(pointer)):
                oracle.taints |= {newer[0], *(one for one in newer if oracle.versions[one].content_of is not None)}
                oracle.accepted = {version for version in oracle.accepted if version <= to}
                oracle.left |= {version for version in oracle.served if version > to}
                assert all(oracle.is_tainted(version) for version in newer)
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
            follows = (pointer.active_version, pointer.held, pointer.canary) == (newest, False, None)
            assert (self.pointer is pointer) == follows

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
    def what_was_served_and_left_stays_tainted_until_somebody_accepts_it(self) -> None:
        tainted = taints_of(self.pointer, self.oracle.history)
        assert self.oracle.left - self.oracle.gone <= set(tainted)
        assert self.active not in self.oracle.left

    @invariant()
    def what_is_served_can_be_read(self) -> None:
        assert {one.version for one in self.pointer.needed.values()} <= set(self.oracle.there)


TestMachine = Machine.TestCase
TestMachine.settings = hypothesis_settings(
    max_examples=examples(80), stateful_step_count=50, derandomize=True, database=None
)
