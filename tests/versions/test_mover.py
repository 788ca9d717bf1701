"""Moves that operators make: who is waited for, who is named, and what is told though the registry goes away."""

from __future__ import annotations

import uuid
from copy import copy
from typing import Any

import pytest
from msgspec import structs

from streamlearn.clock import SYSTEM_CLOCK
from streamlearn.errors import RegistryUnreachable
from streamlearn.publisher.teller import Teller
from streamlearn.testing import ManualClock, MemoryRegistry
from streamlearn.versions import History, Mover, Node, Pointer, PointerLog, Store, open_store
from streamlearn.versions.pointer.announcer import Announcer
from streamlearn.versions.pointer.registry import Ack
from tests.versions.history import MODEL, Trainer
from tests.versions.racers import ref

WAIT_S = 0.05
# For nodes that act: the wait ends when they have, however slow the machine is.
ENOUGH_S = 240.0


@pytest.fixture
def store() -> Store:
    return open_store(f"memory://{uuid.uuid4().hex}")


@pytest.fixture
def registry() -> MemoryRegistry:
    return _Waiting(ManualClock())


def node(boot_id: str, state: Any = "ready", seq: int = 0, active: int = 0) -> Node:
    return Node(boot_id=boot_id, name=f"node-{boot_id}", state=state, seq=seq, active=active)


def ack(boot_id: str, seq: int) -> Ack:
    return Ack(boot_id=boot_id, name=f"node-{boot_id}", seq=seq, version=1, took_ms=1.0)


def move(store: Store, registry: MemoryRegistry | None, wait_s: float = WAIT_S) -> Any:
    clock = registry.clock if isinstance(registry, _Waiting) else SYSTEM_CLOCK
    mover = Mover(PointerLog(store, MODEL), registry, clock=clock)
    return mover.move(lambda now: Pointer(active=ref(1)), by="ada", what="rollback", reason="bad", wait_s=wait_s)


def test_nodes_that_answer_are_waited_for_and_those_that_do_not_act_are_named(
    store: Store, registry: MemoryRegistry
) -> None:
    for one in (node("a"), node("b", "stale"), node("c", "draining"), node("d", "starting")):
        registry.beat(one)
    registry.ack(ack("a", 1))
    moved = move(store, registry)
    assert [one.node for one in moved.acted] == ["node-a"]
    # One that drains goes on answering for a while, with the version that was left.
    assert [one.name for one in moved.silent] == ["node-b", "node-c"]
    assert not moved.is_whole


class _Overtaken(MemoryRegistry):
    """A registry while somebody else moves the pointer on, to version 7, and a node goes by that move."""

    def __init__(self, store: Store) -> None:
        super().__init__(MODEL)
        self._log = PointerLog(store, MODEL)

    def wait_acks(self, seq: int, count: int, timeout_s: float) -> list[Ack]:
        if self._log.newest().seq == seq:
            self._log.move(lambda now: Pointer(active=ref(7)), by="bob")
        self.beat(node("a", seq=seq + 1, active=7))
        return super().wait_acks(seq, count, timeout_s)


def test_a_node_that_has_acted_on_a_later_move_has_acted(store: Store) -> None:
    registry = _Overtaken(store)
    registry.beat(node("a", active=5))
    moved = move(store, registry, ENOUGH_S)
    assert moved.is_whole
    assert [(one.node, one.version) for one in moved.acted] == [("node-a", 7)]


@pytest.mark.parametrize("said", [node("a", seq=2, active=1), node("a", seq=1, active=7), node("a", seq=0, active=1)])
def test_a_node_that_serves_another_version_or_by_no_move_of_the_store_has_not_acted(
    store: Store, registry: MemoryRegistry, said: Node
) -> None:
    registry.beat(said)
    # Of an earlier move of that number, from before the store was put back.
    registry.ack(Ack(boot_id="a", name="node-a", seq=1, version=7, took_ms=1.0))
    moved = move(store, registry)
    assert moved.acted == ()
    assert [(one.name, one.active) for one in moved.silent] == [("node-a", said.active)]
    assert not moved.is_whole


def test_a_registry_that_knows_no_node_says_so_after_a_beat(store: Store) -> None:
    clock = ManualClock()
    registry = _Waiting(clock)
    moved = Mover(PointerLog(store, MODEL), registry, clock=clock).move(
        lambda now: Pointer(active=ref(1)), by="ada", what="rollback", wait_s=10
    )
    assert (moved.said, moved.silent, moved.is_whole) == ("the registry knows of no nodes", (), False)
    assert registry.waited_s == pytest.approx(registry.settings.node_ttl_s / 3)
    asked = Mover(PointerLog(store, MODEL), registry, clock=clock).move(copy, by="ada", what="gc")
    assert (asked.said, asked.is_whole) == ("", True)


class _Waiting(MemoryRegistry):
    """A registry in which time passes by waiting alone, and nodes say that they are there at some time."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(MODEL, clock=clock)
        self.clock, self.waited_s = clock, 0.0
        self.beats: dict[float, Node] = {}

    def wait_acks(self, seq: int, count: int, timeout_s: float) -> list[Ack]:
        self.clock.sleep(timeout_s)
        self.waited_s += timeout_s
        for at_s in [at_s for at_s in self.beats if at_s <= self.waited_s]:
            self.beat(self.beats.pop(at_s))
        return self.acks(seq)


def test_nodes_of_an_emptied_registry_have_a_beat_to_say_that_they_are_there(store: Store) -> None:
    clock = ManualClock()
    registry, log = _Waiting(clock), PointerLog(store, MODEL)
    log.move(lambda now: Pointer(active=ref(1)), by="ada")
    # One is there again already, and has acted; one comes with its next beat; one begins later.
    registry.beat(node("a", seq=2, active=2))
    registry.beats = {2.0: node("b", seq=1, active=1), 8.0: node("c", seq=1, active=1)}
    moved = Mover(log, registry, clock=clock).move(
        lambda now: Pointer(active=ref(2)), by="ada", what="rollback", wait_s=10
    )
    assert [one.node for one in moved.acted] == ["node-a"]
    assert [one.name for one in moved.silent] == ["node-b"]


def test_a_registry_with_a_move_the_store_does_not_have_is_told_the_move_all_the_same(store: Store) -> None:
    clock = ManualClock()
    registry, log = _Waiting(clock), PointerLog(store, MODEL)
    registry.announce(Pointer(seq=10**9, active=ref(9)))
    registry.ack(ack("a", 1))
    registry.beats = {1.0: node("a", seq=10**9, active=9)}
    moved = Mover(log, registry, clock=clock).move(
        lambda now: Pointer(active=ref(1)), by="ada", what="rollback", wait_s=10
    )
    assert registry.pointer() == moved.pointer
    assert (moved.acted, [one.name for one in moved.silent]) == ((), ["node-a"])


def test_a_node_in_whose_place_another_is_is_not_waited_for(store: Store, registry: MemoryRegistry) -> None:
    dead = Node(boot_id="a", name="node-1", state="ready", wall_ms=10_000, since_ms=1_000)
    successor = Node(boot_id="b", name="node-1", state="ready", wall_ms=17_000, since_ms=14_000)
    for one in (dead, successor):
        registry.beat(one)
    registry.ack(ack("b", 1))
    moved = move(store, registry, ENOUGH_S)
    assert moved.is_whole
    assert [one.boot_id for one in moved.acted] == ["b"]


@pytest.mark.parametrize(
    "other",
    [
        Node(boot_id="b", name="node-1", wall_ms=14_500, since_ms=14_000),  # heard of lately, as the first was
        Node(boot_id="b", name="node-1", wall_ms=17_000, since_ms=9_000),  # both were alive at once
        Node(boot_id="b", name="node-1", wall_ms=17_000),
        Node(boot_id="b", name="node-2", wall_ms=17_000, since_ms=14_000),
    ],
)
def test_a_node_that_may_be_alive_is_waited_for(store: Store, registry: MemoryRegistry, other: Node) -> None:
    registry.beat(Node(boot_id="a", name="node-1", state="ready", wall_ms=10_000, since_ms=1_000))
    registry.beat(other)
    assert "a" in [one.boot_id for one in move(store, registry).silent]


class _Restarted(MemoryRegistry):
    """A registry where another process takes a node's place while it is waited for."""

    def wait_acks(self, seq: int, count: int, timeout_s: float) -> list[Ack]:
        self.beat(Node(boot_id="b", name="node-1", wall_ms=17_000, since_ms=14_000))
        return self.acks(seq)


def test_a_node_is_waited_for_until_another_is_in_its_place(store: Store) -> None:
    registry = _Restarted(MODEL)
    registry.beat(Node(boot_id="a", name="node-1", state="ready", wall_ms=10_000, since_ms=1_000))
    moved = move(store, registry, ENOUGH_S)
    assert moved.is_whole
    assert moved.acted == ()


class _Leaving(MemoryRegistry):
    """A registry that goes away while nodes are waited for."""

    def wait_acks(self, seq: int, count: int, timeout_s: float) -> list[Ack]:
        if self.acks(seq) and count == 1:
            return self.acks(seq)
        message = "it is away"
        raise RegistryUnreachable(message, help="start it")


def test_what_nodes_have_said_stays_said_when_the_registry_goes_away(store: Store) -> None:
    registry = _Leaving(MODEL)
    for one in "ab":
        registry.beat(node(one))
    registry.ack(ack("a", 1))
    moved = move(store, registry, ENOUGH_S)
    assert [one.node for one in moved.acted] == ["node-a"]
    assert [one.name for one in moved.silent] == ["node-b"]
    assert moved.said == "it is away"
    assert [note.what for note in registry.notes(9)] == ["rollback"]


def test_a_node_that_fell_silent_while_it_started_is_not_named(store: Store) -> None:
    clock = ManualClock()
    registry = _Waiting(clock)
    registry.beat(node("a", "starting"))
    clock.sleep(registry.settings.node_ttl_s)
    assert move(store, registry).silent == ()


def test_nodes_without_heartbeat_are_named_and_not_waited_for(store: Store) -> None:
    """A node that stands still may go on answering with the version that was left."""
    clock = ManualClock()
    registry = _Waiting(clock)
    registry.beat(node("a", active=3))
    clock.sleep(registry.settings.node_ttl_s)
    moved = move(store, registry)
    assert [one.name for one in moved.silent] == ["node-a"]
    assert (moved.is_whole, moved.said) == (False, "")
    # A process of that name that was there before has not replaced it; a later one has.
    registry.beat(structs.replace(node("b", seq=2, active=1), name="node-a"))
    registry.ack(ack("b", 2))
    assert [one.boot_id for one in move(store, registry).silent] == ["a"]
    registry.beat(structs.replace(node("b", seq=3, active=1), name="node-a", since_ms=1))
    registry.ack(ack("b", 3))
    assert move(store, registry).silent == ()


def test_a_move_without_a_registry_waits_for_nobody(store: Store) -> None:
    moved = move(store, None)
    assert (moved.acted, moved.silent, moved.said) == ((), (), "")
    assert PointerLog(store, MODEL).newest() == moved.pointer


def test_a_registry_that_was_made_anew_between_two_moves_is_told_of_all_versions(
    store: Store, registry: MemoryRegistry
) -> None:
    one, two = Trainer(store).story([1, 2])
    log, announcer = PointerLog(store, MODEL), Announcer(store, registry)
    assert announcer.moved(log.move(lambda now: Pointer(active=one.ref), by="me"), "promote")
    registry.clear()
    assert announcer.moved(log.move(lambda now: Pointer(active=two.ref), by="me"), "promote")
    assert registry.versions() == list(History(store, MODEL).read())


def test_nothing_is_told_again_while_a_registry_has_all(store: Store, registry: MemoryRegistry) -> None:
    clock = ManualClock()
    teller = Teller(registry, store, clock)
    teller.tell((), None)
    clock.sleep(registry.settings.reach_s)
    assert not teller.is_due
    registry.is_away = True
    teller.tell((), None)
    assert not teller.is_due
    clock.sleep(registry.settings.reach_s)
    assert teller.is_due


def test_who_moves_the_pointer_and_why_are_one_line_each(store: Store) -> None:
    log = PointerLog(store, MODEL)
    said = "ann\nthe pointer follows, moved by bob\x1b[2K\u202e\ud800"
    moved = log.move(copy, by=said, reason="a\r\nb")
    assert (moved.by, moved.reason) == ("ann the pointer follows, moved by bob [2K  ", "a  b")
    assert log.newest() == moved
