"""Tables under any sequence of calls read, at every version, exactly what dictionaries by version hold."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from streamlearn.errors import StreamlearnError, TableBusy, VersionRefused
from streamlearn.features import TableSpec
from streamlearn.table import Adagrad, Changes, Expiry, Pushed, TableOptions, TableSet
from streamlearn.table.pin import Pin
from streamlearn.table.table import Expired
from tests.campaign import examples
from tests.table.oracle import Oracle, Snapshot, keys_of_one_part

OPTIONS = (
    TableOptions(TableSpec("main", 3, 0.05), rows_max=10_000, optimizer=Adagrad(rate=0.5), seed=7, tick_ms=1_000),
    TableOptions(TableSpec("side", 8, 0.5), rows_max=10_000, optimizer=Adagrad(rate=0.1), tick_ms=1),
)
_DIMS = {one.spec.name: one.spec.dim for one in OPTIONS}
# Most of them meet in two lines of one part.
UNIVERSE = [0, (1 << 64) - 1, 1 << 63, 42, *keys_of_one_part(12, part=5).tolist()]
_KEYS = st.lists(st.sampled_from(UNIVERSE), max_size=8)
_TABLES = st.sampled_from(["main", "side"])
_SEEDS = st.integers(0, 1 << 30)
_THREADS = st.sampled_from([1, 2])
_EXPIRIES = st.sampled_from(
    [Expiry(), Expiry(idle_ms=5_000), Expiry(count_min=2), Expiry(idle_ms=20_000, count_min=3, rare_idle_ms=3_000)]
)


def _array(keys: Sequence[int]) -> npt.NDArray[np.uint64]:
    return np.array(keys, np.uint64)


def _rows(count: int, dim: int, seed: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((count, dim), np.float32)


def _refused(kind: type[StreamlearnError], call: Callable[[], Any]) -> None:
    with pytest.raises(kind):
        call()


class Tables:
    """A set of tables and what it is to hold; every write goes to both."""

    def __init__(self) -> None:
        self.set, self.oracle, self.now_ms = TableSet(OPTIONS), Oracle(OPTIONS), 1_000

    def put(self, table: str, keys: list[int], seed: int, threads: int = 1) -> None:
        rows = _rows(len(keys), _DIMS[table], seed)
        self.set[table].put(_array(keys), rows, threads=threads)
        self.oracle.put(table, keys, rows)

    def push(self, table: str, keys: list[int], seed: int, threads: int = 1) -> None:
        gradients, before = _rows(len(keys), _DIMS[table], seed), self.oracle.open.cells[table]
        created = len(set(keys) - set(before))
        done = self.set[table].push(_array(keys), gradients, now_ms=self.now_ms, threads=threads)
        assert done == Pushed(learned=len(set(keys)), created=created, waiting=0)
        self.oracle.push(table, keys, gradients, self.now_ms)

    def remove(self, table: str, keys: list[int], threads: int = 1) -> None:
        assert self.set[table].remove(_array(keys), threads=threads) == self.oracle.remove(table, keys)

    def expire(self, table: str, expiry: Expiry) -> None:
        count = len(self.oracle.open.cells[table])
        done = self.set[table].expire(expiry, now_ms=self.now_ms, budget_keys=1 << 40)
        idle, rare = self.oracle.expire(table, expiry, self.now_ms)
        assert done == Expired(scanned=done.scanned, idle=idle, rare=rare, over=0)
        assert done.scanned >= count

    def cut(self, version: int) -> None:
        self.set.seal(version)
        self.oracle.seal(version)
        self.set.commit(version)
        self.oracle.commit()

    def export(self, since: int | None, upto: int) -> list[Changes]:
        return list(self.set.changed(since, upto, parts=256))


def _assert_reads(tables: TableSet, oracle: Oracle, snapshot: Snapshot, at: Any) -> None:
    keys = _array(UNIVERSE)
    for name in _DIMS:
        expected = oracle.rows(name, snapshot.cells[name], UNIVERSE)
        np.testing.assert_array_equal(tables[name].lookup(keys, at=at).view(np.uint32), expected.view(np.uint32))


def _assert_exports(changes: list[Changes], oracle: Oracle, since: int | None, upto: int) -> None:
    for name in _DIMS:
        mine = [one for one in changes if one.table == name]
        cells, gone = oracle.changed(name, since, upto)
        keys = np.concatenate([one.keys for one in mine]).tolist()
        assert sorted(keys) == sorted(cells)
        gone_found = [key for one in mine if one.gone is not None for key in one.gone.tolist()]
        assert sorted(gone_found) == sorted(gone)
        for one in mine:
            assert one.state is not None
            assert one.ticks is not None
            assert one.counts is not None
            for at, key in enumerate(one.keys.tolist()):
                cell = cells[key]
                assert one.rows[at].tobytes() == cell.row.tobytes()
                assert one.state[at].tobytes() == cell.state.tobytes()
                assert (int(one.ticks[at]), int(one.counts[at])) == (cell.tick, cell.count)


class Versions(RuleBasedStateMachine):
    """One set of tables, everything its public calls can do to versions, and the oracle."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = Tables()
        self.set, self.oracle = self.tables.set, self.tables.oracle
        self.pins: list[Pin] = []
        self.next = 1

    @rule(table=_TABLES, keys=_KEYS, seed=_SEEDS, threads=_THREADS)
    def put(self, table: str, keys: list[int], seed: int, threads: int) -> None:
        self.tables.put(table, keys, seed, threads)

    @rule(table=_TABLES, keys=_KEYS, seed=_SEEDS, threads=_THREADS)
    def push(self, table: str, keys: list[int], seed: int, threads: int) -> None:
        self.tables.push(table, keys, seed, threads)

    @rule(table=_TABLES, keys=_KEYS, threads=_THREADS)
    def remove(self, table: str, keys: list[int], threads: int) -> None:
        self.tables.remove(table, keys, threads)

    @rule(table=_TABLES, expiry=_EXPIRIES, later_ms=st.integers(0, 9_000))
    def expire(self, table: str, expiry: Expiry, later_ms: int) -> None:
        self.tables.now_ms += later_ms
        self.tables.expire(table, expiry)

    @rule(table=_TABLES)
    def upkeep_is_put_back(self, table: str) -> None:
        self.set[table].restore(self.set[table].upkeep())

    @rule(step=st.integers(1, 3))
    def seal(self, step: int) -> None:
        if self.oracle.sealed:
            sealed = self.oracle.sealed[0]
            _refused(TableBusy, lambda: self.set.seal(sealed + 1))
            self.set.seal(sealed)  # again: nothing
            return
        if self.oracle.newest is not None:
            newest = self.oracle.newest
            _refused(VersionRefused, lambda: self.set.seal(newest))
        self.next += step
        self.set.seal(self.next)
        self.oracle.seal(self.next)

    @rule()
    def commit(self) -> None:
        _refused(VersionRefused, lambda: self.set.commit(self.next + 1))
        if self.oracle.sealed:
            self.set.commit(self.oracle.sealed[0])
            self.oracle.commit()

    @rule(threads=_THREADS)
    def discard(self, threads: int) -> None:
        if self.oracle.sealed and self.oracle.sealed[0] in [pin.version for pin in self.pins]:
            _refused(TableBusy, self.set.discard)
            return
        self.set.discard(threads=threads)
        self.oracle.discard()

    @rule(choice=st.integers(0, 9))
    def activate(self, choice: int) -> None:
        _refused(VersionRefused, lambda: self.set.activate(self.next + 1))
        if self.oracle.kept:
            version = sorted(self.oracle.kept)[choice % len(self.oracle.kept)]
            self.set.activate(version)
            self.oracle.active = version

    @rule(choice=st.integers(0, 9), threads=_THREADS)
    def retire(self, choice: int, threads: int) -> None:
        _refused(VersionRefused, lambda: self.set.retire(self.next + 1))
        if not self.oracle.kept:
            return
        version = sorted(self.oracle.kept)[choice % len(self.oracle.kept)]
        if version in (self.oracle.newest, self.oracle.active):
            _refused(VersionRefused, lambda: self.set.retire(version))
        elif version in [pin.version for pin in self.pins]:
            _refused(TableBusy, lambda: self.set.retire(version))
        else:
            self.set.retire(version, threads=threads)
            self.oracle.retire(version)
            assert self.set.retiring == 0

    @rule(choice=st.integers(0, 9))
    def pin(self, choice: int) -> None:
        _refused(VersionRefused, lambda: self.set.pin(self.next + 1))
        if versions := self.oracle.versions():
            self.pins.append(self.set.pin(versions[choice % len(versions)]))

    @precondition(lambda self: self.pins)
    @rule(choice=st.integers(0, 9))
    def close(self, choice: int) -> None:
        self.pins.pop(choice % len(self.pins)).close()

    @rule(edits=st.lists(st.tuples(_TABLES, st.integers(0, 2), _KEYS, _SEEDS), max_size=4), threads=_THREADS)
    def stage(self, edits: list[tuple[str, int, list[int], int]], threads: int) -> None:
        parent, version = self.oracle.newest, self.next + 1
        if self.oracle.sealed or self.oracle.is_written:
            _refused(TableBusy, lambda: self.set.stage(version, parent, []))
            return
        trainer = self._trainer(edits)
        changes = trainer.export(None if parent is None else 1, 2)
        self._refuse_wrong_stages(version, parent, changes)
        self.set.stage(version, parent, changes, threads=threads)
        self.next = version
        self.oracle.kept[version] = trainer.oracle.kept[2]
        self.oracle.discard()

    def _trainer(self, edits: list[tuple[str, int, list[int], int]]) -> Tables:
        """Another set, which goes on from the newest version here; its 2 is what is to be staged."""
        trainer, newest = Tables(), self.oracle.newest
        trainer.now_ms = self.tables.now_ms
        if newest is not None:
            trainer.set.stage(1, None, self.set.changed(None, newest))
            trainer.oracle.open = self.oracle.kept[newest].copy()
            trainer.oracle.seal(1)
            trainer.oracle.commit()
        for table, what, keys, seed in edits:
            if what == 0:
                trainer.put(table, keys, seed)
            elif what == 1:
                trainer.push(table, keys, seed)
            else:
                trainer.remove(table, keys)
        trainer.cut(2)
        return trainer

    def _refuse_wrong_stages(self, version: int, parent: int | None, changes: list[Changes]) -> None:
        other = 1 if parent is None else parent + 1
        _refused(VersionRefused, lambda: self.set.stage(version, other, changes))
        if parent is not None:
            _refused(VersionRefused, lambda: self.set.stage(version, None, changes))
            _refused(VersionRefused, lambda: self.set.stage(parent, parent, changes))
        if written := [one for one in changes if len(one)]:
            one = written[0]
            _refused(VersionRefused, lambda: self.set.stage(version, parent, [*changes, one]))
            both = Changes(one.table, one.keys, one.rows, gone=one.keys[:1])
            _refused(VersionRefused, lambda: self.set.stage(version, parent, [both]))
        assert self.set.retained == sorted(self.oracle.kept)
        assert self.set.sealed is None

    @invariant()
    def the_set_knows_its_versions(self) -> None:
        assert self.set.retained == sorted(self.oracle.kept)
        assert self.set.sealed == (self.oracle.sealed[0] if self.oracle.sealed else None)
        assert self.set.active == self.oracle.active
        for name in _DIMS:
            assert self.set[name].stats().keys == len(self.oracle.open.cells[name])

    @invariant()
    def every_version_reads_what_it_was(self) -> None:
        _assert_reads(self.set, self.oracle, self.oracle.open, "newest")
        for version in self.oracle.versions():
            with self.set.pin(version) as pin:
                _assert_reads(self.set, self.oracle, self.oracle.version(version), pin)
        if self.oracle.active is None:
            _refused(VersionRefused, lambda: self.set["main"].lookup(_array([1]), at="active"))
        else:
            _assert_reads(self.set, self.oracle, self.oracle.kept[self.oracle.active], "active")
        for pin in self.pins:
            _assert_reads(self.set, self.oracle, self.oracle.version(pin.version), pin)

    @invariant()
    def every_pair_of_versions_gives_its_changes(self) -> None:
        versions = self.oracle.versions()
        for at, upto in enumerate(versions):
            for since in (None, *versions[:at]):
                _assert_exports(self.tables.export(since, upto), self.oracle, since, upto)
            _refused(VersionRefused, lambda upto=upto: self.set.changed(upto, upto))  # type: ignore[misc]


TestVersions = Versions.TestCase
TestVersions.settings = hypothesis_settings(
    max_examples=examples(25), stateful_step_count=30, derandomize=True, database=None
)


def test_a_version_that_is_retired_between_two_gives_its_changes_to_the_next() -> None:
    tables = Tables()
    for version, keys in ((1, [1, 2, 3]), (2, [2, 4]), (3, [3]), (4, [])):
        tables.put("main", keys, seed=version)
        tables.cut(version)
    tables.set.retire(2)
    tables.oracle.retire(2)
    _assert_exports(tables.export(1, 3), tables.oracle, 1, 3)
    found = [key for one in tables.export(1, 4) for key in one.keys.tolist()]
    assert sorted(found) == [2, 3, 4]


def test_an_export_holds_its_versions_from_the_call_on_and_until_it_ends() -> None:
    tables = Tables()
    for version in (1, 2, 3):
        tables.put("main", [version], seed=version)
        tables.cut(version)
    export = tables.set.changed(1, 2)
    _refused(TableBusy, lambda: tables.set.retire(1))
    next(export)
    _refused(TableBusy, lambda: tables.set.retire(2))
    assert [key for one in export for key in one.keys.tolist()] in ([], [2])
    tables.set.retire(1)
    abandoned = tables.set.changed(2, 3)
    next(abandoned)
    del abandoned
    tables.set.retire(2)


def test_a_version_can_be_read_by_its_number() -> None:
    tables = TableSet(OPTIONS[:1])
    table, keys = tables["main"], _array([1])
    for version in (1, 2):
        table.put(keys, np.full((1, 3), version, np.float32))
        tables.seal(version)
        if version == 1:
            tables.commit(1)
    table.put(keys, np.full((1, 3), 9, np.float32))
    assert [table.lookup(keys, at=at)[0, 0] for at in (1, 2, "newest")] == [1, 2, 9]
    for at, kind in ((3, VersionRefused), (-1, ValueError), (True, TypeError), ("old", TypeError)):
        with pytest.raises(kind):
            table.lookup(keys, at=at)  # type: ignore[arg-type]


def test_the_version_after_one_that_was_given_up_says_what_both_wrote() -> None:
    tables = TableSet(OPTIONS[:1])
    table, ones = tables["main"], np.ones((1, 3), np.float32)
    for version, key in ((1, 1), (2, 2)):
        table.put(_array([key]), ones)
        tables.seal(version)
        if version == 1:
            tables.commit(1)
    tables.abandon(2)
    _refused(VersionRefused, lambda: tables.commit(2))
    table.put(_array([2, 3]), 2 * np.ones((2, 3), np.float32))
    tables.seal(3)
    tables.commit(3)
    found = {int(key): row[0] for one in tables.changed(1, 3) for key, row in zip(one.keys, one.rows, strict=True)}
    assert found == {2: 2.0, 3: 2.0}
    tables.activate(3)
    tables.retire(1)
    assert (table.stats().images, table.stats().rows) == (0, 3)


def test_an_export_of_what_is_discarded_ends_and_says_so() -> None:
    tables = Tables()
    tables.put("main", [1], seed=1)
    tables.cut(1)
    tables.put("main", [1, 2], seed=2)
    tables.set.seal(2)
    export = tables.set.changed(1, 2, parts=1)
    tables.set.discard()
    _refused(TableBusy, lambda: list(export))


def test_while_a_version_is_staged_nobody_else_writes_into_it() -> None:
    source, replica = TableSet(OPTIONS[:1]), TableSet(OPTIONS[:1])
    keys, ones = np.arange(5_000, dtype=np.uint64), np.ones((5_000, 3), np.float32)
    source["main"].put(keys, ones)
    source.seal(1)
    source.commit(1)
    table = replica["main"]
    others: list[Callable[[], Any]] = [
        lambda: replica.stage(1, None, []),
        lambda: table.put(keys[:1], ones[:1]),
        lambda: table.push(keys[:1], ones[:1], now_ms=0),
        lambda: table.remove(keys[:1]),
        lambda: table.expire(Expiry(), now_ms=0, budget_keys=1),
        lambda: replica.seal(1),
        replica.discard,
    ]

    def interrupted() -> Iterator[Changes]:
        for one in source.changed(None, 1, parts=256):
            for other in others:
                _refused(TableBusy, other)
            yield one

    replica.stage(1, None, interrupted())
    assert (replica.retained, table.stats().keys) == ([1], 5_000)
    table.put(keys[:1], 2 * ones[:1])
    replica.discard()
    assert table.lookup(keys[:1])[0, 0] == 1.0


def test_of_two_who_stage_at_once_one_is_refused_and_the_version_is_whole() -> None:
    source, replica = TableSet(OPTIONS[:1]), TableSet(OPTIONS[:1])
    keys = np.arange(5_000, dtype=np.uint64)
    source["main"].put(keys, np.ones((5_000, 3), np.float32))
    source.seal(1)
    source.commit(1)
    begun, ended = threading.Barrier(2), []

    def stage() -> None:
        begun.wait(240)
        try:
            replica.stage(1, None, source.changed(None, 1))
        except (TableBusy, VersionRefused) as error:
            ended.append(error)

    threads = [threading.Thread(target=stage) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert (len(ended), replica.retained, replica["main"].stats().keys) == (1, [1], 5_000)


def test_what_stops_staging_half_way_leaves_nothing_of_it() -> None:
    tables = Tables()
    tables.put("main", [1, 2], seed=1)
    tables.cut(1)
    key, gone = _array([3]), _array([1])
    good = Changes("main", key, _rows(1, 3, 5), gone=gone)

    def broken() -> Any:
        yield good
        message = "the file ends"
        raise OSError(message)

    for changes, kind in (
        (broken(), OSError),
        ([good, Changes("main", _array([4]), _rows(1, 4, 0))], ValueError),
        ([good, Changes("elsewhere", key, _rows(1, 3, 0))], StreamlearnError),
    ):
        with pytest.raises(kind):
            tables.set.stage(2, 1, changes)
        assert (tables.set.retained, tables.set.sealed) == ([1], None)
        _assert_reads(tables.set, tables.oracle, tables.oracle.kept[1], "newest")
    tables.set.stage(2, 1, [good])
    found = tables.set["main"].lookup(_array([3, 1]))
    np.testing.assert_array_equal(found[0], good.rows[0])
    np.testing.assert_array_equal(found[1], tables.oracle.initial("main", [1])[0])
