"""What is wrong with versions is refused by name and healed from the last base; what was answered with stays."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from prometheus_client import REGISTRY

from streamlearn.clock import SYSTEM_CLOCK
from streamlearn.table import TableSet
from streamlearn.versions import Chain, Committed, Store, compact, load
from streamlearn.versions.replica.memory_room import free_bytes, lack_of_memory
from tests.versions.history import MODEL, OPTIONS, Trainer
from tests.versions.nodes import FAST, World


@pytest.fixture
def world(local: Store) -> World:
    found = World(local)
    found.cut(1, 2)
    found.serve(2)
    return found


def root(world: World) -> Path:
    return Path(world.store.url.removeprefix("file://"))


def folder(world: World, version: int, run: int = 1) -> Path:
    return root(world) / MODEL / "deltas" / f"{version:012d}-{run:08d}"


def rows_file(world: World, version: int) -> Path:
    found = next(folder(world, version).glob("rows/main*.arrow"))
    found.chmod(0o644)
    return found


def flip(world: World) -> None:
    file = rows_file(world, 3)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def truncate(world: World) -> None:
    file = rows_file(world, 3)
    file.write_bytes(file.read_bytes()[:-64])


def lose(world: World) -> None:
    rows_file(world, 3).unlink()


def lose_manifest(world: World) -> None:
    (folder(world, 3) / "manifest.json").unlink()


def exchange(world: World) -> None:
    (folder(world, 3)).rename(folder(world, 9))
    (folder(world, 4)).rename(folder(world, 3))
    (folder(world, 9)).rename(folder(world, 4))


def foreign(world: World) -> None:
    """The folder of another history's version 3 in the place of this one's."""
    other = World(type(world.store)(*_like(world)), registry=None)
    other.trainer.learn(77, 50)
    other.cut(1, 2, 3)
    shutil.rmtree(folder(world, 3))
    shutil.copytree(folder(other, 3), folder(world, 3))


def _like(world: World) -> tuple[Any, ...]:
    from streamlearn.settings.versions import VersionSettings
    from streamlearn.versions.store.url import parse_store_url

    return parse_store_url(str(root(world)) + "-other"), VersionSettings()


DAMAGES = {
    flip: "corrupted", truncate: "truncated", lose: "missing_file", lose_manifest: "gap", exchange: "reordered",
    foreign: "foreign",
}  # fmt: skip


def count_of(defect: str) -> float:
    return REGISTRY.get_sample_value("streamlearn_serving_defects_total", {"defect": defect}) or 0.0


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_delta_is_refused_by_name_and_the_old_version_answers(world: World, damage: Any) -> None:
    node = world.node()
    node.step()
    world.cut(3, 4)
    kept = root(world).parent / "kept"
    shutil.copytree(folder(world, 3).parent, kept)
    damage(world)
    before = count_of(DAMAGES[damage])
    world.serve(4)
    node.step()
    world.check(node, 2)
    assert f"({DAMAGES[damage]})" in node.status().error
    assert count_of(DAMAGES[damage]) > before
    assert node.status().seq < node.status().heard_seq
    # It is tried again after a while, and not with every round.
    before = count_of(DAMAGES[damage])
    node.step()
    assert count_of(DAMAGES[damage]) == before
    shutil.rmtree(folder(world, 3).parent)
    shutil.copytree(kept, folder(world, 3).parent)
    world.clock.sleep(60)
    node.step()
    world.check(node, 4)
    assert node.status().error == ""
    world.check_all(node)


def damage_base(world: World) -> None:
    """The base that stands for version 3, of which the delta is there too."""
    compact(world.store, MODEL, 3)
    file = next((root(world) / MODEL / "bases").glob(f"{3:012d}-*/rows/main*.arrow"))
    file.chmod(0o644)
    file.write_bytes(file.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("damage", "answers"),
    [*((damage, 2) for damage in DAMAGES if damage not in (exchange, foreign)), (damage_base, 4)],
    ids=lambda one: getattr(one, "__name__", str(one)),
)
def test_a_node_that_starts_answers_with_the_version_before_a_damaged_one(
    world: World, damage: Any, answers: int
) -> None:
    world.cut(3, 4)
    world.serve(4)
    kept = root(world).parent / "kept"
    shutil.copytree(folder(world, 3).parent, kept)
    damage(world)
    node = world.node()
    node.step()
    node.step()
    world.check(node, answers)
    world.check_all(node)
    assert node.status().state == "ready"
    if answers == 4:
        assert node.status().error == ""
        return
    # It has not acted on the move, and says what is in the way.
    assert (node.status().seq, node.status().heard_seq) == (0, 2)
    assert f"({DAMAGES[damage]})" in node.status().error
    # A rollback is acted on as ever, and so is the version once it is mended.
    world.serve(1, held=True)
    node.step()
    world.check(node, 1)
    world.serve(4, held=False)
    shutil.rmtree(folder(world, 3).parent)
    shutil.copytree(kept, folder(world, 3).parent)
    world.clock.sleep(60)
    node.step()
    world.check(node, 4)
    assert (node.status().seq, node.status().error) == (4, "")


def test_a_started_node_is_ready_with_the_version_before_a_damaged_one(world: World) -> None:
    world.cut(3)
    flip(world)
    world.serve(3)
    with world.node(clock=SYSTEM_CLOCK, **FAST) as node:
        node.wait_ready(240)
        world.check(node, 2)


def test_a_node_that_starts_answers_with_no_tainted_version_in_the_place_of_a_damaged_one(world: World) -> None:
    world.cut(3)
    flip(world)
    # Version 2 was rejected; 1 is served in the place of 3, which somebody accepted.
    world.serve(3, taints=(2,), accepted=(3,))
    node = world.node()
    node.step()
    node.step()
    world.check(node, 1)
    assert node.status().state == "ready"


def test_a_node_that_starts_without_a_whole_version_goes_on_starting(world: World) -> None:
    world.cut(3)
    flip(world)
    world.serve(3, taints=(1,), accepted=(3,))
    node = world.node()
    for _ in range(2):
        node.step()
    assert node.status().state == "starting"
    assert node.status().active is None


@pytest.mark.parametrize("damage", [flip, truncate, lose, lose_manifest], ids=lambda damage: damage.__name__)
def test_a_base_after_a_damaged_delta_heals_it(world: World, damage: Any) -> None:
    node = world.node()
    node.step()
    world.cut(3, 4)
    assert world.trainer.last is not None
    world.trainer.base(world.trainer.last)
    damage(world)
    world.serve(4)
    node.step()
    world.check(node, 4)
    world.cut(5)
    world.serve(5)
    node.step()
    world.check(node, 5)
    world.check_all(node)


def test_a_damaged_version_ahead_disturbs_nothing(world: World) -> None:
    node = world.node()
    world.cut(3)
    flip(world)
    node.step()
    world.check(node, 2)
    assert node.status().state == "ready"
    assert "(corrupted)" in node.status().error


def test_a_newer_run_that_took_over_before_a_staged_version_is_followed(world: World) -> None:
    world.cut(3)
    node = world.node()
    node.step()
    assert [ref.version for ref in node.status().staged] == [1, 2, 3]
    newer = Trainer(world.store, run=2, last=parent_of(world))
    load(Chain.find(world.store, MODEL, 2), newer.tables, training=True)
    old = world.refs[3]
    world.trainer = newer
    newer.learn(55, 100)
    ref = world.note(newer.cut(3))
    assert ref != old
    # Before it is promoted it is there already, in tables of its own.
    node.step()
    assert old not in node.status().staged
    assert ref in node.status().staged
    world.check(node, 2)
    world.serve(3)
    node.step()
    world.check(node, 3)
    world.check_all(node)


def test_a_version_that_answers_and_is_not_of_the_history_any_more_answers_until_the_pointer_moves(
    world: World,
) -> None:
    world.cut(3)
    world.serve(3)
    node = world.node()
    node.step()
    old = world.refs[3]
    newer = Trainer(world.store, run=2, last=parent_of(world))
    load(Chain.find(world.store, MODEL, 2), newer.tables, training=True)
    world.trainer = newer
    newer.learn(55, 100)
    world.note(newer.cut(3))
    world.cut(4)
    node.step()
    assert node.status().active == old
    world.check(node, 3)
    world.serve(4)
    node.step()
    world.check(node, 4)
    world.serve(3)
    node.step()
    assert node.status().active == world.refs[3] != old
    world.check(node, 3)


def parent_of(world: World) -> Committed:
    """Version 2, which both runs follow."""
    return Chain.find(world.store, MODEL, 2).head


def test_without_memory_for_two_copies_a_node_drains_before_it_builds(world: World) -> None:
    registry = world.registry
    assert registry is not None
    node = world.node(versions_kept=1, memory_bytes_max=1, drain_s=5)
    node.step()
    world.cut(3, 4, 5)
    world.serve(5)
    node.step()
    pointer = world.serve(1, held=True)
    node.step()
    assert node.status().state == "draining"
    assert "memory_bytes_max is 1" in node.status().error
    world.check(node, 5)  # it answers until those who ask have been told
    with node.reading() as read:
        world.clock.sleep(5)
        node.step()
        assert read.version == 5
        assert registry.nodes()[0].state == "draining"
        assert node.status().active == world.refs[5]
        with pytest.raises(Exception, match="no version to answer with"), node.reading():
            pass
    node.step()
    world.check(node, 1)
    assert (node.status().state, node.status().error, node.status().seq) == ("ready", "", pointer.seq)
    assert [ack.version for ack in registry.acks(pointer.seq)] == [1]


def test_a_node_that_drains_goes_on_when_the_pointer_comes_back(world: World) -> None:
    node = world.node(versions_kept=1, memory_bytes_max=1, drain_s=5)
    node.step()
    world.cut(3, 4, 5)
    world.serve(5)
    node.step()
    world.serve(1, held=True)
    node.step()
    assert node.status().state == "draining"
    world.serve(5, held=False)
    node.step()
    assert node.status().state == "ready"
    world.check(node, 5)


def test_a_node_gives_nothing_up_for_a_version_that_cannot_be_read(world: World) -> None:
    world.cut(3)
    node = world.node(versions_kept=1, memory_bytes_max=1, drain_s=0)
    node.step()
    world.cut(4, 5)
    world.serve(5)
    node.step()
    flip(world)
    world.serve(3, held=True)
    node.step()
    assert node.status().state != "draining"
    assert "(corrupted)" in node.status().error
    world.check(node, 5)


def test_a_node_names_a_deep_pointer_record_and_keeps_its_version(world: World) -> None:
    node = world.node()
    node.step()
    record = max((root(world) / MODEL / "pointer").iterdir())
    deep = record.with_name(f"{int(record.stem) + 1:012d}.json")
    deep.write_bytes(b'{"format":1,"x":' + b"[" * 400_000)
    node.step()
    assert "(corrupted)" in node.status().error
    assert deep.name in node.status().error
    world.check(node, 2)


def test_room_counts_both_copies_and_what_is_free(tmp_path: Path) -> None:
    assert lack_of_memory(10, 10, None, 0) == ""
    assert lack_of_memory(10, 10, 12, 0) == ""
    assert "would take 10 bytes, but 11 are free" in lack_of_memory(10, 10, 11, 0)
    assert lack_of_memory(10, 10, 100, 20) == ""
    assert "memory_bytes_max is 19" in lack_of_memory(10, 10, 100, 19)
    assert free_bytes(tmp_path) is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9 kB\nMemAvailable:       7 kB\n")
    assert free_bytes(tmp_path) == 7 << 10
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("max\n")
    assert free_bytes(tmp_path) == 7 << 10
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("5000\n")
    (tmp_path / "sys/fs/cgroup/memory.current").write_text("4000\n")
    assert free_bytes(tmp_path) == 1_000


def test_full_tables_refuse_a_version_and_keep_the_old_one(world: World) -> None:
    small = [structs.replace(one, optimizer=None, rows_max=1_000) for one in OPTIONS]
    node = world.node(make=lambda: TableSet(small))
    node.step()
    keys = np.arange(150_000, dtype=np.uint64)
    world.trainer.tables = TableSet([structs.replace(one, rows_max=300_000) for one in OPTIONS])
    load(Chain.find(world.store, MODEL), world.trainer.tables, training=True)
    world.trainer.tables["main"].push(keys, np.ones((len(keys), 4), np.float32), now_ms=0)
    world.note(world.trainer.cut(3))
    world.serve(3)
    node.step()
    world.check(node, 2)
    assert "rows" in node.status().error
