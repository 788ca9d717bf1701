"""What a table is given and cannot take: refused by name, and nothing is written, into a copy least of all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from streamlearn.errors import ConfigError, VersionRefused
from streamlearn.features import TableSpec
from streamlearn.table import Adagrad, Admission, Expiry, TableOptions, TableSet, Upkeep
from streamlearn.table.table import Table

OPTIONS = TableOptions(TableSpec("main", 4, 0.05), rows_max=1_000, optimizer=Adagrad(), admission=Admission())
KEYS = np.array([3, 4], np.uint64)
ROWS = np.ones((2, 4), np.float32)


def _locked() -> Any:
    rows = ROWS.copy()
    rows.flags.writeable = False
    return rows


def _misaligned() -> Any:
    return np.zeros(33, np.uint8)[1:].view(np.float32).reshape(2, 4)


# Arrays for float32[2, 4], each wrong in one way.
WRONG_ROWS: dict[str, tuple[type[Exception], Callable[[], Any]]] = {
    "another type": (TypeError, lambda: ROWS.astype(np.float64)),
    "another order of bytes": (TypeError, lambda: ROWS.astype(">f4")),
    "whole numbers of the same size": (TypeError, lambda: ROWS.view(np.uint32)),
    "a list": (TypeError, lambda: ROWS.tolist()),
    "columns first": (TypeError, lambda: np.asfortranarray(ROWS)),
    "every second row": (TypeError, lambda: np.ones((4, 4), np.float32)[::2]),
    "every second number": (TypeError, lambda: np.ones((2, 8), np.float32)[:, ::2]),
    "one row seen twice": (TypeError, lambda: np.broadcast_to(np.ones(4, np.float32), (2, 4))),
    "backwards": (TypeError, lambda: ROWS[::-1]),
    "off its alignment": (TypeError, _misaligned),
    "as many numbers in other rows": (ValueError, lambda: np.ones((4, 2), np.float32)),
    "one dimension": (ValueError, lambda: ROWS.reshape(-1)),
    "three dimensions": (ValueError, lambda: ROWS[None]),
    "no dimension": (ValueError, lambda: np.array(1, np.float32)),
    "a row less": (ValueError, lambda: ROWS[1:]),
    "a row more": (ValueError, lambda: np.ones((3, 4), np.float32)),
}
WRONG_KEYS: dict[str, tuple[type[Exception], Callable[[], Any]]] = {
    "signed": (TypeError, lambda: KEYS.astype(np.int64)),
    "another order of bytes": (TypeError, lambda: KEYS.astype(">u8")),
    "smaller": (TypeError, lambda: KEYS.astype(np.uint32)),
    "floats": (TypeError, lambda: KEYS.astype(np.float64)),
    "a list": (TypeError, lambda: KEYS.tolist()),
    "nothing": (TypeError, lambda: None),
    "every second": (TypeError, lambda: np.arange(4, dtype=np.uint64)[::2]),
    "two dimensions": (ValueError, lambda: KEYS[None]),
    "no dimension": (ValueError, lambda: np.array(7, np.uint64)),
}
CALLS_OF_ROWS: dict[str, Callable[[Table, Any], Any]] = {
    "out": lambda table, rows: table.lookup(KEYS, out=rows),
    "gradients": lambda table, rows: table.push(KEYS, rows, now_ms=0),
    "rows": lambda table, rows: table.put(KEYS, rows),
    "state": lambda table, rows: table.put(KEYS, ROWS, state=rows),
}
CALLS_OF_KEYS: dict[str, Callable[[Table, Any], Any]] = {
    "lookup": lambda table, keys: table.lookup(keys),
    "push": lambda table, keys: table.push(keys, ROWS, now_ms=0),
    "put": lambda table, keys: table.put(keys, ROWS),
    "remove": lambda table, keys: table.remove(keys),
}


@pytest.fixture
def table() -> Table:
    return TableSet([OPTIONS])["main"]


@pytest.mark.parametrize("what", WRONG_ROWS)
@pytest.mark.parametrize("name", CALLS_OF_ROWS)
def test_rows_that_do_not_fit_are_refused_by_name(name: str, what: str, table: Table) -> None:
    kind, make = WRONG_ROWS[what]
    with pytest.raises(kind, match=f"^{name}: expected"):
        CALLS_OF_ROWS[name](table, make())
    assert table.stats().keys == 0


@pytest.mark.parametrize("what", WRONG_KEYS)
@pytest.mark.parametrize("name", CALLS_OF_KEYS)
def test_keys_that_do_not_fit_are_refused_by_name(name: str, what: str, table: Table) -> None:
    kind, make = WRONG_KEYS[what]
    with pytest.raises(kind, match=r"^keys: expected"):
        CALLS_OF_KEYS[name](table, make())
    assert table.stats().keys == 0


def test_a_buffer_that_cannot_be_written_is_refused(table: Table) -> None:
    with pytest.raises(ValueError, match="out: the array is read-only"):
        table.lookup(KEYS, out=_locked())
    table.push(KEYS, _locked(), now_ms=0)  # what is only read may be locked
    shared = np.zeros(8, np.uint64)
    with pytest.raises(ValueError, match="shares memory"):
        table.lookup(shared[:2], out=shared.view(np.float32)[:8].reshape(2, 4))


@pytest.mark.parametrize("counts", [np.ones(2, np.int64), np.ones(3, np.uint32), np.ones((2, 1), np.uint32), [1, 1]])
def test_counts_that_do_not_fit_are_refused(counts: Any, table: Table) -> None:
    with pytest.raises((TypeError, ValueError), match="counts: expected"):
        table.push(KEYS, ROWS, now_ms=0, counts=counts)


@pytest.mark.parametrize("threads", [0, -1, 1_025, 1 << 70, 1.5, None, "2"])
def test_threads_are_a_number_that_makes_sense(threads: Any, table: Table) -> None:
    tables = TableSet([OPTIONS])
    calls: list[Callable[[], Any]] = [
        lambda: table.lookup(KEYS, threads=threads),
        lambda: table.push(KEYS, ROWS, now_ms=0, threads=threads),
        lambda: table.put(KEYS, ROWS, threads=threads),
        lambda: table.remove(KEYS, threads=threads),
        lambda: tables.discard(threads=threads),
        lambda: tables.stage(1, None, [], threads=threads),
        lambda: tables.retire(1, threads=threads),
    ]
    for call in calls:
        with pytest.raises((TypeError, ValueError), match=r"^threads: expected"):
            call()
    assert tables.retained == []


@pytest.mark.parametrize("version", [-1, 1 << 64, 1.0, None, "1"])
def test_versions_are_whole_numbers_of_64_bits(version: Any) -> None:
    tables = TableSet([OPTIONS])
    tables.seal(1)
    calls: list[Callable[[], Any]] = [
        lambda: tables.seal(version),
        lambda: tables.commit(version),
        lambda: tables.activate(version),
        lambda: tables.retire(version),
        lambda: tables.pin(version),
        lambda: tables.changed(None, version),
        lambda: tables.stage(version, 1, []),
    ]
    for call in calls:
        with pytest.raises((TypeError, ValueError), match=r"^version: expected"):
            call()
    assert (tables.sealed, tables.retained) == (1, [])
    tables.discard()
    largest = (1 << 64) - 1
    tables.stage(largest, None, [])
    assert tables.retained == [largest]
    with pytest.raises(VersionRefused, match="version numbers must increase"):
        tables.seal(largest)


@pytest.mark.parametrize("now_ms", [1 << 63, -(1 << 63) - 1, 0.5, None])
def test_times_are_whole_numbers_of_64_bits(now_ms: Any, table: Table) -> None:
    with pytest.raises((TypeError, ValueError), match=r"^now_ms: expected"):
        table.push(KEYS, ROWS, now_ms=now_ms)
    with pytest.raises((TypeError, ValueError), match=r"^now_ms: expected"):
        table.expire(Expiry(), now_ms=now_ms, budget_keys=1)


def test_the_ends_of_time_are_times(table: Table) -> None:
    for now_ms in (-(1 << 63), (1 << 63) - 1, -1, np.int64(5)):
        table.push(KEYS, ROWS, now_ms=int(now_ms), admit=[(2, 2)])
        table.expire(Expiry(idle_ms=1), now_ms=int(now_ms), budget_keys=10)


@pytest.mark.parametrize("parts", [0, -1, 1_025, 1.5])
def test_parts_are_a_share_of_all(parts: Any) -> None:
    tables = TableSet([OPTIONS])
    tables.seal(1)
    with pytest.raises((TypeError, ValueError), match=r"^parts: expected"):
        tables.changed(None, 1, parts=parts)
    tables.discard()


@pytest.mark.parametrize("at", [5.0, None, "oldest", b"newest", ["newest"]])
def test_a_version_to_read_is_a_number_a_pin_or_one_of_two_words(at: Any, table: Table) -> None:
    with pytest.raises(TypeError, match=r"^at: expected a version, a pin"):
        table.lookup(KEYS, at=at)


def test_a_pin_of_another_set_reads_nothing(table: Table) -> None:
    other = TableSet([OPTIONS])
    other.seal(9)
    with other.pin(9) as pin, pytest.raises(ValueError, match="version 9 of another set"):
        table.lookup(KEYS, at=pin)


@pytest.mark.parametrize(
    "limits",
    [
        {"idle_ms": 0},
        {"idle_ms": -1},
        {"idle_ms": 1 << 63},
        {"count_min": 256},
        {"count_min": -1},
        {"rare_idle_ms": -1},
        {"keys_max": 0},
        {"keys_max": 1 << 64},
        {"idle_ms": 1.5},
    ],
)
def test_an_expiry_out_of_its_bounds_is_refused_when_it_is_made(limits: dict[str, Any]) -> None:
    (name,) = limits
    with pytest.raises(ConfigError, match=f"Expiry: {name} is"):
        Expiry(**limits)


@pytest.mark.parametrize("name", ["idle_ms", "rare_idle_ms"])
def test_an_age_that_ticks_cannot_tell_takes_no_key_away(name: str, table: Table) -> None:
    table.push(KEYS, ROWS, now_ms=0)
    told_ms = ((1 << 23) - 1) * OPTIONS.tick_ms
    with pytest.raises(ConfigError, match=f"expiry of table 'main': {name} is {told_ms}[\\s\\S]*tick_ms"):
        table.expire(Expiry(**{name: told_ms}), now_ms=1 << 40, budget_keys=100)
    with pytest.raises(ValueError, match="budget_keys"):
        table.expire(Expiry(idle_ms=1), now_ms=1 << 40, budget_keys=-1)
    assert table.stats().keys == 2
    # The longest age that can be told does take them.
    expired = table.expire(Expiry(idle_ms=told_ms - 1), now_ms=told_ms, budget_keys=100)
    assert expired.idle == 2


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"rows_max": 0}, "rows_max"),
        ({"rows_max": -1}, "rows_max"),
        ({"rows_max": (1 << 31) + 1}, "rows_max"),
        ({"tick_ms": 0}, "tick_ms"),
        ({"tick_ms": 1 << 63}, "tick_ms"),
        ({"rows_max": np.int64(5)}, "rows_max is np.int64"),
        ({"seed": -1}, "seed"),
        ({"seed": 1 << 64}, "seed is 18446744073709551616: expected at most"),
        ({"row_type": "bfloat16"}, "row_type"),
        ({"row_type": "float16"}, "row_type is 'float16': a table with an optimizer stores float32 rows"),
        ({"spec": "main"}, r"spec is 'main': expected a TableSpec[\s\S]*TableSpec\("),
        ({"spec": TableSpec("main", 4_096, 0.05), "rows_max": 1 << 31}, "bytes of address space"),
        ({"spec": TableSpec("main", 0, 0.05)}, "dim is 0"),
        ({"spec": TableSpec("main", 4_097, 0.05)}, "dim is 4097"),
        ({"spec": TableSpec("main", -1, 0.05)}, "dim is -1"),
        ({"spec": TableSpec("main", 4, True)}, "initial_range is True"),
        ({"spec": TableSpec("main", 4, -0.1)}, "initial_range"),
        ({"spec": TableSpec("main", 4, float("nan"))}, "initial_range"),
        ({"optimizer": 5}, "optimizer"),
    ],
)
def test_options_out_of_their_bounds_make_no_table(changed: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        msgspec.structs.replace(OPTIONS, **changed)


def test_an_admission_out_of_its_bounds_is_refused_when_it_is_made() -> None:
    for changed, match in (
        ({"window_ms": 0}, "Admission: window_ms is 0"),
        ({"width_counters": 32}, "width_counters is 32"),
        ({"width_counters": 100}, "width_counters is 100: expected a power of two"),
    ):
        with pytest.raises(ConfigError, match=match):
            Admission(**changed)


def test_upkeep_that_does_not_fit_changes_nothing(table: Table) -> None:
    table.push(KEYS, ROWS, now_ms=0, admit=[(2, 5)])
    upkeep = table.upkeep()
    assert upkeep.pages
    wrong: list[tuple[Upkeep, type[Exception], str]] = [
        (replace(upkeep, hands=upkeep.hands[:-1]), ValueError, "hands: expected the shape"),
        (replace(upkeep, hands=upkeep.hands.astype(np.int64)), TypeError, "hands: expected"),
        (replace(upkeep, next_part=1_024), ValueError, "next_part: expected"),
        (replace(upkeep, next_part=-1), ValueError, "next_part: expected"),
        (replace(upkeep, pages={1_024: b""}), ValueError, "part: expected"),
        (replace(upkeep, pages={-1: b""}), ValueError, "part: expected"),
    ]
    for one, kind, match in wrong:
        with pytest.raises(kind, match=match):
            table.restore(one)
        assert table.upkeep().pages == upkeep.pages
    part, page = next(iter(upkeep.pages.items()))
    for bad in (b"", page[:-1], page + b"\0", b"\xff" * len(page)):
        with pytest.raises(ValueError, match=r"page|bytes|sketch|part"):
            table.restore(replace(upkeep, pages={**upkeep.pages, part: bad}))
        # Half of what was counted would be worse than none of it.
        assert table.upkeep().pages == {}
        table.restore(upkeep)
        assert table.upkeep().pages == upkeep.pages
