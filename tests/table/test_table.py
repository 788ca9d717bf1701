"""What one table does: initial rows, admission, expiry, upkeep, fullness, names, pins."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from streamlearn.errors import ConfigError, TableFull, UsageError, VersionRefused
from streamlearn.features import TableSpec
from streamlearn.table import Adagrad, Admission, Expiry, Pushed, TableOptions, TableSet
from streamlearn.table.options import Sgd
from streamlearn.table.table import Expired, Table
from tests.table.oracle import initial_rows, keys_of_one_part

Keys: TypeAlias = npt.NDArray[np.uint64]

OPTIONS = TableOptions(TableSpec("main", 4, 0.05), rows_max=100_000, optimizer=Adagrad(), tick_ms=1_000)
EVERYTHING = 1 << 40


def _table(**changed: object) -> Table:
    return TableSet([msgspec.structs.replace(OPTIONS, **changed)])["main"]


def _keys(*keys: int) -> Keys:
    return np.array(keys, np.uint64)


def _push(table: Table, keys: Keys, now_ms: int = 0, **more: object) -> Pushed:
    return table.push(keys, np.ones((len(keys), table.dim), np.float32), now_ms=now_ms, **more)  # type: ignore[arg-type]


def _has(table: Table, keys: Keys) -> list[bool]:
    """Which keys have a row of their own."""
    spec, seed = table.options.spec, table.options.seed
    own = table.lookup(keys) != initial_rows(keys, spec.dim, spec.initial_range, seed)
    return [bool(row.any()) for row in own]


def test_initial_rows_are_those_of_seed_key_and_range_alone() -> None:
    keys = _keys(0, 1, 2, (1 << 64) - 1, 1 << 63)
    for seed, dim, initial_range in ((0, 1, 0.05), (5, 17, 1.0), ((1 << 64) - 1, 64, 1e-3), (3, 9, 0.0)):
        for row_type in ("float32", "int8"):
            spec = TableSpec("main", dim, initial_range)
            table = _table(spec=spec, seed=seed, row_type=row_type, optimizer=None)
            found = table.lookup(keys)
            assert found.tobytes() == initial_rows(keys, dim, initial_range, seed).tobytes()
            assert (np.abs(found) <= np.float32(initial_range)).all()
    assert not (_table(seed=1).lookup(keys) == _table(seed=2).lookup(keys)).any()
    assert _table(seed=1).stats().keys == 0


def test_any_64_bits_are_a_key() -> None:
    table = _table(optimizer=Sgd(rate=1.0), spec=TableSpec("main", 2, 0.0))
    bits = [1 << at for at in range(64)]
    keys = _keys(0, (1 << 64) - 1, *bits, *[(1 << 64) - 1 - bit for bit in bits])
    rows = np.arange(2 * len(keys), dtype=np.float32).reshape(-1, 2)
    table.push(keys, -rows, now_ms=0)
    np.testing.assert_array_equal(table.lookup(keys), rows)
    assert table.stats().keys == len(keys)
    assert table.remove(keys[:50]) == 50
    np.testing.assert_array_equal(table.lookup(keys[50:]), rows[50:])
    assert not table.lookup(keys[:50]).any()


def test_nothing_is_done_with_no_keys() -> None:
    table, none = _table(admission=Admission()), _keys()
    assert table.lookup(none).shape == (0, 4)
    assert _push(table, none, counts=np.empty(0, np.uint32), admit=[(0, 3)]) == Pushed(0, 0, 0)
    table.put(none, np.empty((0, 4), np.float32), state=np.empty((0, 4), np.float32))
    assert table.remove(none) == 0
    assert table.expire(Expiry(idle_ms=1), now_ms=1 << 40, budget_keys=EVERYTHING) == Expired(0, 0, 0, 0)
    assert (table.stats().keys, table.stats().load) == (0, 0.0)


def test_a_row_goes_where_it_is_told_to() -> None:
    table, keys = _table(), _keys(3, 4, 5)
    _push(table, keys)
    out = np.full((3, 4), np.nan, np.float32)
    assert table.lookup(keys, out=out) is out
    np.testing.assert_array_equal(out, table.lookup(keys))
    whole = np.zeros((9, 4), np.float32)
    table.lookup(keys, out=whole[3:6])
    np.testing.assert_array_equal(whole[3:6], out)
    assert not whole[:3].any()
    assert not whole[6:].any()


def test_of_a_key_put_twice_the_later_row_counts() -> None:
    table = _table()
    table.put(_keys(8, 8), np.array([[1] * 4, [2] * 4], np.float32))
    assert table.lookup(_keys(8)).tolist() == [[2.0] * 4]
    assert table.remove(_keys(8, 8)) == 1


def test_keys_get_a_row_when_they_were_seen_as_often_as_their_run_asks() -> None:
    table = _table(admission=Admission())
    keys = _keys(1, 2, 3, 4)
    runs = [(1, 1), (3, 3)]  # 1 at once; 2 and 3 at the third time; 4, after the last run, at once
    assert _push(table, keys, admit=runs) == Pushed(learned=2, created=2, waiting=2)
    assert _push(table, keys, admit=runs) == Pushed(learned=2, created=0, waiting=2)
    assert _has(table, keys) == [True, False, False, True]
    assert _push(table, keys, admit=runs) == Pushed(learned=4, created=2, waiting=0)
    assert _has(table, keys) == [True] * 4
    # Repeats of a call count, and so do counts; the threshold is that of the run a key first comes in.
    assert _push(table, _keys(10, 10, 10), admit=[(3, 3)]) == Pushed(1, 1, 0)
    assert _push(table, _keys(11), admit=[(1, 3)], counts=np.array([3], np.uint32)) == Pushed(1, 1, 0)
    assert _push(table, _keys(12, 12), admit=[(1, 3)]) == Pushed(0, 0, 1)
    # A key that has a row keeps learning whatever its run asks.
    assert _push(table, keys, admit=[(4, 15)]) == Pushed(learned=4, created=0, waiting=0)


def test_how_often_a_key_was_seen_is_forgotten_within_two_windows() -> None:
    table = _table(admission=Admission(window_ms=1_000))
    _push(table, _keys(5), now_ms=0, admit=[(1, 2)])
    assert _push(table, _keys(5), now_ms=2_000, admit=[(1, 2)]).waiting == 1
    assert _push(table, _keys(5), now_ms=2_999, admit=[(1, 2)]).created == 1


def test_thresholds_need_a_table_that_counts() -> None:
    with pytest.raises(UsageError, match=r"admit: table 'main' does not count[\s\S]*TableOptions\(admission="):
        _push(_table(), _keys(1), admit=[(1, 2)])
    table = _table(admission=Admission())
    for runs in ([(1, 0)], [(1, 16)], [(2, 1)], [(-1, 1)], [(1, 2), (0, 2)]):
        with pytest.raises(ValueError, match=r"admit|runs end"):
            _push(table, _keys(1), admit=runs)


def test_keys_leave_for_the_first_reason_there_is() -> None:
    table = _table()
    _push(table, _keys(1, 2, 3), now_ms=0)
    _push(table, _keys(2, 3), now_ms=10_000)
    _push(table, _keys(3, 4), now_ms=20_000)
    expiry = Expiry(idle_ms=15_000, count_min=3, rare_idle_ms=5_000)
    assert table.expire(expiry, now_ms=20_000, budget_keys=EVERYTHING) == Expired(scanned=4, idle=1, rare=1, over=0)
    assert _has(table, _keys(1, 2, 3, 4)) == [False, False, True, True]
    # Ages are counted in whole ticks, and a limit must be passed.
    assert table.expire(Expiry(idle_ms=5_000), now_ms=25_999, budget_keys=EVERYTHING).idle == 0
    assert table.expire(Expiry(idle_ms=5_000), now_ms=26_000, budget_keys=EVERYTHING).idle == 2


def test_too_many_keys_leave_the_longest_unused_first() -> None:
    table, keys = _table(), np.arange(40_000, dtype=np.uint64)
    _push(table, keys[:20_000], now_ms=0)
    _push(table, keys[20_000:], now_ms=60_000)
    over = 0
    for _ in range(20):
        over += table.expire(Expiry(keys_max=20_000), now_ms=60_000, budget_keys=EVERYTHING).over
    left = table.stats().keys
    assert left == 40_000 - over
    assert left <= 20_000
    # The limit is shared out evenly among 1,024 parts, and keys are not: a part has 20 of each kind, give or take 5.
    assert np.mean(_has(table, keys[20_000:])) > 0.85
    assert np.mean(_has(table, keys[:20_000])) < 0.15


def test_expiry_looks_at_a_few_keys_a_call_and_at_all_in_turn() -> None:
    table, keys = _table(), np.arange(30_000, dtype=np.uint64)
    _push(table, keys, now_ms=0)
    scanned = calls = 0
    while table.stats().keys:
        done = table.expire(Expiry(idle_ms=1_000), now_ms=10_000, budget_keys=500)
        assert done.idle == done.scanned < 500 + 200
        scanned, calls = scanned + done.scanned, calls + 1
        assert calls <= 60
    assert scanned == len(keys)
    assert table.expire(Expiry(idle_ms=1_000), now_ms=10_000, budget_keys=0) == Expired(0, 0, 0, 0)


def test_what_is_saved_and_put_back_goes_on_as_if_nothing_had_been() -> None:
    options = msgspec.structs.replace(OPTIONS, admission=Admission(window_ms=10_000, width_counters=64))
    first, rng = TableSet([options]), np.random.default_rng(3)
    table = first["main"]
    _push(table, np.arange(3_000, dtype=np.uint64), now_ms=0)
    for step in range(5):
        keys = rng.integers(3_000, 6_000, 1_500, np.uint64)
        _push(table, keys, now_ms=1_000 * step, admit=[(1_500, 6)])
        table.expire(Expiry(idle_ms=1_000), now_ms=1_000 * step, budget_keys=200)
    upkeep = table.upkeep()
    assert 0 < upkeep.next_part < 1_024
    first.seal(1)
    first.commit(1)
    second = TableSet([options])
    second.stage(1, None, first.changed(None, 1))
    second["main"].restore(upkeep)
    for step in range(5, 12):
        keys = rng.integers(3_000, 6_000, 1_500, np.uint64)
        done = [_push(tables["main"], keys, now_ms=1_000 * step, admit=[(1_500, 6)]) for tables in (first, second)]
        assert done[0] == done[1]
        limits = Expiry(idle_ms=3_000)
        expired = [t["main"].expire(limits, now_ms=1_000 * step, budget_keys=150) for t in (first, second)]
        assert expired[0] == expired[1]
        assert expired[0].idle > 0
    keys = np.arange(6_000, dtype=np.uint64)
    assert first["main"].lookup(keys).tobytes() == second["main"].lookup(keys).tobytes()
    assert first["main"].upkeep().pages == second["main"].upkeep().pages


def test_counts_that_are_put_back_are_byte_for_byte_what_they_were() -> None:
    options = msgspec.structs.replace(OPTIONS, admission=Admission(window_ms=10_000, width_counters=64))
    first, second = TableSet([options])["main"], TableSet([options])["main"]
    rng = np.random.default_rng(5)
    for step in range(6):
        keys = rng.integers(0, 5_000, 3_000, np.uint64)
        if step == 3:
            second.restore(first.upkeep())
            assert first.upkeep(changed_only=True).pages == {}
        done = _push(first, keys, now_ms=4_000 * step, admit=[(3_000, 15)])
        assert done.created == 0
        if step >= 3:
            assert _push(second, keys, now_ms=4_000 * step, admit=[(3_000, 15)]) == done
    assert dict(first.upkeep().pages) == dict(second.upkeep().pages)
    np.testing.assert_array_equal(first.upkeep().hands, second.upkeep().hands)
    second.restore(replace(first.upkeep(), pages={}))
    assert second.upkeep().pages == {}
    assert second.stats().sketch_bytes == 0 < first.stats().sketch_bytes


def test_pages_of_another_table_are_refused() -> None:
    wide, narrow = _table(admission=Admission(width_counters=128)), _table(admission=Admission(width_counters=64))
    _push(wide, _keys(1), admit=[(1, 2)])
    for table in (narrow, _table()):
        with pytest.raises(ValueError, match=r"counters|sketch|page|bytes"):
            table.restore(wide.upkeep())


def test_a_full_table_says_so_and_goes_on_when_what_was_not_kept_is_dropped() -> None:
    tables = TableSet([msgspec.structs.replace(OPTIONS, rows_max=100)])
    table, few = tables["main"], np.arange(50, dtype=np.uint64)
    _push(table, few)
    tables.seal(1)
    tables.commit(1)
    kept = table.lookup(few)
    many = np.arange(40_000, dtype=np.uint64)
    with pytest.raises(TableFull, match="100 rows are in use") as caught:
        _push(table, many)
    assert "rows_max" in caught.value.help
    with pytest.raises(TableFull):
        table.put(many, np.ones((40_000, 4), np.float32), threads=2)
    tables.discard()
    np.testing.assert_array_equal(table.lookup(few), kept)
    assert table.stats().keys == 50
    assert _push(table, few) == Pushed(50, 0, 0)


def test_the_number_of_keys_is_approached_and_not_kept_to() -> None:
    table, keys = _table(rows_max=50_000), np.arange(40_000, dtype=np.uint64)
    for part, now_ms in ((keys[:20_000], 0), (keys[20_000:], 600_000)):
        table.push(part, np.ones((20_000, 4), np.float32), now_ms=now_ms)
    expiry, kept = Expiry(keys_max=18_000), []
    for _ in range(10):
        expired = table.expire(expiry, now_ms=600_000, budget_keys=EVERYTHING)
        # Of each window a quarter at most, rounded up, whatever the budget; a part of about 40 keys is one.
        assert expired.over <= expired.scanned / 4 + 1_025
        kept.append(len(table))
    assert kept[0] > 18_000
    assert kept[-1] == 18_000
    # Parts have keys enough for age to count: few of the newer half have left, but for the 2,000 that must.
    assert np.count_nonzero(_has(table, keys[20_000:])) > 17_000


def test_where_parts_have_a_key_each_age_does_not_say_who_leaves() -> None:
    table, keys = _table(), np.arange(100, dtype=np.uint64)
    table.push(keys, np.ones((100, 4), np.float32), now_ms=0)
    table.push(keys[50:], np.ones((50, 4), np.float32), now_ms=600_000)
    assert table.expire(Expiry(keys_max=50), now_ms=600_000, budget_keys=EVERYTHING).over == 50
    assert not all(_has(table, keys[50:]))


def test_more_memory_than_an_address_can_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="rows_max is 2147483648: that takes 70093866270720 bytes"):
        _table(spec=TableSpec("main", 4_096, 0.05), rows_max=1 << 31)


def test_every_table_has_its_own_name() -> None:
    other = msgspec.structs.replace(OPTIONS, spec=TableSpec("other", 2, 0.1))
    tables = TableSet([OPTIONS, other])
    assert list(tables.tables) == ["main", "other"]
    assert (tables["other"].name, tables["other"].dim) == ("other", 2)
    with pytest.raises(UsageError, match=r"no table is named 'third'[\s\S]*main, other"):
        tables["third"]
    with pytest.raises(UsageError, match="main, main"):
        TableSet([OPTIONS, OPTIONS])


def test_a_pin_that_is_closed_reads_nothing() -> None:
    tables = TableSet([OPTIONS])
    tables.seal(4)
    with tables.pin(4) as pin:
        assert pin.version == 4
        tables["main"].lookup(_keys(1), at=pin)
    for _ in range(2):
        with pytest.raises(UsageError, match="version 4 is closed"):
            tables["main"].lookup(_keys(1), at=pin)
        pin.close()
    with pytest.raises(VersionRefused, match="version 5 is not retained"):
        tables.pin(5)
    forgotten = tables.pin(4)
    del forgotten
    tables.discard()


def test_keys_that_fill_one_part_are_found_and_leave_again() -> None:
    table, keys = _table(), keys_of_one_part(300, part=1_000)
    rows = np.random.default_rng(0).standard_normal((len(keys), 4), np.float32)
    table.put(keys, rows)
    np.testing.assert_array_equal(table.lookup(keys), rows)
    assert table.remove(keys[::3].copy()) == 100
    assert _has(table, keys) == [at % 3 != 0 for at in range(len(keys))]
    assert 0 < table.stats().load < 1


def test_rows_that_were_put_and_never_used_leave_only_where_there_are_too_many() -> None:
    now_ms, later_ms = 1_795_000_000_000, 1_795_003_600_000
    options = TableOptions(TableSpec("it", 2, 0.05), rows_max=10_000, optimizer=Adagrad(), tick_ms=60_000)
    table = TableSet([options])["it"]
    # Which are too many is found out part by part.
    keys, ones = keys_of_one_part(400, part=5), np.ones((400, 2), np.float32)
    table.put(keys[:200], ones[:200])
    table.put(keys[200:300], ones[200:300], now_ms=now_ms)
    table.push(keys[300:], ones[300:], now_ms=now_ms)
    assert table.expire(Expiry(idle_ms=7_200_000), now_ms=later_ms, budget_keys=1 << 30).idle == 0
    table.push(keys[300:], ones[300:], now_ms=later_ms)
    assert table.expire(Expiry(idle_ms=1_800_000), now_ms=later_ms, budget_keys=1 << 30).idle == 100
    table.put(keys[300:], ones[300:])
    assert table.expire(Expiry(idle_ms=1), now_ms=later_ms, budget_keys=1 << 30).idle == 0, "they keep their use"
    while table.stats().keys > 150:
        assert table.expire(Expiry(keys_max=150), now_ms=later_ms, budget_keys=1 << 30).over
    assert (table.lookup(keys[300:]) == ones[300:]).all(), "those that were used stay"
