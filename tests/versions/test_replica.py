"""A node answers with what the pointer says, stages ahead of it, keeps what may be gone back to, and says how it is."""

from __future__ import annotations

import pytest
from msgspec import structs
from prometheus_client import REGISTRY

from streamlearn.errors import NodeNotReady, StreamlearnError, VersionRefused
from streamlearn.table import RowType
from streamlearn.testing import MemoryRegistry
from streamlearn.versions import Store
from streamlearn.versions.pointer.moves import Canary
from streamlearn.versions.pointer.registry import Ack
from streamlearn.versions.replica.node_replica import Replica
from tests.versions.history import rows_of, serving
from tests.versions.nodes import SpiedHooks, SpiedStore, World


@pytest.fixture
def world(local: Store) -> World:
    return World(local)


def staged(node: Replica) -> list[int]:
    return [ref.version for ref in node.status().staged]


def test_a_node_answers_with_what_the_pointer_says_and_stages_what_comes(world: World) -> None:
    world.cut(1, 2, 3)
    world.serve(2)
    node = world.node()
    node.step()
    world.check(node, 2)
    assert (node.status().state, node.status().seq, staged(node)) == ("ready", 1, [1, 2, 3])
    world.check_all(node)
    node.close()


def test_a_promotion_of_a_version_staged_ahead_reads_no_file_of_it(world: World) -> None:
    world.cut(1, 2)
    world.serve(1)
    store = SpiedStore(world.store)
    node = world.node(store=store)
    node.step()
    store.reads.clear()
    world.serve(2)
    node.step()
    world.check(node, 2)
    assert not [path for path in store.reads if path.endswith(".arrow")]


def test_a_move_is_acknowledged_once_with_boot_id_and_seq(world: World) -> None:
    registry = world.registry
    assert registry is not None
    world.cut(1, 2)
    world.serve(1)
    node = world.node()
    node.step()
    pointer = world.serve(2)
    node.step()
    node.step()
    [ack] = registry.acks(pointer.seq)
    assert (ack.boot_id, ack.name, ack.seq, ack.version) == (node.boot_id, "node-1", 2, 2)
    assert ack.took_ms >= 0


def test_a_node_logs_one_line_for_each_move(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.cut(1, 2)
    world.serve(1)
    node = world.node()
    node.step()
    caplog.clear()
    with caplog.at_level("INFO"):
        pointer = world.serve(2)
        node.step()
        node.step()
    [line] = [record for record in caplog.records if record.getMessage() == "version 2 answers"]
    assert (line.__dict__["move"], line.__dict__["by"]) == (pointer.seq, pointer.by)
    assert line.__dict__["took_ms"] >= 0


def test_how_old_what_is_answered_from_is_is_observed_at_each_look(world: World) -> None:
    def figure(name: str) -> float:
        return REGISTRY.get_sample_value(f"streamlearn_serving_freshness_seconds_{name}") or 0.0

    count, seconds = figure("count"), figure("sum")
    world.cut(1, 2)
    node = world.node()
    node.step()
    assert figure("count") == count  # nothing answers yet
    now_ms, expected = world.clock.wall_ms(), 0.0
    for version in (2, 1):
        world.serve(version)
        node.step()
        # A version of this history has learned all until its own number of milliseconds.
        expected += (now_ms - version) / 1_000
    assert figure("count") - count == 2
    assert figure("sum") - seconds == pytest.approx(expected)
    node.close()


def test_versions_kept_older_than_the_active_one_can_be_gone_back_to_at_once(world: World) -> None:
    world.cut(1)
    world.serve(1)
    store = SpiedStore(world.store)
    node = world.node(store=store, versions_kept=2)
    for version in range(2, 8):
        world.cut(version)
        world.serve(version)
        node.step()
    assert staged(node) == [5, 6, 7]
    world.check_all(node)
    store.reads.clear()
    world.serve(5, held=True)
    node.step()
    world.check(node, 5)
    assert not [path for path in store.reads if path.endswith(".arrow")]


def test_a_node_that_missed_many_versions_keeps_the_last_of_them(world: World) -> None:
    world.cut(*range(1, 9))
    world.serve(7)
    node = world.node(versions_kept=2)
    node.step()
    assert staged(node) == [5, 6, 7, 8]
    world.check_all(node)


def test_versions_that_come_during_a_hold_are_staged_and_not_activated(world: World) -> None:
    world.cut(1, 2)
    world.serve(2, held=True)
    node = world.node(versions_kept=2)
    node.step()
    for version in range(3, 9):
        world.cut(version)
        node.step()
        world.check(node, 2)
    # Staged ahead, no more than are kept: what was passed over became part of those that stayed.
    assert staged(node) == [1, 2, 7, 8]
    world.check_all(node)
    assert node.status().state == "ready"
    world.serve(8, held=False)
    node.step()
    world.check(node, 8)


def test_tainted_versions_are_no_versions_to_stage_ahead(world: World) -> None:
    world.cut(1, 2, 3, 4)
    world.serve(2, taints=(3,), held=True)
    node = world.node()
    node.step()
    assert staged(node) == [1, 2]
    # Someone accepts it all the same: then it is staged, and answers.
    world.serve(4, accepted=(3,))
    node.step()
    world.check(node, 4)


def test_a_clean_version_after_tainted_ones_is_staged_through_them(world: World) -> None:
    world.cut(1, 2, 3, 4, 5)
    world.serve(2, taints=(3,), accepted=(5,), held=True)
    node = world.node()
    node.step()
    assert staged(node) == [1, 2, 5]
    world.check_all(node)


def test_a_canary_is_staged_beside_the_active_version_and_read_by_name(world: World) -> None:
    registry = world.registry
    assert registry is not None
    world.cut(1, 2, 3)
    world.serve(1, taints=(2,), held=True)
    node = world.node()
    node.step()
    pointer = world.move(lambda now: structs.replace(now, canary=Canary(version=world.refs[3], share=0.1)))
    node.step()
    world.check(node, 1)
    with node.reading(3) as read:
        assert (read.version, read.ref) == (3, world.refs[3])
    world.check_all(node)
    assert [ack.version for ack in registry.acks(pointer.seq)] == [1]


def test_a_version_that_is_not_kept_is_refused_by_name(world: World) -> None:
    world.cut(1)
    world.serve(1)
    node = world.node()
    with pytest.raises(NodeNotReady, match="no version to answer with"), node.reading():
        pass
    node.step()
    with pytest.raises(VersionRefused, match="this node does not keep version 9"), node.reading(9):
        pass
    with pytest.raises(VersionRefused, match="version 0"), node.reading(0):
        pass
    node.close()
    with pytest.raises(NodeNotReady), node.reading():
        pass


def test_a_reading_stays_as_it_is_while_versions_come_go_and_tables_are_built_anew(world: World) -> None:
    world.cut(1)
    world.serve(1)
    node = world.node(versions_kept=1)
    node.step()
    reading = node.reading()
    with reading as read:
        for version in range(2, 7):
            world.cut(version)
            world.serve(version)
            node.step()
        assert 1 in staged(node)  # who is read stays
        world.serve(3)  # not kept any more: other tables
        node.step()
        world.check(node, 3)
        assert rows_of(read.tables, 1) == world.truth[world.refs[1]]
    node.step()
    assert 1 not in staged(node) or staged(node)[0] == 1
    assert not hasattr(reading, "tables")


def test_a_registry_of_a_lower_seq_is_never_gone_back_to(world: World) -> None:
    registry = world.registry
    assert registry is not None
    world.cut(1, 2)
    old = world.serve(1)
    world.serve(2)
    node = world.node()
    node.step()
    registry.clear()
    registry.announce(old)
    node.step()
    world.check(node, 2)
    assert (node.status().seq, node.status().error) == (2, "")


def test_a_stale_registry_does_not_hide_a_newer_pointer_of_the_store(world: World) -> None:
    world.cut(1, 2)
    world.serve(1)
    node = world.node()
    node.step()
    world.move(lambda now: structs.replace(now, active=world.refs[2]))
    node.step()
    world.check(node, 2)


def test_a_node_without_a_registry_follows_the_store(local: Store) -> None:
    world = World(local, registry=None)
    world.cut(1, 2)
    world.serve(1)
    node = world.node()
    node.step()
    world.serve(2)
    node.step()
    world.check(node, 2)
    assert node.status().state == "ready"


def test_before_the_first_move_a_node_starts_and_answers_nothing(world: World) -> None:
    node = world.node()
    node.step()
    assert (node.status().state, node.status().seq, node.status().active) == ("starting", 0, None)
    world.clock.sleep(12.34)
    with pytest.raises(NodeNotReady, match=r"is starting after 12\.3 s"):
        node.wait_ready(0.0)
    world.cut(1)
    world.serve(1)
    node.step()
    node.wait_ready(0.0)


def test_what_else_must_be_ready_is_made_ready_before_a_version_answers(world: World) -> None:
    hooks = SpiedHooks()
    world.cut(1)
    world.serve(1)
    node = world.node(hooks=hooks, versions_kept=1)
    node.step()
    assert hooks.told == [("stage", 1), ("activate", 1)]
    world.cut(2, 3)
    world.serve(3)
    node.step()
    assert hooks.told[2:] == [("stage", 3), ("activate", 3)]
    world.cut(4)
    world.serve(4)
    node.step()
    # The move comes first: what is let go of may take its time.
    assert hooks.told[4:] == [("stage", 4), ("activate", 4), ("retire", 1)]
    world.check(node, 4)
    assert set(hooks.ready) == set(node.status().staged)


def test_a_version_of_which_hooks_cannot_read_all_is_tried_again_whole(world: World) -> None:
    hooks = SpiedHooks()
    world.cut(1)
    world.serve(1)
    node = world.node(hooks=hooks)
    node.step()
    hooks.unreadable = 2
    world.cut(2)
    world.serve(2)
    node.step()
    assert "items are damaged" in str(node.status().error)
    hooks.unreadable = 0
    world.clock.sleep(60)
    node.step()
    world.check(node, 2)


def test_hooks_are_told_of_a_canary_when_it_is_ready_and_when_it_ends(world: World) -> None:
    hooks = SpiedHooks()
    world.cut(1, 2)
    world.serve(1)
    node = world.node(hooks=hooks)
    node.step()
    begun = len(hooks.told)
    world.serve(1, canary=Canary(version=world.refs[2], share=0.1))
    node.step()
    assert [one for one in hooks.told[begun:] if one[0] != "stage"] == [("activate", 1), ("canary", 2)]
    begun = len(hooks.told)
    node.step()
    assert hooks.told[begun:] == []
    world.serve(1, canary=Canary(version=world.refs[2], share=0.5))
    node.step()
    assert hooks.told[begun:] == [("activate", 1), ("canary", 2)]
    begun = len(hooks.told)
    world.serve(1, canary=None)
    node.step()
    assert hooks.told[begun:] == [("activate", 1)]


def test_hooks_are_told_of_the_same_version_in_other_tables_and_nobody_is_acked(world: World) -> None:
    hooks = SpiedHooks()
    world.cut(1)
    world.serve(1)
    node = world.node(hooks=hooks)
    node.step()
    begun, current = len(hooks.told), node._position.current
    assert current is not None
    moved = node._position.switch(current)
    assert moved is not None
    assert (moved.is_other, moved.is_done) == (True, False)
    node._after_move(moved)
    assert hooks.told[begun:] == [("activate", 1)]


def test_whoever_hears_an_ack_meets_what_hooks_were_told(world: World) -> None:
    hooks, acked = SpiedHooks(), []
    assert world.registry is not None
    ack = world.registry.ack

    def noted(one: Ack) -> None:
        acked.append((one.version, ("activate", one.version) in hooks.told))
        ack(one)

    world.registry.ack = noted  # type: ignore[method-assign,assignment]
    world.cut(1, 2)
    node = world.node(hooks=hooks)
    for version in (1, 2):
        world.serve(version)
        node.step()
    assert acked == [(1, True), (2, True)]


def test_a_version_that_hooks_refuse_answers_nothing_and_is_named(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    hooks = SpiedHooks()
    world.cut(1, 2)
    world.serve(1)
    hooks.refused[2] = StreamlearnError("golden requests differ by 0.3", help="look at it")
    node = world.node(hooks=hooks)
    node.step()
    pointer = world.serve(2)
    node.step()
    world.check(node, 1)
    said = "version 2 of run 1 cannot be used here: golden requests differ by 0.3"
    assert said in node.status().error
    assert node.status().seq == pointer.seq - 1
    registry = world.registry
    assert registry is not None
    assert registry.acks(pointer.seq) == []
    assert said in registry.nodes()[0].said
    with pytest.raises(VersionRefused), node.reading(2):
        pass
    # It is tried again, less and less often; and not because of every round.
    count = len(hooks.told)
    node.step()
    assert len(hooks.told) == count
    hooks.refused.clear()
    assert [one for one in caplog.messages if said in one] == [f"{said}; help: look at it"]
    world.clock.sleep(60)
    node.step()
    world.check(node, 2)
    assert node.status().error == ""


def test_a_node_behind_the_pointer_or_without_news_says_that_it_is_stale(world: World) -> None:
    hooks = SpiedHooks()
    world.cut(1, 2)
    world.serve(1)
    store = SpiedStore(world.store)
    node = world.node(hooks=hooks, stale_s=300, store=store)
    node.step()
    hooks.refused[2] = StreamlearnError("not now")
    hooks.ready.clear()
    world.serve(2)
    node = world.node(hooks=hooks, stale_s=300, store=store)
    node.step()
    assert node.status().state == "starting"
    hooks.refused.clear()
    world.clock.sleep(60)
    node.step()
    assert node.status().state == "ready"
    world.cut(3)
    hooks.refused[3] = StreamlearnError("not now")
    world.serve(3)
    node.step()
    assert node.status().state == "ready"
    world.clock.sleep(301)
    assert (node.status().state, node.status().behind_s) == ("stale", 301)
    node.step()
    assert node.status().state == "stale"  # news, and still behind
    hooks.refused.clear()
    world.clock.sleep(60)
    node.step()
    assert (node.status().state, node.status().behind_s) == ("ready", 0)
    world.clock.sleep(301)
    assert node.status().state == "stale"  # no news
    node.step()
    assert node.status().state == "ready"


def test_closing_leaves_the_registry(world: World) -> None:
    registry = world.registry
    assert registry is not None
    world.cut(1)
    world.serve(1)
    node = world.node()
    node.step()
    assert [one.boot_id for one in registry.nodes()] == [node.boot_id]
    node.close()
    assert registry.nodes() == []


def test_a_late_joiner_equals_an_old_node_bit_for_bit(world: World) -> None:
    world.cut(1)
    world.serve(1)
    old = world.node("old")
    for version in range(2, 12):
        old.step()
        world.cut(version)
        if version == 6:
            assert world.trainer.last is not None
            base = world.trainer.base(world.trainer.last)
            assert base.manifest.kind == "base"
        world.serve(version)
    old.step()
    late = world.node("late")
    late.step()
    for node in (old, late):
        world.check(node, 11)
        world.check_all(node)


@pytest.mark.parametrize("row_type", ["float16", "int8"])
def test_nodes_of_smaller_rows_have_the_documented_rounding(local: Store, row_type: RowType) -> None:
    from tests.versions.test_load import _quantised

    world = World(local, row_type=row_type)
    world.cut(1, 2, 3)
    world.serve(1)
    node = world.node()
    for version in (1, 2, 3):
        world.serve(version)
        node.step()
        world.check(node, version, lambda rows: _quantised(rows, row_type))


def test_figures_are_counted(world: World) -> None:
    def figure(name: str) -> float:
        return REGISTRY.get_sample_value(f"streamlearn_serving_{name}") or 0.0

    rows, moves = figure("staged_rows_total"), figure("moves_total")
    world.cut(1, 2)
    world.serve(1)
    node = world.node()
    node.step()
    assert figure("staged_rows_total") > rows
    assert figure("moves_total") == moves + 1
    assert (figure("staged_versions"), figure("active_version"), figure("behind_seconds")) == (2, 1, 0)


def test_two_nodes_of_different_models_do_not_meet(world: World) -> None:
    world.cut(1)
    world.serve(1)
    other = Replica(
        world.store, "other", lambda: serving("float32"), name="n", registry=MemoryRegistry("other"), clock=world.clock
    )
    other.step()
    assert other.status().active is None
