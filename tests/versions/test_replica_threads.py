"""Readers never see a torn or wrong version while a node moves, goes back, stages or builds its tables anew."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from streamlearn.clock import SYSTEM_CLOCK
from streamlearn.errors import NodeNotReady
from streamlearn.testing import wait_until
from streamlearn.versions import Replica, Store, VersionRef
from streamlearn.versions.pointer.moves import Canary
from tests.versions.nodes import FAST, Reader, SpiedHooks, SpiedStore, World


@pytest.fixture
def world(local: Store) -> World:
    return World(local, clock=SYSTEM_CLOCK)  # type: ignore[arg-type]


def acted(world: World, node: Replica, seq: int) -> None:
    wait_until(lambda: node.status().seq == seq, f"move {seq}: {node.status()}")


def many_files(world: World, version: int) -> None:
    """A version of many files."""
    keys = np.arange(9_000, dtype=np.uint64) + np.uint64(version)
    gradients = np.random.default_rng(version).standard_normal((len(keys), 4), np.float32)
    world.trainer.tables["main"].push(keys, gradients, now_ms=version)
    world.note(world.trainer.cut(version))


def test_readers_see_whole_versions_through_activations_rollbacks_and_rebuilds(world: World) -> None:
    world.cut(1)
    world.serve(1)
    with world.node(versions_kept=1, **FAST) as node:
        node.wait_ready(240)
        readers = [Reader(world, node) for _ in range(3)]
        for reader in readers:
            reader.start()
        for version in range(2, 7):
            world.cut(version)
            acted(world, node, world.serve(version).seq)
        acted(world, node, world.serve(5, held=True).seq)  # kept: at once
        acted(world, node, world.serve(2).seq)  # long gone: other tables
        world.check(node, 2)
        acted(world, node, world.serve(6, held=False).seq)
        for reader in readers:
            seen = [ref.version for ref in reader.stop()]
            # Each may have missed some, and saw none twice but those that were gone back to.
            rest = iter([1, 2, 3, 4, 5, 6, 5, 2, 6])
            assert all(version in rest for version in seen), seen


def test_a_node_is_ready_only_when_its_fronts_have_the_version(world: World) -> None:
    hooks, reached, gate = SpiedHooks(), threading.Event(), threading.Event()
    activate = hooks.activate

    def held_up(version: VersionRef, canary: Canary | None) -> None:
        reached.set()
        assert gate.wait(240)
        activate(version, canary)

    hooks.activate = held_up  # type: ignore[method-assign]
    world.cut(1)
    world.serve(1)
    with world.node(hooks=hooks, **FAST) as node:
        assert reached.wait(240)
        assert node._position.is_done
        node._settle()  # as the thread that reads the store does
        assert node.status().state == "starting"
        gate.set()
        node.wait_ready(240)
        assert hooks.told == [("stage", 1), ("activate", 1)]


def test_a_front_that_fails_at_a_version_is_named_and_the_node_is_ready(world: World) -> None:
    hooks = SpiedHooks()

    def fails(version: VersionRef, canary: Canary | None) -> None:
        raise KeyError(version)

    hooks.activate = fails  # type: ignore[method-assign]
    world.cut(1)
    world.serve(1)
    with world.node(hooks=hooks, **FAST) as node:
        node.wait_ready(240)
        assert "version 1 of run 1 answers, with this problem: KeyError: " in node.status().error


def test_a_rollback_during_staging_waits_for_no_file(world: World) -> None:
    world.cut(1, 2)
    world.serve(2)
    store, gate, reached = SpiedStore(world.store), threading.Event(), threading.Event()

    def held_up(path: str) -> None:
        if "/deltas/000000000003-" in path and path.endswith(".arrow"):
            reached.set()
            assert gate.wait(240)

    store.on_read = held_up  # version 3 is not there yet
    with world.node(store=store, **FAST) as node:
        node.wait_ready(240)
        many_files(world, 3)
        world.serve(3)
        assert reached.wait(240)
        acted(world, node, world.serve(1, held=True, taints=(2,)).seq)
        world.check(node, 1)
        assert not gate.is_set()
        gate.set()


def test_a_move_to_a_version_that_must_be_built_ends_the_staging_after_one_file(world: World) -> None:
    world.cut(1, 2, 3, 4)
    world.serve(1)
    store = SpiedStore(world.store)
    with world.node(store=store, versions_kept=1, **FAST) as node:
        node.wait_ready(240)
        acted(world, node, world.serve(4).seq)
        store.reads.clear()
        moved: list[int] = []

        def overtaken(path: str) -> None:
            if "/deltas/000000000005-" in path and path.endswith(".arrow") and not moved:
                moved.append(world.serve(2, held=True, taints=(3,)).seq)
                wait_until(lambda: node.status().heard_seq == moved[0], "the node to hear")

        store.on_read = overtaken
        many_files(world, 5)
        wait_until(lambda: moved, "staging to begin")
        acted(world, node, moved[0])
        world.check(node, 2)
        files = len(world.trainer.last.manifest.of_kind("rows"))  # type: ignore[union-attr]
        read = [path for path in store.reads if "/deltas/000000000005-" in path and path.endswith(".arrow")]
        # The one at which it was heard of, and the one that is fetched meanwhile.
        assert len(read) <= 2 < 4 < files


def test_a_reader_that_stays_holds_old_tables_and_delays_nobody(world: World) -> None:
    world.cut(1, 2, 3, 4)
    world.serve(4)
    with world.node(versions_kept=1, **FAST) as node:
        node.wait_ready(240)
        with node.reading() as read:
            acted(world, node, world.serve(1, held=True).seq)
            world.check(node, 1)
            assert read.tables["main"].lookup(np.array([0], np.uint64), at=read.at).shape == (1, 4)
            assert len(node._stager._leaving) == 1
        wait_until(lambda: not node._stager._leaving, "the old tables to be let go")


def test_closing_ends_staging_between_two_files_and_lets_readers_end(world: World) -> None:
    world.cut(1)
    world.serve(1)
    store, reached = SpiedStore(world.store), threading.Event()
    node = world.node(store=store, **FAST)
    node.start()
    node.wait_ready(240)

    def held_up(path: str) -> None:
        if "/deltas/000000000002-" in path and path.endswith(".arrow"):
            reached.set()
            assert node._ended.wait(240)

    store.on_read = held_up
    many_files(world, 2)
    assert reached.wait(240)
    with node.reading() as read:
        node.close()
        assert not [one for one in threading.enumerate() if one.name.startswith("streamlearn-replica")]
        assert read.version == 1
        read.tables["main"].lookup(np.array([0], np.uint64), at=read.at)
    with pytest.raises(NodeNotReady), node.reading():
        pass


def test_entering_takes_microseconds(world: World) -> None:
    world.cut(1)
    world.serve(1)
    node = world.node()
    node.step()
    count = 2_000
    best_s = min(_entering_s(node, count) for _ in range(5))
    assert best_s / count < 50e-6
    node.close()


def _entering_s(node: Replica, count: int) -> float:
    begin_s = time.perf_counter()
    for _ in range(count):
        with node.reading():
            pass
    return time.perf_counter() - begin_s
