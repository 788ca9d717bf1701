"""A registry that says what the store does not: nodes end where the store says, and no verb calls them followed."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec import structs
from redis import Redis as Client

from streamlearn.clock import SYSTEM_CLOCK
from streamlearn.errors import RegistryDefect, StoreUnreachable
from streamlearn.settings.versions import RegistrySettings
from streamlearn.testing import ManualClock, MemoryRegistry, wait_until
from streamlearn.versions import (
    History,
    Mover,
    Node,
    Pointer,
    PointerLog,
    Registry,
    Replica,
    Store,
    open_registry,
    rebuild_registry,
)
from streamlearn.versions.pointer.announcer import Announcer
from streamlearn.versions.pointer.mover import Moved
from streamlearn.versions.pointer.moves import Canary, rollback
from streamlearn.versions.pointer.registry import Ack
from tests.versions.history import MODEL
from tests.versions.nodes import FAST, SpiedHooks, SpiedStore, World

WAIT_S = 240.0
FORGED = 10**9
SETTINGS = RegistrySettings(node_ttl_s=60, poll_ms=5, reach_s=60)


@dataclass
class Kind:
    """A registry of one kind, and how somebody who does not ask it empties it, or forges the number of its move."""

    url: str
    empty: Callable[[], object]
    forge: Callable[[], object]

    def __call__(self) -> Registry:
        return open_registry(self.url, MODEL, SETTINGS)


@pytest.fixture(params=["sqlite", "redis"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kind]:
    """Opens an empty registry of its own."""
    if request.param == "sqlite":
        file = tmp_path / "registry.db"
        yield Kind(f"sqlite://{file}", lambda: _removed(tmp_path), lambda: _changed(file, f"seq = {FORGED}"))
        return
    url = request.getfixturevalue("own_redis").url
    with Client.from_url(url) as client:
        key = f"streamlearn:{{{MODEL}}}:pointer"
        yield Kind(url, client.flushall, lambda: client.hset(key, "seq", str(FORGED)))


def _removed(folder: Path) -> None:
    for file in folder.glob("registry.db*"):
        file.unlink()


def _changed(file: Path, assignment: str, table: str = "pointers") -> None:
    with closing(sqlite3.connect(file)) as sql, sql:
        sql.execute(f"UPDATE {table} SET {assignment}")


@pytest.fixture
def world(local: Store) -> World:
    """Versions 1 to 3, of which 2 is served and 3 was never promoted."""
    world = World(local, registry=None)
    world.cut(1, 2, 3)
    world.serve(1)
    world.serve(2)
    return world


def forged(world: World, seq: int = FORGED) -> Pointer:
    """A move of nobody: it serves version 3."""
    return structs.replace(world.log.newest(), seq=seq, active=world.refs[3])


@contextmanager
def started(world: World, registry: Registry | None, **said: object) -> Iterator[Replica]:
    """A node that follows in threads of its own, and is ready."""
    with world.node(registry=registry, clock=SYSTEM_CLOCK, **(FAST | said)) as node:
        node.wait_ready(WAIT_S)
        wait_until(lambda: 3 in [ref.version for ref in node.status().staged], "the version ahead")
        yield node


def serves(node: Replica, version: int) -> Callable[[], bool]:
    return lambda: (ref := node.status().active) is not None and ref.version == version


def rolled_back(world: World, registry: Registry, to: int, wait_s: float = WAIT_S) -> Moved:
    """Roll back; time passes by waiting alone, and not while a node that lives is not heard of or has acted."""
    clock, wait_acks = ManualClock(), registry.wait_acks

    def waited(seq: int, count: int, timeout_s: float) -> list[Ack]:
        wait_until(registry.nodes, "the node to say that it is there")
        acks = registry.acks(seq) or wait_acks(seq, count, timeout_s)
        clock.sleep(timeout_s)
        return acks

    mover = Mover(PointerLog(world.store, MODEL), registry, clock=clock)
    known = History(world.store, MODEL).read()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(registry, "wait_acks", waited)
        return mover.move(lambda now: rollback(now, known, to), by="ada", what="rollback", wait_s=wait_s)


def test_a_move_that_somebody_wrote_into_the_registry_is_given_up_at_the_next_look_at_the_store(
    world: World, opened: Kind
) -> None:
    hooks = SpiedHooks()
    with opened() as registry, started(world, registry, hooks=hooks) as node:
        registry.announce(world.log.newest())
        registry.announce(forged(world))
        wait_until(lambda: "is not in the store" in node.status().error, "the node to refute it")
        wait_until(serves(node, 2), "the node to go back")
        assert (node.status().seq, node.status().heard_seq) == (2, 2)
        # What executables and dense weights are of goes back with it.
        assert [told for told in hooks.told if told[0] == "activate"][-1] == ("activate", 2)
        # It stays there, though the registry goes on saying it, and a rollback is followed.
        moved = rolled_back(world, registry, 1)
        assert moved.is_whole, moved
        assert [(one.node, one.version) for one in moved.acted] == [("node-1", 1)]
        wait_until(serves(node, 1), "the rollback")
        assert registry.pointer() == moved.pointer
        wait_until(lambda: not node.status().error, "nothing to be wrong any more")
        world.check(node, 1)


def test_a_store_put_back_from_an_older_copy_is_followed_though_nodes_heard_of_later_moves(
    world: World, opened: Kind
) -> None:
    with opened() as registry, started(world, registry) as node:
        for version in (3, 1, 3):
            registry.announce(world.serve(version))
        wait_until(lambda: node.status().seq == 5, "the newest move")
        # As the older copy has it.
        for seq in (5, 4, 3):
            world.store.remove(f"{MODEL}/pointer/{seq:012d}.json")
        wait_until(lambda: node.status().seq == 2, "the store's newest move")
        assert serves(node, 2)()
        assert "is not in the store" in node.status().error
        moved = rolled_back(world, registry, 1)
        assert (moved.pointer.seq, moved.is_whole) == (3, True), moved
        wait_until(serves(node, 1), "the rollback")
        # The numbers are used again, for other moves.
        assert Announcer(world.store, registry).keep_up()
        for version in (2, 1, 3, 2):
            registry.announce(world.serve(version))
        wait_until(lambda: (node.status().seq, node.status().error) == (7, ""), "numbers above those heard before")
        world.check(node, 2)


def test_a_registry_that_was_emptied_or_put_back_keeps_no_rollback_from_its_nodes(world: World, opened: Kind) -> None:
    with opened() as registry, started(world, registry) as node:
        registry.announce(world.log.newest())
        old = registry.pointer()
        assert old is not None
        registry.announce(world.serve(3))
        wait_until(serves(node, 3), "the newest move")
        opened.empty()
        moved = rolled_back(world, registry, 2)
        assert moved.is_whole, moved
        assert [one.version for one in moved.acted] == [2]
        opened.empty()
        registry.announce(old)
        moved = rolled_back(world, registry, 1)
        assert moved.is_whole, moved
        assert [one.version for one in moved.acted] == [1]


def test_a_node_that_serves_what_no_move_of_the_store_wants_has_not_acted(world: World) -> None:
    registry = MemoryRegistry(MODEL, SETTINGS)
    store = SpiedStore(world.store)
    with started(world, registry, store=store) as node:
        registry.announce(world.log.newest())

        def away(path: str) -> None:
            message = f"{path}: no answer"
            raise StoreUnreachable(message)

        # This node alone cannot look at the store: it stays at what it heard, and goes back to nothing.
        store.on_read = store.on_list = away
        wait_until(lambda: "no answer" in node.status().error, "the store to be away")
        registry.announce(forged(world))
        wait_until(serves(node, 3), "the forged move")
        wait_until(lambda: registry.nodes()[0].seq == FORGED, "its word")
        moved = rolled_back(world, registry, 1, 1.0)
        assert moved.acted == ()
        assert [(one.name, one.active) for one in moved.silent] == [("node-1", 3)]
        store.on_read = store.on_list = lambda path: None
        wait_until(serves(node, 1), "the store's word")


def test_a_store_that_is_away_or_empty_makes_no_node_go_back(world: World) -> None:
    registry = MemoryRegistry(MODEL)
    store = SpiedStore(world.store)
    node = world.node(registry=registry, store=store)
    registry.announce(world.serve(3))
    node.step()
    world.check(node, 3)

    def away(path: str) -> None:
        message = f"{path}: no answer"
        raise StoreUnreachable(message)

    store.on_read = store.on_list = away
    registry.announce(world.serve(1))
    node.step()
    node.step()
    world.check(node, 1)
    store.on_read = store.on_list = lambda path: None
    node.step()
    assert (node.status().seq, node.status().error) == (4, "")
    # A folder that is not mounted looks like a log without moves.
    for seq in (1, 2, 3, 4):
        world.store.remove(f"{MODEL}/pointer/{seq:012d}.json")
    node.step()
    world.check(node, 1)


def test_a_listing_that_is_behind_does_not_refute_a_move_whose_record_is_there(world: World) -> None:
    registry = MemoryRegistry(MODEL)
    store = SpiedStore(world.store)
    node = world.node(registry=registry, store=store)
    node.step()
    # More moves than are looked at by their names before the folder is listed.
    for at in range(40):
        pointer = world.serve(1 + at % 2)
    there = store.inner.entries
    store.inner.entries = lambda folder: [one for one in there(folder) if one.name < f"{9:012d}"]  # type: ignore[method-assign]
    registry.announce(pointer)
    node.step()
    node.step()
    assert (node.status().seq, node.status().heard_seq, node.status().error) == (pointer.seq, pointer.seq, "")


def test_a_node_that_starts_is_not_ready_with_a_move_the_store_does_not_have(world: World) -> None:
    registry = MemoryRegistry(MODEL)
    registry.announce(forged(world))
    node = world.node(registry=registry)
    node.step()
    assert node.status().state == "starting"
    for _ in range(2):
        node.step()
    assert (node.status().state, node.status().seq) == ("ready", 2)
    world.check(node, 2)


def test_a_refuted_move_that_was_acted_on_in_part_leaves_nothing_behind(world: World) -> None:
    registry = MemoryRegistry(MODEL)
    node = world.node(registry=registry)
    node.step()
    node.step()
    world.check(node, 2)
    nowhere = structs.replace(world.refs[3], version=99)
    registry.announce(structs.replace(forged(world), canary=Canary(version=nowhere, share=0.5)))
    with node.reading() as read:
        assert read.version == 2
    for _ in range(3):
        node.step()
    world.check(node, 2)
    assert (node.status().seq, node.status().heard_seq) == (2, 2)


def test_a_folder_that_is_gone_refutes_no_move_that_is_heard_of(world: World) -> None:
    registry = MemoryRegistry(MODEL)
    node = world.node(registry=registry)
    node.step()
    node.step()
    world.check(node, 2)
    moved = structs.replace(world.log.newest(), seq=3, active=world.refs[1])
    for seq in (1, 2):
        world.store.remove(f"{MODEL}/pointer/{seq:012d}.json")
    registry.announce(moved)
    for _ in range(3):
        node.step()
    world.check(node, 1)
    assert "the store shows no move of the pointer" in node.status().error


def test_an_equal_number_with_other_bytes_is_another_move(world: World) -> None:
    node = world.node(registry=None)
    node.step()
    old = world.log.newest()
    world.store.remove(f"{MODEL}/pointer/{old.seq:012d}.json")
    other = PointerLog(world.store, MODEL)
    other.move(lambda now: structs.replace(now, active=world.refs[3]), by="me")
    for _ in range(2):
        node.step()
    assert (node.status().seq, other.newest().seq) == (old.seq, old.seq)
    world.check(node, 3)
    assert world.log.newest() == other.newest()


@pytest.mark.parametrize("heals", ["rebuild", "keep_up", "moved", "mover"])
def test_a_forged_number_beside_an_older_move_does_not_keep_later_moves_away(
    world: World, opened: Kind, heals: str
) -> None:
    with opened() as registry:
        rebuild_registry(world.store, registry)
        opened.forge()
        if heals == "mover":
            assert rolled_back(world, registry, 1, 0.0).said == ""
        else:
            moved = world.serve(1)
            announcer = Announcer(world.store, registry)
            if heals == "rebuild":
                assert rebuild_registry(world.store, registry).pointer
                assert len(registry.versions()) == 3
            else:
                assert announcer.keep_up() if heals == "keep_up" else announcer.moved(moved, "rollback")
        assert registry.pointer() == world.log.newest()
        assert registry.announce(world.serve(2))


def test_a_wait_does_not_end_early_because_of_a_forged_number(world: World, opened: Kind) -> None:
    with opened() as registry:
        registry.announce(world.log.newest())
        opened.forge()
        begin_s = SYSTEM_CLOCK.monotonic_s()
        assert registry.wait(2, 0.1) is None
        assert SYSTEM_CLOCK.monotonic_s() - begin_s >= 0.1


@pytest.mark.parametrize("table", ["pointers", "versions", "nodes", "notes"])
def test_text_that_is_not_utf_8_is_a_defect_that_a_rebuild_repairs(world: World, tmp_path: Path, table: str) -> None:
    file = tmp_path / "registry.db"
    with open_registry(f"sqlite://{file}", MODEL, SETTINGS) as registry:
        rebuild_registry(world.store, registry)
        registry.beat(Node(boot_id="a", name="a"))
        _changed(file, "data = CAST(x'22ff22' AS TEXT)" + " || seq" * (table == "notes"), table)
        reads: dict[str, Callable[[], object]] = {
            "pointers": registry.pointer,
            "versions": registry.versions,
            "nodes": registry.nodes,
            "notes": lambda: registry.notes(9),
        }
        with pytest.raises(RegistryDefect):
            reads[table]()
        rebuild_registry(world.store, registry)
        assert registry.pointer() == world.log.newest()
        assert (len(registry.versions()), len(registry.notes(9)), registry.nodes()) == (3, 2, [])


def test_what_another_program_wrote_in_the_place_of_the_acks_of_a_move_hides_none(redis: str) -> None:
    with open_registry(redis, "wrong-acks", SETTINGS) as registry, Client.from_url(redis) as client:
        client.set("streamlearn:{wrong-acks}:acks:1", "nonsense")
        with pytest.raises(RegistryDefect, match="another kind"):
            registry.acks(1)
        ack = Ack(boot_id="a", name="node-a", seq=2, version=1, took_ms=1.0)
        registry.ack(ack)  # it read the store before it heard of the move
        for seq in (1, 2):
            assert registry.announce(Pointer(seq=seq))
        assert (registry.acks(1), registry.acks(2)) == ([], [ack])
