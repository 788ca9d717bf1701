"""Numbered logs, runs and moves of the pointer under contention, in stores of every kind."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from typing import Any

import fsspec
import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec import structs

from streamlearn.errors import FileMissing, FileTaken, MoveRefused, RunOver, StoreUnreachable, UsageError, VersionDefect
from streamlearn.testing import ManualClock
from streamlearn.versions import Pointer, PointerLog, Store, open_store
from streamlearn.versions.pointer.fence import Fence, FenceRecord
from streamlearn.versions.store.interface import Stored
from streamlearn.versions.store.sequence import Sequence
from tests.versions.nodes import SpiedStore
from tests.versions.racers import fences, moves, race, ref
from tests.versions.server import options

Opened = Callable[..., Store]
FOLDER = "ctr/pointer"


def shared(request: pytest.FixtureRequest, opened: Opened) -> dict[str, Any] | None:
    """What another process opens the same store with; None for a store of this process."""
    kind, url = request.node.callspec.params["opened"], opened().url
    if kind == "memory":
        return None
    return {"store": url} | ({"options": options(request.getfixturevalue("s3_address"))} if kind == "s3" else {})


def raced(
    request: pytest.FixtureRequest, opened: Opened, calls: list[dict[str, Any]], here: Callable[..., list[int]]
) -> list[list[int]]:
    """Let processes and threads make calls at the same time."""
    place = shared(request, opened)
    with ThreadPoolExecutor(8) as pool:
        there = pool.submit(race, [call | place for call in calls[:2]]) if place is not None else None
        mine = [
            pool.submit(here, opened(), **{name: value for name, value in call.items() if name != "what"})
            for call in calls[2 if place is not None else 0 :]
        ]
        return [*(there.result(120) if there is not None else []), *(one.result(120) for one in mine)]


def test_runs_that_are_taken_at_once_have_numbers_of_their_own(request: pytest.FixtureRequest, opened: Opened) -> None:
    opened().create("ctr/deltas/000000000003-00000007/manifest.json", b"{}")
    opened().create("ctr/bases/000000000003-00000041/manifest.json", b"{}")
    calls = [{"what": "fences", "model": "ctr", "count": 3} for _ in range(4)]
    taken = raced(request, opened, calls, fences)
    numbers = [run for mine in taken for run in mine]
    assert sorted(numbers) == list(range(42, 54))
    assert all(mine == sorted(mine) for mine in taken)
    assert Fence(opened(), "ctr").newest() == 53
    assert Fence(opened(), "other").take("x") == 1


def test_moves_that_are_made_at_once_are_made_one_after_the_other(
    request: pytest.FixtureRequest, opened: Opened
) -> None:
    calls = [{"what": "moves", "model": "ctr", "by": f"racer {number}", "count": 4} for number in range(4)]
    made = raced(request, opened, calls, moves)
    assert sorted(seq for mine in made for seq in mine) == list(range(1, 17))
    log = PointerLog(opened(), "ctr")
    # Each was decided from the one before it: none was lost, and none was made twice.
    found = [log.read(seq) for seq in log.seqs()]
    assert [(one.seq, one.active) for one in found] == [(seq, ref(seq)) for seq in range(1, 17)]
    assert [one.floor for one in found] == list(range(16))
    assert log.newest().active == ref(16)


def test_a_run_that_is_over_is_told_by_whom(store: Store) -> None:
    fence = Fence(store, "ctr", clock=ManualClock(5))
    assert [fence.take("a"), Fence(store, "ctr").take("b" * 300)] == [1, 2]
    fence.check(2)
    with pytest.raises(RunOver, match=r"run 1 of 'ctr' is over: run 2 .b{200}. has taken over"):
        fence.check(1)
    fence.check(3)


def test_a_run_is_above_what_is_written_though_its_record_is_gone(local: Store) -> None:
    fence = Fence(local, "ctr")
    assert fence.take("a") == 1
    local.create("ctr/deltas/000000000001-00000009/rows-of-one-that-never-was-committed", b"")
    assert Fence(local, "ctr").take("b") == 10
    with pytest.raises(RunOver, match="run 10"):
        fence.check(1)
    assert fence.take("c") == 11


def test_a_log_of_others_is_followed_however_far_they_are(opened: Opened) -> None:
    log, other = Sequence(opened(), FOLDER, Pointer), Sequence(opened(), FOLDER, Pointer)
    assert log.newest() is None
    seen = 0
    for count in (1, 2, 15, 16, 17, 3):
        for number in range(seen + 1, seen + count + 1):
            other.append(number, Pointer(seq=number))
        found = log.newest(seen)
        assert found == (seen + count, Pointer(seq=seen + count))
        seen += count
        assert log.newest(seen) is None
    assert log.numbers() == list(range(1, seen + 1))


def test_a_number_is_written_once_and_by_whom_may_write_it_again(opened: Opened) -> None:
    log = Sequence(opened(), FOLDER, Pointer)
    log.append(1, Pointer(seq=1))
    log.append(1, Pointer(seq=1))  # as when the answer was lost
    with pytest.raises(FileTaken):
        log.append(1, Pointer(seq=1, by="another"))
    with pytest.raises(FileMissing):
        log.read(2)


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "other", "deep", "no text"])
def test_an_older_move_is_never_taken_for_a_damaged_one(tmp_path: Any, damage: str) -> None:
    store = open_store(str(tmp_path))
    log = PointerLog(store, "ctr")
    for version in (1, 2):
        log.move(lambda now, version=version: Pointer(active=ref(version)), by="ada")  # type: ignore[misc]
    file = tmp_path / "ctr" / "pointer" / f"{2:012d}.json"
    data = file.read_bytes()
    at = data.index(b'"held":false')
    damaged = {
        "cut": data[:-1],
        "flip": data[:at] + b'"held":true ' + data[at + 12 :],
        "empty": b"",
        "other": b'{"format":9}',
        "deep": b'{"format":1,"x":' + b"[" * 400_000,
        "no text": data[:at] + b'"\xff":false' + data[at + 12 :],
    }
    file.unlink()
    file.write_bytes(damaged[damage])
    for call in (PointerLog(store, "ctr").newest, lambda: PointerLog(store, "ctr").move(copy, by="ada")):
        with pytest.raises(VersionDefect, match=r"000000000002\.json"):
            call()
    assert len(log.seqs()) == 2


def damage(folder: Any, seq: int) -> None:
    file = folder / "ctr" / "pointer" / f"{seq:012d}.json"
    data = file.read_bytes()
    file.unlink()
    file.write_bytes(data[:-1])


def test_a_damaged_move_is_mended_from_a_copy_of_it_alone(tmp_path: Any) -> None:
    store = open_store(str(tmp_path))
    log = PointerLog(store, "ctr")
    first, second = (log.move(lambda now, at=at: Pointer(active=ref(at)), by="ada") for at in (1, 2))  # type: ignore[misc]
    with pytest.raises(UsageError, match="the record of move 2 is intact"):
        log.mend(second)
    damage(tmp_path, 2)
    with pytest.raises(VersionDefect) as caught:
        PointerLog(store, "ctr").newest()
    assert "verify --mend-pointer" in caught.value.help
    with pytest.raises(UsageError, match="of move 1, but the newest in the store is 2"):
        log.mend(first)
    mended = log.mend(second)
    assert mended == structs.replace(second, seq=3)
    with pytest.raises(UsageError, match="the record of move 3 is intact"):
        log.mend(first)


class Failing(SpiedStore):
    """A store that fails when a file is created, before or after it is there."""

    fails: str = ""

    def create(self, path: str, data: bytes) -> Stored:
        fails, self.fails = self.fails, ""
        stored = None if fails == "before" else super().create(path, data)
        if fails or stored is None:
            message = "the disk is full"
            raise StoreUnreachable(message)
        return stored


@pytest.mark.parametrize("fails", ["before", "after"])
def test_a_repair_that_fails_loses_no_move_and_may_be_tried_again(tmp_path: Any, fails: str) -> None:
    store = Failing(open_store(str(tmp_path)))
    log = PointerLog(store, "ctr")
    _, second = (log.move(lambda now, at=at: Pointer(active=ref(at)), by="ada") for at in (1, 2))  # type: ignore[misc]
    damage(tmp_path, 2)
    store.fails = fails
    with pytest.raises(StoreUnreachable):
        log.mend(second)
    assert PointerLog(store, "ctr").seqs() == ([1, 2] if fails == "before" else [1, 2, 3])
    mended = log.mend(second)
    assert mended == structs.replace(second, seq=3) == log.mend(mended) == log.mend(second)
    assert PointerLog(store, "ctr").seqs() == [1, 2, 3]


def test_a_damaged_move_has_no_effect_once_it_is_not_the_newest(tmp_path: Any) -> None:
    store = open_store(str(tmp_path))
    log, first, second = (PointerLog(store, "ctr") for _ in range(3))
    for at in (1, 2):
        log.move(lambda now, at=at: Pointer(active=ref(at)), by="ada")  # type: ignore[misc]
        (first if at == 1 else second).newest()
    copy = log.read(2)
    damage(tmp_path, 2)
    mended = log.mend(copy)
    fresh, near = PointerLog(store, "ctr"), PointerLog(store, "ctr")
    near.begin_near(2)
    assert all(each.newest() == mended for each in (fresh, near, first, second, log))
    moved = first.move(structs.replace, by="bob")
    assert (moved.seq, second.newest(), fresh.forget(4), log.newest()) == (4, moved, 3, moved)


def test_a_move_that_is_overtaken_again_and_again_is_refused(local: Store) -> None:
    log, other, decided = PointerLog(local, "ctr"), PointerLog(local, "ctr"), []

    def decide(now: Pointer) -> Pointer:
        decided.append(now.seq)
        return other.move(copy, by="another")

    with pytest.raises(MoveRefused, match="others moved the pointer 20 times"):
        log.move(decide, by="ada")
    assert decided == list(range(20))


def test_a_decision_that_is_refused_writes_nothing(local: Store) -> None:
    def refuse(now: Pointer) -> Pointer:
        message = f"not from {now.seq}"
        raise MoveRefused(message)

    with pytest.raises(MoveRefused, match="not from 0"):
        PointerLog(local, "ctr").move(refuse, by="ada")
    assert PointerLog(local, "ctr").seqs() == []


def test_a_move_says_who_when_and_why_within_bounds(local: Store) -> None:
    log = PointerLog(local, "ctr", clock=ManualClock(7))
    made = log.move(copy, by="a" * 900, reason="ü" * 9_000)
    assert (made.by, made.reason, made.wall_ms) == ("a" * 200, "ü" * 2_000, 7)
    assert PointerLog(local, "ctr").newest() == made == log.read(1)


class Machine(RuleBasedStateMachine):
    """Two who move one pointer, one who forgets old records, against a list."""

    def __init__(self) -> None:
        super().__init__()
        fsspec.filesystem("memory").store.clear()
        store = open_store(f"memory://{uuid.uuid4().hex}")
        self.logs = [PointerLog(store, "ctr"), PointerLog(store, "ctr")]
        self.moves: dict[int, Pointer] = {}
        self.last = 0

    @rule(who=st.integers(0, 1), count=st.integers(1, 20))
    def move(self, who: int, count: int) -> None:
        for _ in range(count):
            made = self.logs[who].move(lambda now: Pointer(active=ref(now.seq + 1)), by=str(who))
            assert made.active == ref(self.last + 1)
            self.last += 1
            self.moves[self.last] = made

    @rule(who=st.integers(0, 1))
    def look(self, who: int) -> None:
        assert self.logs[who].newest() == self.moves.get(self.last, Pointer())

    @rule(who=st.integers(0, 1), kept=st.integers(0, 30))
    def forget(self, who: int, kept: int) -> None:
        old = [seq for seq in self.moves if seq < self.last - kept and seq != self.last]
        assert self.logs[who].forget(self.last - kept) == len(old)
        for seq in old:
            del self.moves[seq]

    @invariant()
    def what_is_left_is_the_end_of_the_log(self) -> None:
        assert self.logs[0].seqs() == sorted(self.moves)
        assert all(self.logs[1].read(seq) == self.moves[seq] for seq in sorted(self.moves)[-3:])


TestMachine = Machine.TestCase
TestMachine.settings = hypothesis_settings(max_examples=30, stateful_step_count=20, derandomize=True, database=None)


def test_a_record_of_a_run_says_when_it_began(local: Store) -> None:
    Fence(local, "ctr", clock=ManualClock(9)).take("host:1")
    found = Sequence(local, "ctr/runs", FenceRecord).newest()
    assert found == (1, FenceRecord(run=1, by="host:1", wall_ms=9))
