"""What is loaded back is what the trainer had: rows bit for bit, or as their type rounds them; state and use too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import fsspec
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from streamlearn.errors import ConfigError, UsageError, VersionDefect
from streamlearn.features import TableSpec
from streamlearn.table import Expiry, RowType, TableSet
from streamlearn.table.changes import encode_rows
from streamlearn.table.options import Sgd
from streamlearn.versions import Chain, Store, VersionWriter, load, load_tensors, open_store
from streamlearn.versions.format.loading import load_bytes
from streamlearn.versions.store.settings import LoadSettings
from tests.campaign import examples
from tests.versions.history import MODEL, OPTIONS, PARTS, Trainer, everything, rows_of, serving, split

_STEP = st.tuples(st.sampled_from(["learn", "forget", "cut"]), st.integers(0, 1_000), st.sampled_from(["main", "side"]))


def _quantised(rows: dict[tuple[str, int], bytes], row_type: RowType) -> dict[tuple[str, int], bytes]:
    found = {}
    for key, row in rows.items():
        numbers, scales = encode_rows(np.frombuffer(row, np.float32)[None], row_type)
        floats = numbers.astype(np.float32)
        found[key] = (floats if scales is None else floats * scales[:, None]).tobytes()
    return found


@hypothesis_settings(max_examples=examples(15), derandomize=True, database=None)
@given(
    steps=st.lists(_STEP, max_size=25),
    written=st.sampled_from(["float32", "float16", "int8"]),
    shards=st.sampled_from([1, 2, 3]),
)
def test_random_histories_load_back_as_they_were(
    steps: list[tuple[str, int, str]], written: RowType, shards: int
) -> None:
    # What is in memory is searched from end to end by each call, so what others left there is taken away.
    fsspec.filesystem("memory").store.clear()
    store = open_store("memory://history")
    trainer, version = Trainer(store, row_type=written), 1
    trainer.cut(1, shards)
    for what, seed, table in steps:
        if what == "learn":
            trainer.learn(seed, 30, table)
        elif what == "forget":
            trainer.forget(seed, 30, table)
        else:
            version += 1 + seed % 3
            trainer.cut(version, 1 + seed % 3)
    version += 1
    trainer.cut(version, shards)
    chain = Chain.find(store, MODEL)
    again = TableSet(OPTIONS)
    assert load(chain, again, training=True).versions[-1].version == version
    assert everything(again, version) == everything(trainer.tables, version)
    assert again["main"].upkeep().pages == trainer.tables["main"].upkeep().pages
    expected = _quantised(rows_of(trainer.tables, version), written)
    node = serving(written)
    load(chain, node)
    assert rows_of(node, version) == expected
    node = serving("float32")
    load(chain, node)
    assert rows_of(node, version) == expected


def test_a_story_loads_back_from_every_store(opened: Callable[..., Store]) -> None:
    trainer, again = Trainer(opened()), TableSet(OPTIONS)
    trainer.story([1, 2])
    load(Chain.find(opened(), MODEL), again, training=True)
    assert everything(again, 2) == everything(trainer.tables, 2)


@pytest.mark.parametrize("row_type", ["float16", "int8"])
def test_a_node_rounds_float32_rows_to_its_own_type(local: Store, row_type: RowType) -> None:
    trainer, node = Trainer(local), serving(row_type)
    trainer.story([1, 2, 3])
    load(Chain.find(local, MODEL), node)
    assert rows_of(node, 3) == _quantised(rows_of(trainer.tables, 3), row_type)


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 3), (3, 1)])
def test_shards_may_be_cut_anew(local: Store, before: int, after: int) -> None:
    trainer = Trainer(local)
    for version in (1, 2, 3):
        trainer.learn(version, 80)
        trainer.forget(version + 7)
        trainer.learn(version, 80, "side")
        trainer.cut(version, before if version < 3 else after)
    chain = Chain.find(local, MODEL)
    found: dict[tuple[str, int], Any] = {}
    for parts in split(after):
        shard = TableSet(OPTIONS)
        load(chain, shard, training=True, parts=parts)
        mine = everything(shard, 3)
        assert not set(mine) & set(found)
        found |= mine
        upkeep, whole = shard["main"].upkeep(), trainer.tables["main"].upkeep()
        assert upkeep.pages == {part: page for part, page in whole.pages.items() if parts[0] <= part < parts[1]}
    assert found == everything(trainer.tables, 3)


def test_parts_that_are_not_wanted_are_not_read(local: Store) -> None:
    trainer = Trainer(local)
    trainer.learn(1, 80)
    trainer.cut(1, 2)
    shard, whole = TableSet(OPTIONS), TableSet(OPTIONS)
    half = load(Chain.find(local, MODEL), shard, parts=(0, PARTS // 2))
    assert half.versions[0].bytes < load(Chain.find(local, MODEL), whole).versions[0].bytes * 0.7


def test_expiry_goes_on_where_it_was(local: Store) -> None:
    trainer = Trainer(local)
    trainer.learn(2, 200)
    trainer.tables["main"].expire(Expiry(idle_ms=10**9), now_ms=3_000, budget_keys=50)
    trainer.cut(1, 2)
    again = TableSet(OPTIONS)
    load(Chain.find(local, MODEL), again, training=True)
    mine, theirs = again["main"].upkeep(), trainer.tables["main"].upkeep()
    assert (mine.next_part, mine.hands.tolist()) == (theirs.next_part, theirs.hands.tolist())


def test_a_node_that_stands_at_a_version_loads_only_what_came_after(local: Store) -> None:
    trainer, node = Trainer(local), serving("float32")
    first = trainer.story([1, 2])
    loaded = load(Chain.find(local, MODEL), node)
    assert [one.version for one in loaded.versions] == [1, 2]
    assert loaded.ref == first[-1].ref
    node.activate(2)
    trainer.story([3, 5])
    chain = Chain.find(local, MODEL, since=loaded.ref)
    following = load(chain, node)
    assert [one.version for one in following.versions] == [3, 5]
    assert node.retained == [2, 5]
    assert node.active == 2
    assert rows_of(node, 5) == rows_of(trainer.tables, 5)
    nothing = Chain.find(local, MODEL, since=following.ref)
    assert (load(nothing, node).versions, nothing.version) == ((), 5)


def test_what_training_knew_beside_rows_goes_on_with_deltas(local: Store) -> None:
    trainer, again = Trainer(local), TableSet(OPTIONS)
    trainer.story([1, 2])
    loaded = load(Chain.find(local, MODEL), again, training=True)
    trainer.story([3, 4])
    load(Chain.find(local, MODEL, since=loaded.ref), again, training=True)
    assert everything(again, 4) == everything(trainer.tables, 4)
    assert again["main"].upkeep().pages == trainer.tables["main"].upkeep().pages


def test_one_version_is_kept_while_a_chain_is_loaded(local: Store) -> None:
    Trainer(local).story([1, 2, 3, 4])
    node = serving("float32")
    load(Chain.find(local, MODEL), node)
    assert node.retained == [4]


def test_rows_are_counted_and_timed(local: Store) -> None:
    trainer, node = Trainer(local), serving("float32")
    trainer.story([1, 2])
    [one, two] = load(Chain.find(local, MODEL), node).versions
    base = trainer.tables
    assert one.rows == sum(len(changes) for changes in base.changed(None, 1))
    assert two.rows == sum(len(changes) for changes in base.changed(1, 2))
    assert two.gone == sum(len(changes.gone) for changes in base.changed(1, 2) if changes.gone is not None) > 0
    assert min(one.bytes, two.bytes, one.wall_s, two.wall_s) > 0


def test_dense_weights_marks_and_golden_requests_come_back(local: Store) -> None:
    committed = Trainer(local).story([1])[0]
    np.testing.assert_array_equal(load_tensors(local, committed)["w"], np.arange(6).reshape(2, 3) + 1)
    assert load_tensors(local, committed, "dense_optimizer")["m"].dtype == np.float64
    assert {name: bytes(data) for name, data in load_bytes(local, committed, "marks").items()} == {
        "page-0": b"marks of 1"
    }
    assert bytes(load_bytes(local, committed, "golden")["requests"]) == b"golden of 1"


def test_many_files_of_a_table_are_one_table(local: Store) -> None:
    trainer = Trainer(local)
    keys = np.arange(9_000, dtype=np.uint64)
    trainer.tables["main"].push(keys, np.random.default_rng(1).standard_normal((9_000, 4), np.float32), now_ms=0)
    manifest = trainer.cut(1).manifest
    rows, optimizer = manifest.of_kind("rows"), manifest.of_kind("optimizer")
    assert len([one for one in rows if one.table == "main"]) > 4
    assert [(one.number, one.rows) for one in rows] == [(one.number, one.rows) for one in optimizer]
    assert max(one.bytes for one in manifest.files) <= 65_536
    again = TableSet(OPTIONS)
    limits = LoadSettings(fetch_threads=3, stage_threads=2)
    load(Chain.find(local, MODEL), again, training=True, settings=limits)
    assert everything(again, 1) == everything(trainer.tables, 1)


def test_a_chain_loads_only_where_it_begins(local: Store) -> None:
    trainer, node = Trainer(local), serving("float32")
    first = trainer.story([1, 2])
    chain = Chain.find(local, MODEL)
    load(chain, node)
    with pytest.raises(UsageError, match="the tables are at version 2, but the chain of version 2 follows None"):
        load(chain, node)
    with pytest.raises(UsageError, match="are at version None"):
        load(Chain.find(local, MODEL, since=first[0].ref), serving("float32"))
    with pytest.raises(UsageError, match="parts are"):
        load(chain, serving("float32"), parts=(5, 5))
    with pytest.raises(ConfigError, match="fetch_threads"):
        load(chain, serving("float32"), settings=LoadSettings(fetch_threads=0))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"spec": TableSpec("main", 5, 0.5)}, "dim of table 'main' is 4, not 5"),
        ({"spec": TableSpec("main", 4, 0.25)}, "initial_range"),
        ({"spec": TableSpec("other", 4, 0.5)}, "its tables are"),
        ({"seed": 9}, "seed of table 'main' is 3, not 9"),
        ({"tick_ms": 7}, "tick_ms"),
        ({"optimizer": Sgd(rate=0.1)}, "learned by Adagrad"),
    ],
)
def test_other_tables_are_refused_by_name(local: Store, changed: dict[str, Any], said: str) -> None:
    Trainer(local).story([1])
    tables = TableSet([msgspec.structs.replace(OPTIONS[0], **changed), OPTIONS[1]])
    with pytest.raises(VersionDefect, match=said) as refused:
        load(Chain.find(local, MODEL), tables, training=True)
    assert (refused.value.defect, tables.retained) == ("incompatible", [])


def test_rounded_rows_are_not_rounded_again(local: Store) -> None:
    Trainer(local, row_type="float16").story([1])
    with pytest.raises(VersionDefect, match="are float16 and cannot be converted to int8"):
        load(Chain.find(local, MODEL), serving("int8"))


def test_changes_of_other_tables_parts_and_types_are_not_written(local: Store) -> None:
    trainer = Trainer(local)
    trainer.learn(2)
    trainer.tables.seal(1)
    changes = [one for one in trainer.tables.changed(None, 1, parts=PARTS) if one.table == "main"]
    writer = VersionWriter(local, trainer.head(1))
    for wrong, said in (
        ([replace(changes[0], table="other")], "changes of table 'other'"),
        ([replace(changes[0], state=None)], "has state None|have state None"),
        ([replace(changes[0], rows=changes[0].rows[:, :3])], "expected"),
        ([replace(changes[0], table="main"), replace(changes[0], table="side")], "rows of table 'side'"),
    ):
        with pytest.raises(UsageError, match=said):
            writer.add_rows(wrong)
    with pytest.raises(UsageError, match="keys of table 'main' belong to parts"):
        writer.add_rows(changes, shard=(0, 2), parts=(0, 5))
    assert local.leftovers(f"{trainer.head(1).folder}/rows") == []
