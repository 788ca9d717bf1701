"""A node registers before it reads the pointer, reads it again before it is ready, and lives through what is away."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from streamlearn.clock import SYSTEM_CLOCK
from streamlearn.errors import StoreUnreachable
from streamlearn.testing import MemoryRegistry, wait_until
from streamlearn.versions import Node, Store
from tests.versions.history import MODEL
from tests.versions.nodes import FAST, Reader, SpiedStore, World


@pytest.fixture
def world(local: Store) -> World:
    return World(local)


class _Noted(MemoryRegistry):
    """A registry that notes in which order it and the store are used."""

    def __init__(self) -> None:
        super().__init__(MODEL)
        self.order: list[str] = []

    def beat(self, node: Node) -> None:
        self.order.append(f"beat {node.state}")
        super().beat(node)


def test_a_node_registers_before_it_reads_the_pointer_and_reads_it_again_before_it_is_ready(local: Store) -> None:
    registry = _Noted()
    world = World(local, registry=registry)
    world.cut(1, 2)
    world.serve(1)
    store = SpiedStore(local)
    store.on_list = lambda path: registry.order.append("pointer") if "/pointer" in path else None
    store.on_read = lambda path: registry.order.append("stage") if path.endswith(".arrow") else None
    node = world.node(store=store)
    node.step()
    order = [one for at, one in enumerate(registry.order) if not at or registry.order[at - 1] != one]
    assert order == ["beat starting", "pointer", "stage", "pointer", "beat ready"]


def test_a_pointer_that_moves_while_a_node_starts_is_acted_on_before_it_is_ready(world: World) -> None:
    registry = world.registry
    assert registry is not None
    world.cut(1, 2)
    world.serve(1)
    store = SpiedStore(world.store)

    def moved(path: str) -> None:
        if path.endswith(".arrow") and world.log.newest().seq == 1:
            registry.is_away = True  # nobody tells it
            world.serve(2)
            registry.is_away = False

    store.on_read = moved
    node = world.node(store=store)
    node.step()
    node.step()
    world.check(node, 2)
    # It never said that it was ready with what had been left already.
    assert registry.acks(2)
    assert node.status().state == "ready"


def test_redis_away_disturbs_no_reading_and_hides_no_rollback(world: World) -> None:
    registry = world.registry
    assert registry is not None
    world.cut(1, 2, 3)
    world.serve(2)
    node = world.node(clock=SYSTEM_CLOCK, **FAST)
    with node:
        node.wait_ready(240)
        reader = Reader(world, node)
        reader.start()
        reader.saw(2)
        registry.is_away = True
        pointer = world.serve(1, held=True, taints=(2,))
        wait_until(lambda: node.status().seq == pointer.seq, "the rollback without a registry")
        assert "does not answer" in node.status().error
        world.check(node, 1)
        reader.saw(1)
        newer = world.serve(3, held=False, taints=())
        wait_until(lambda: node.status().seq == newer.seq, "the next move")
        registry.is_away = False
        wait_until(lambda: registry.nodes() and registry.nodes()[0].active == 3, "the node to register again")
        # What was acted on meanwhile is acknowledged once somebody listens.
        wait_until(lambda: registry.acks(newer.seq), "the ack")
        reader.saw(3)
        assert [ref.version for ref in reader.stop()] == [2, 1, 3]
        wait_until(lambda: not node.status().error, "nothing to be wrong any more")
    assert registry.nodes() == []


def test_a_node_starts_without_the_registry_and_registers_when_it_is_back(world: World) -> None:
    registry = world.registry
    assert registry is not None
    world.cut(1)
    world.serve(1)
    registry.is_away = True
    node = world.node()
    node.step()
    world.check(node, 1)
    registry.is_away = False
    assert registry.nodes() == []
    node.step()
    assert [(one.boot_id, one.state) for one in registry.nodes()] == [(node.boot_id, "ready")]
    registry.is_away = True
    node.close()
    registry.is_away = False
    assert len(registry.nodes()) == 1  # until it is forgotten


def test_a_store_that_is_away_disturbs_no_reading_and_is_followed_when_it_is_back(world: World) -> None:
    registry = world.registry
    assert registry is not None
    world.cut(1, 2)
    world.serve(1)
    store = SpiedStore(world.store)
    node = world.node(store=store)
    node.step()

    def away(path: str) -> None:
        message = f"{path}: no answer"
        raise StoreUnreachable(message)

    world.cut(3)
    world.serve(2)
    store.on_read = store.on_list = away
    node.step()
    world.check(node, 2)  # the registry told it, and the version was there
    world.serve(3)
    node.step()
    world.check(node, 2)
    assert "no answer" in node.status().error
    store.on_read = store.on_list = lambda path: None
    world.clock.sleep(60)
    node.step()
    world.check(node, 3)
    assert node.status().error == ""


def test_a_store_that_hangs_keeps_no_node_from_hearing_a_rollback(world: World) -> None:
    world.cut(1, 2)
    world.serve(2)
    store, gate, hung = SpiedStore(world.store), threading.Event(), threading.Event()
    with world.node(store=store, clock=SYSTEM_CLOCK, **FAST) as node:
        node.wait_ready(240)

        def hangs(path: str) -> None:
            hung.set()
            assert gate.wait(240)

        store.on_read = store.on_list = hangs
        assert hung.wait(240)
        pointer = world.serve(1, held=True, taints=(2,))
        wait_until(lambda: node.status().seq == pointer.seq, "the rollback")
        assert not gate.is_set()
        world.check(node, 1)
        store.on_read = store.on_list = lambda path: None
        gate.set()


def test_every_start_is_another_boot(world: World) -> None:
    assert world.node().boot_id != world.node().boot_id


def damage(world: World, seq: int) -> bytes:
    """Damage the record of a move; gives what it was."""
    record = Path(world.store.url.removeprefix("file://")) / MODEL / "pointer" / f"{seq:012d}.json"
    said = record.read_bytes()
    record.chmod(0o644)
    record.write_bytes(said.replace(b'"active"', b'"activf"'))
    return said


def test_a_node_starts_from_the_copy_of_a_damaged_newest_move_and_from_no_other(world: World) -> None:
    assert world.registry is not None
    world.cut(1, 2)
    older, newest = world.serve(2), world.serve(1, held=True, taints=(2,))
    damage(world, 2)
    node = world.node()
    node.step()
    world.check(node, 1)
    status = node.status()
    assert (status.state, status.seq) == ("ready", 2)
    assert "the pointer cannot be read" in status.error
    # Once it is mended, all is well.
    world.registry.announce(world.log.mend(newest))
    node.step()
    assert (node.status().seq, node.status().error) == (3, "")
    damage(world, 3)
    for copy in (newest, older):
        world.registry.clear()
        world.registry.announce(copy)
        other = world.node()
        other.step()
        assert other.status().state == "starting"


def test_a_damaged_pointer_moves_nothing_and_is_named(world: World) -> None:
    world.cut(1, 2)
    world.serve(1)
    node = world.node(registry=None)
    node.step()
    world.serve(2)
    folder = Path(world.store.url.removeprefix("file://")) / MODEL / "pointer"
    record = folder / f"{2:012d}.json"
    said = damage(world, 2)
    node.step()
    world.check(node, 1)
    assert "the pointer cannot be read" in node.status().error
    record.write_bytes(said)
    node.step()
    world.check(node, 2)


def test_a_program_error_ends_no_thread_and_is_named(world: World) -> None:
    registry = world.registry
    assert registry is not None
    world.cut(1)
    world.serve(1)
    failures = iter([TypeError("a bug")])
    store = SpiedStore(world.store)

    def failing(path: str) -> None:
        for error in failures:
            raise error

    store.on_read = failing
    with world.node(store=store, clock=SYSTEM_CLOCK, **FAST) as node:
        node.wait_ready(240)
        world.check(node, 1)


def test_nodes_killed_at_any_read_of_what_they_stage_leave_nothing_that_stands_in_the_way(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.versions.replica_crashes", str(tmp_path / "store")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    ends = [int(one) for one in done.stdout.split()]
    # It was killed at each of its reads, and the last one found nothing left to die at.
    assert ends[-1] == 0
    assert set(ends[:-1]) == {signal.SIGKILL}
    assert len(ends) > 8
