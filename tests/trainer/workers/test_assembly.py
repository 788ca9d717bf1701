"""An assembly: who is admitted to a group, what they are told, and who belongs to it afterwards."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from streamlearn.errors import ConfigError, GroupLost, TrainingFailed, UsageError
from streamlearn.settings.workers import WorkersSettings
from streamlearn.testing import ManualClock
from streamlearn.trainer.workers.assembly import Assembly, held_address
from streamlearn.trainer.workers.leader_link import LeaderLink
from streamlearn.trainer.workers.messages import Ask, Group, Idle, Leave, Setup
from streamlearn.trainer.workers.worker_door import WorkerDoor
from tests.trainer.stream import learnable_folder

_OWN, _FIRST, _SECOND = "127.0.0.1:7401", "127.0.0.1:7402", "127.0.0.1:7403"


def ask(worker: str, address: str = "", settings: str = "s") -> Ask:
    return Ask(worker, f"host:{worker}", Setup(settings, "CPU"), 1, address=address)


def assembly() -> Assembly:
    made = Assembly(Setup("s", "CPU"), _OWN, WorkersSettings(slices=6, members=3))
    made.connected = lambda: {"a", "b", "c"}
    return made


def told(of: Assembly, asks: Ask) -> Any:
    answer = of.answer(asks, always=True)
    assert answer is not None
    return answer[0]


def test_all_are_told_the_addresses_of_all_once_all_are_there() -> None:
    under_test = assembly()
    assert under_test.answer(ask("a", _FIRST)) is None
    assert told(under_test, ask("a", _FIRST)) == Idle(0, 0, 0)
    assert [state.name for state in under_test.members().workers] == ["leader", "host:a"]
    members = Group([_OWN, _FIRST, _SECOND])
    assert told(under_test, ask("b", _SECOND)) == members
    assert told(under_test, ask("a", _FIRST)) == members
    under_test.wait(threading.Event())
    assert told(under_test, ask("c", "127.0.0.1:7404")) == members, "it sees that it is none of them, and waits"
    assert told(under_test, ask("a")) == Idle(0, 0, 0), "it was faster than the trainer"


def test_one_of_an_earlier_group_is_told_that_it_is_over() -> None:
    assert told(assembly(), ask("a")) == Group([])


def test_those_that_are_gone_before_all_are_there_are_no_members() -> None:
    under_test = assembly()
    under_test.answer(ask("a", _FIRST))
    under_test.connected = set
    under_test.answer(ask("b", _SECOND))
    assert not under_test.addresses
    under_test.connected = lambda: {"b", "c"}
    assert told(under_test, ask("c", _FIRST)) == Group([_OWN, _SECOND, _FIRST])
    waiting = assembly()
    waiting.answer(ask("a", _FIRST))
    waiting.leave(Leave("a"))
    assert len(waiting.members().workers) == 1


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (ask("a", _FIRST, "other"), "another release"),
        (structs.replace(ask("a", _FIRST), setup=Setup("s", "GPU")), "devices"),
        (ask("a", "10.0.0.9:7402"), "would listen at 10.0.0.9:7402, and the trainer at 127.0.0.1:7401"),
        (ask("a", "127.0.0.999:7402"), "not an address"),
        (ask("a", "127.0.0.1:99999"), "not an address"),
    ],
)
def test_one_that_does_not_fit_is_refused(wrong: Ask, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        assembly().answer(wrong)


def test_a_trainer_that_is_told_to_stop_waits_no_longer() -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(TrainingFailed, match="1 of 3 members"):
        assembly().wait(stop)


def test_an_address_is_on_the_way_to_the_trainer_and_by_ipv4(tmp_path: Path) -> None:
    folder = learnable_folder(tmp_path, {"workers": {"slices": 2}})
    for way in ("unix:/somewhere", "127.0.0.1:7302", "localhost:7302"):
        with held_address(folder, way) as address:
            assert address.startswith("127.0.0.1:")
    with pytest.raises(ConfigError, match="cannot be reached"), held_address(folder, "[2001:db8::1]:7302"):
        pass


def test_workers_reach_an_assembly_as_they_reach_a_leader(tmp_path: Path) -> None:
    where = f"unix:{tmp_path}/leader.sock"
    folder = learnable_folder(tmp_path, {"workers": {"slices": 6, "listen": [where]}})
    under_test = Assembly(Setup("s", "CPU"), _OWN, WorkersSettings(slices=6, members=3))
    with WorkerDoor(under_test, folder), LeaderLink(folder, where) as first, LeaderLink(folder, where) as second:
        first.setup = second.setup = Setup("s", "CPU")
        assert first.assemble(_FIRST) == []
        assert len(first.who(60.0).workers) == 2
        with pytest.raises(GroupLost, match="another group"):
            second.ask(1, 0)  # it comes from an earlier one
        assert second.assemble(_SECOND) == [_OWN, _FIRST, _SECOND] == first.assemble(_FIRST)


def group(clock: ManualClock) -> Assembly:
    """A group of three whose sums only note that they are lost."""
    sums: Any = SimpleNamespace(lost="")

    def lose(reason: str) -> GroupLost:
        sums.lost = reason
        return GroupLost(reason, help="")

    sums.lose = lose
    made = Assembly(Setup("s", "CPU"), _OWN, WorkersSettings(slices=6, members=3), clock)
    made.connected = lambda: {"a", "b"}
    for worker, address in (("a", _FIRST), ("b", _SECOND)):
        made.answer(ask(worker, address))
    made.wait(threading.Event())
    made.sums = sums
    return made


def test_the_members_of_a_group_have_their_own_slices_and_others_are_turned_away() -> None:
    under_test = group(ManualClock())
    assert under_test.shares("leader") == {"leader": range(2), "a": range(2, 4), "b": range(4, 6)}
    assert under_test.turn_away(ask("a")) is None
    assert under_test.turn_away(ask("a", _FIRST)) == Group([_OWN, _FIRST, _SECOND]), "the answer was lost"
    assert under_test.turn_away(ask("c")) == Group([_OWN, _FIRST, _SECOND])


def test_a_group_without_a_member_is_lost_once_all_were_there_or_had_the_time() -> None:
    clock = ManualClock()
    late, left, gone = group(clock), group(clock), group(clock)
    for one in (late, left, gone):
        one.check({"leader", "a"})
    left.leave(Leave("c"))
    left.check({"leader", "a"})
    left.leave(Leave("b"))
    gone.check({"leader", "a", "b"})
    for one in (left, gone):
        with pytest.raises(GroupLost, match="gone are: host:b"):
            one.check({"leader", "a"})
        assert one.turn_away(ask("a")) == Group([])
    clock.sleep(121.0)
    with pytest.raises(GroupLost, match="gone are: host:b"):
        late.check({"leader", "a"})
