"""A replica fed by exported changes alone has, at every version, the trainer's rows as its own type stores them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from streamlearn.features import TableSpec
from streamlearn.table import Adagrad, Changes, Expiry, RowType, TableOptions, TableSet
from streamlearn.table.changes import encode_rows
from tests.campaign import examples
from tests.table.oracle import keys_of_one_part

ROW_TYPES: tuple[RowType, ...] = get_args(RowType)
OPTIONS = TableOptions(TableSpec("main", 5, 0.5), rows_max=10_000, optimizer=Adagrad(rate=0.5), seed=3, tick_ms=1_000)
UNIVERSE = np.array([0, (1 << 64) - 1, *keys_of_one_part(10, part=9).tolist()], np.uint64)
_KEYS = st.lists(st.integers(0, len(UNIVERSE) - 1), max_size=6).map(lambda at: UNIVERSE[at])
_SEEDS = st.integers(0, 1 << 30)

Keys = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float32]


def _rows(keys: Sequence[int] | Keys, seed: int) -> Floats:
    return np.random.default_rng(seed).standard_normal((len(keys), OPTIONS.spec.dim), np.float32)


def _replica(row_type: RowType) -> TableSet:
    """A table that only serves, or one that learns on, in the trainer's own type."""
    optimizer = OPTIONS.optimizer if row_type == "float32" else None
    return TableSet([msgspec.structs.replace(OPTIONS, row_type=row_type, optimizer=optimizer)])


def _quantised(rows: Floats, row_type: RowType) -> Floats:
    """What a table of a row type gives back of rows that were put into it."""
    numbers, scales = encode_rows(rows, row_type)
    floats = numbers.astype(np.float32)
    return floats if scales is None else floats * scales[:, None]


def _assert_same(trainer: TableSet, replica: TableSet, row_type: RowType, version: int) -> None:
    with trainer.pin(version) as theirs, replica.pin(version) as mine:
        expected = trainer["main"].lookup(UNIVERSE, at=theirs)
        there = np.isin(UNIVERSE, np.concatenate([one.keys for one in trainer.changed(None, version)]))
        # A row that was never stored is computed, and is the same in all of them.
        expected[there] = _quantised(expected[there], row_type)
        found = replica["main"].lookup(UNIVERSE, at=mine)
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


def _everything(tables: TableSet, version: int) -> dict[int, tuple[bytes, bytes, int, int]]:
    """Rows, state and use of all keys."""
    found = {}
    for one in tables.changed(None, version):
        assert one.state is not None
        assert one.ticks is not None
        assert one.counts is not None
        for at, key in enumerate(one.keys.tolist()):
            use = int(one.ticks[at]), int(one.counts[at])
            found[key] = (one.rows[at].tobytes(), one.state[at].tobytes(), *use)
    return found


class Replicas(RuleBasedStateMachine):
    """One trainer, and a replica of each row type that follows it."""

    def __init__(self) -> None:
        super().__init__()
        self.trainer, self.version, self.now_ms = TableSet([OPTIONS]), 0, 0
        self.replicas = {row_type: _replica(row_type) for row_type in ROW_TYPES}

    @rule(keys=_KEYS, seed=_SEEDS)
    def push(self, keys: Keys, seed: int) -> None:
        self.trainer["main"].push(keys, _rows(keys, seed), now_ms=self.now_ms)

    @rule(keys=_KEYS, seed=_SEEDS)
    def put(self, keys: Keys, seed: int) -> None:
        self.trainer["main"].put(keys, _rows(keys, seed))

    @rule(keys=_KEYS)
    def remove(self, keys: Keys) -> None:
        self.trainer["main"].remove(keys)

    @rule(keys=_KEYS, seed=_SEEDS)
    def remove_and_make_again(self, keys: Keys, seed: int) -> None:
        self.trainer["main"].remove(keys)
        self.push(keys, seed)

    @rule(keys=_KEYS, seed=_SEEDS)
    def make_and_remove_again(self, keys: Keys, seed: int) -> None:
        self.push(keys, seed)
        self.trainer["main"].remove(keys)

    @rule(later_ms=st.integers(0, 9_000))
    def expire(self, later_ms: int) -> None:
        self.now_ms += later_ms
        self.trainer["main"].expire(Expiry(idle_ms=6_000), now_ms=self.now_ms, budget_keys=1 << 40)

    @rule()
    def throw_away_what_was_not_cut(self) -> None:
        self.trainer.discard()

    @rule(retire=st.booleans(), parts=st.sampled_from([1, 100, 1024]))
    def cut(self, retire: bool, parts: int) -> None:
        parent, self.version = self.version or None, self.version + 1
        self.trainer.seal(self.version)
        self.trainer.commit(self.version)
        for row_type, replica in self.replicas.items():
            replica.stage(self.version, parent, self.trainer.changed(parent, self.version, parts=parts), threads=2)
            replica.activate(self.version)
            if row_type == "float32":
                assert _everything(replica, self.version) == _everything(self.trainer, self.version)
        if retire and parent is not None:
            for tables in (self.trainer, *self.replicas.values()):
                tables.retire(parent)

    @invariant()
    def replicas_have_what_the_trainer_has(self) -> None:
        for row_type, replica in self.replicas.items():
            assert replica.retained == self.trainer.retained
            for version in replica.retained:
                _assert_same(self.trainer, replica, row_type, version)


TestReplicas = Replicas.TestCase
TestReplicas.settings = hypothesis_settings(
    max_examples=examples(20), stateful_step_count=25, derandomize=True, database=None
)


@pytest.mark.parametrize("row_type", ROW_TYPES)
def test_a_key_may_leave_and_come_back_within_one_version(row_type: RowType) -> None:
    trainer, replica = TableSet([OPTIONS]), _replica(row_type)
    table, keys = trainer["main"], UNIVERSE[:3]
    table.put(keys[:2], _rows(keys[:2], 1))
    trainer.seal(1)
    trainer.commit(1)
    table.remove(keys[:2])
    table.put(keys[:1], _rows(keys[:1], 2))  # gone and back
    table.put(keys[2:], _rows(keys[2:], 3))
    table.remove(keys[2:])  # there and gone again
    trainer.seal(2)
    trainer.commit(2)
    changes = list(trainer.changed(1, 2))
    assert [key for one in changes for key in one.keys.tolist()] == [int(keys[0])]
    assert [key for one in changes if one.gone is not None for key in one.gone.tolist()] == [int(keys[1])]
    replica.stage(1, None, trainer.changed(None, 1))
    replica.stage(2, 1, changes)
    for version in (1, 2):
        _assert_same(trainer, replica, row_type, version)
    assert replica["main"].stats().keys == 1


@pytest.mark.parametrize("row_type", ROW_TYPES)
def test_an_expired_key_leaves_the_replica(row_type: RowType) -> None:
    trainer, replica = TableSet([OPTIONS]), _replica(row_type)
    trainer["main"].push(UNIVERSE, _rows(UNIVERSE, 1), now_ms=0)
    trainer["main"].push(UNIVERSE[:4], _rows(UNIVERSE[:4], 2), now_ms=50_000)
    trainer.seal(1)
    trainer.commit(1)
    expired = trainer["main"].expire(Expiry(idle_ms=20_000), now_ms=60_000, budget_keys=1 << 30)
    assert expired.idle == len(UNIVERSE) - 4
    trainer.seal(2)
    trainer.commit(2)
    replica.stage(1, None, trainer.changed(None, 1))
    replica.stage(2, 1, trainer.changed(1, 2))
    _assert_same(trainer, replica, row_type, 2)
    assert replica["main"].stats().keys == 4


@pytest.mark.parametrize("row_type", ["float16", "int8"])
def test_stored_rows_pass_from_replica_to_replica_unchanged(row_type: RowType) -> None:
    first, second = _replica(row_type), _replica(row_type)
    first["main"].put(UNIVERSE, _rows(UNIVERSE, 9))
    first.seal(1)
    first.commit(1)
    exported = list(first.changed(None, 1))
    assert {one.rows.dtype for one in exported} == {np.dtype(row_type)}
    second.stage(1, None, exported)
    one, other = first["main"].lookup(UNIVERSE), second["main"].lookup(UNIVERSE)
    np.testing.assert_array_equal(one.view(np.uint32), other.view(np.uint32))
    whole = [replace(one, rows=one.floats(), scales=None) for one in exported]
    third = _replica(row_type)
    third.stage(1, None, whole)
    np.testing.assert_array_equal(third["main"].lookup(UNIVERSE).view(np.uint32), one.view(np.uint32))


def test_a_version_that_changes_nothing_is_a_version() -> None:
    trainer, replica = TableSet([OPTIONS]), _replica("int8")
    for version in (1, 2, 3):
        trainer.seal(version)
        trainer.commit(version)
        parent = version - 1 or None
        changes: list[Changes] = list(trainer.changed(parent, version))
        assert sum(len(one) for one in changes) == 0
        replica.stage(version, parent, changes)
    assert replica.retained == [1, 2, 3]
