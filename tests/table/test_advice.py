"""What a caller may easily get wrong, or give in another way: taken, or refused with what to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from streamlearn.errors import BadRecord, ConfigError, UsageError
from streamlearn.features import TableSpec
from streamlearn.table import Adagrad, Changes, Packing, TableOptions, TableSet
from streamlearn.table.changes import encode_rows
from streamlearn.table.options import Adam, Optimizer, RowwiseAdagrad, Sgd
from streamlearn.table.table import Table
from streamlearn.testing import small_app

OPTIONS = TableOptions(TableSpec("main", 4, 0.0), rows_max=1_000, optimizer=Adagrad())
KEYS = np.array([3, 4], np.uint64)
ROWS = np.full((2, 4), 0.5, np.float32)


def _table(**changed: Any) -> Table:
    return TableSet([msgspec.structs.replace(OPTIONS, **changed)])["main"]


def _saved(path: Path, **changed: Any) -> Path:
    np.savez(path, **{"keys": KEYS, "rows": ROWS, **changed})
    return path


def test_changes_of_another_table_are_refused() -> None:
    tables = TableSet([OPTIONS, msgspec.structs.replace(OPTIONS, spec=TableSpec("other", 4, 0.0))])
    with pytest.raises(UsageError, match=r"changes of table 'other' were given to table 'main'"):
        tables["main"].apply(Changes("other", KEYS, ROWS))
    assert len(tables["main"]) == 0
    tables["main"].apply(Changes("", KEYS, ROWS))
    tables["main"].apply(Changes("main", KEYS, ROWS))
    assert len(tables["main"]) == 2


def test_a_file_that_names_no_table_is_given_one(tmp_path: Path) -> None:
    path = _saved(tmp_path / "theirs.npz")
    tables = TableSet([OPTIONS])
    with pytest.raises(UsageError, match=r"no table is named ''[\s\S]*Changes\.load\(path, table=\.\.\.\)"):
        tables.stage(1, None, [Changes.load(path)])
    assert tables.retained == []
    changes = Changes.load(path, table="main")
    assert changes.table == "main"
    tables.stage(1, None, changes)  # one of them needs no list
    assert tables["main"].lookup(KEYS, at=1).tolist() == ROWS.tolist()
    changes.save(str(tmp_path / "ours.npz"))
    assert Changes.load(str(tmp_path / "ours.npz")).table == "main"
    assert Changes.load(tmp_path / "ours.npz", table="another").table == "another"


def test_a_record_batch_is_as_good_as_a_table() -> None:
    rows, gone = Changes("main", KEYS, ROWS, gone=KEYS[:0]).to_arrow()
    (batch,) = rows.to_batches()
    found = Changes.from_arrow(batch, gone)
    assert (found.table, found.keys.tolist(), found.rows.tolist()) == ("main", KEYS.tolist(), ROWS.tolist())
    with pytest.raises(TypeError, match="rows: expected an Arrow table, got dict"):
        Changes.from_arrow({"key": KEYS, "row": ROWS})


def test_ticks_that_do_not_fit_are_refused_by_name() -> None:
    tables, counts = TableSet([OPTIONS]), np.ones(2, np.uint8)
    cut = Changes("main", KEYS, ROWS, ticks=np.array([0, 1 << 24], np.uint32), counts=counts)
    with pytest.raises(ValueError, match=r"ticks: expected 0 to 16777215, got 16777216[\s\S]*ticks % 16777216"):
        tables["main"].apply(cut)
    with pytest.raises(ValueError, match="ticks: expected 0 to 16777215"):
        tables.stage(1, None, [cut])
    assert (len(tables["main"]), tables.retained) == (0, [])
    last = np.array([0, (1 << 24) - 1], np.uint32)
    tables.stage(1, None, replace(cut, ticks=last))
    (found,) = tables.changed(None, 1, parts=1024)
    assert found.ticks is not None
    assert sorted(found.ticks.tolist()) == last.tolist()


@pytest.mark.parametrize(
    ("arrays", "advice"),
    [
        ({"counts": np.array([1, 256]), "ticks": KEYS}, r"counts go from 1 to 256[\s\S]*help: counts saturate at 255"),
        ({"counts": KEYS, "ticks": np.array([1, 1 << 32])}, r"ticks go from[\s\S]*help: ticks wrap around"),
        ({"keys": np.array([-1, 1])}, r"keys go from -1[\s\S]*help: [\s\S]*keys\.view"),
        ({"gone": np.array([-1, 1])}, r"gone go from -1[\s\S]*help: [\s\S]*gone\.view"),
    ],
)
def test_numbers_that_do_not_fit_come_with_advice_of_their_own(
    arrays: dict[str, Any], advice: str, tmp_path: Path
) -> None:
    with pytest.raises(BadRecord, match=advice):
        Changes.load(_saved(tmp_path / "theirs.npz", **arrays))


@pytest.mark.parametrize("text", [b"keys,rows\n1,2\n", b"", b"\x80\x04\x95."])
def test_nobody_is_told_to_trust_a_file(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "rows.npz").write_bytes(text)
    with pytest.raises(BadRecord, match=r"rows\.npz is not an `\.npz` file: it begins with") as caught:
        Changes.load(tmp_path / "rows.npz")
    told = str(caught.value).replace(str(tmp_path), "")
    assert "trust" not in told
    assert "pickle" not in told


@pytest.mark.parametrize("row_type", ["float16", "int8"])
def test_rows_of_another_type_are_told_how_to_become_floats(row_type: Any) -> None:
    numbers, scales = encode_rows(ROWS, row_type)
    changes, table = Changes("main", KEYS, numbers, scales), _table()
    with pytest.raises(TypeError, match=rf"rows: expected a C-contiguous float32 array, got {row_type} .*floats\(\)"):
        table.apply(changes)
    table.apply(replace(changes, rows=changes.floats(), scales=None))
    np.testing.assert_allclose(table.lookup(KEYS), ROWS, rtol=1e-2)
    other = _table(optimizer=None, row_type="int8" if row_type == "float16" else "float16")
    with pytest.raises(TypeError, match=r"rows: expected a C-contiguous float32 or .*floats\(\)"):
        other.apply(changes)


@pytest.mark.parametrize(("taught", "taken"), [(Adam(), Adagrad()), (Adagrad(), Adam())])
def test_state_of_another_optimizer_is_told_how_to_go(taught: Optimizer, taken: Optimizer) -> None:
    teacher = TableSet([msgspec.structs.replace(OPTIONS, optimizer=taught)])
    teacher["main"].push(KEYS, ROWS, now_ms=0)
    teacher.seal(1)
    (changes,) = teacher.changed(None, 1, parts=1024)
    table = _table(optimizer=taken)
    with pytest.raises(ValueError, match=r"state: expected the shape .*another optimizer.*state=None"):
        table.apply(changes)
    table.apply(replace(changes, state=None))
    assert len(table) == 2


_ITEM = small_app().features.pack
_WRONG: dict[str, tuple[type[Exception], str, Callable[[], Any]]] = {
    "a dictionary": (TypeError, "changes: expected Changes, got dict", lambda: _table().apply({"keys": KEYS})),  # type: ignore[arg-type]
    "a name for a spec": (ConfigError, "spec is 't': expected a TableSpec", lambda: TableOptions("t", 5)),  # type: ignore[arg-type]
    "options alone": (TypeError, "options: expected a list of TableOptions", lambda: TableSet(OPTIONS)),  # type: ignore[arg-type]
    "a list of names": (TypeError, "options: expected a list of TableOptions", lambda: TableSet(["t"])),  # type: ignore[list-item]
    "both sides": (
        TypeError, "side: expected `features.pack.user` or",
        lambda: Packing(_ITEM, TableSet([OPTIONS])),  # type: ignore[arg-type]
    ),
    "a run of one": (TypeError, r"admit: expected pairs \(end, threshold\), got 3", lambda: _push(admit=[3, 3])),
    "a run of three": (TypeError, r"admit: expected pairs .*got \(1, 2, 3\)", lambda: _push(admit=[(1, 2, 3)])),
    "a text for a rate": (TypeError, "rate_scale: expected a number, got 'x'", lambda: _push(rate_scale="x")),
    "no expiry": (
        TypeError, "expiry: expected an Expiry, got dict",
        lambda: _table().expire({}, now_ms=0, budget_keys=1),  # type: ignore[arg-type]
    ),
    "an optimizer that is none": (ConfigError, "optimizer is 5", lambda: msgspec.structs.replace(OPTIONS, optimizer=5)),
}  # fmt: skip


def _push(**changed: Any) -> Any:
    return _table().push(KEYS, ROWS, now_ms=0, **changed)


@pytest.mark.parametrize("what", _WRONG)
def test_an_argument_of_another_kind_is_named(what: str) -> None:
    kind, match, call = _WRONG[what]
    with pytest.raises(kind, match=match):
        call()


def test_a_rate_may_be_scaled_by_any_number() -> None:
    for rate_scale in (np.float32(0.5), np.float64(0.5), 1, np.int64(1)):
        assert _push(rate_scale=rate_scale).learned == 2


def test_a_set_is_looked_through_by_the_names_of_its_tables() -> None:
    tables = TableSet([OPTIONS, msgspec.structs.replace(OPTIONS, spec=TableSpec("other", 2, 0.0))])
    assert (list(tables), len(tables)) == (["main", "other"], 2)
    assert "main" in tables
    assert "third" not in tables
    table = tables["main"]
    assert (len(table), bool(table)) == (0, True)
    table.put(KEYS, ROWS)
    assert len(table) == 2
    table.remove(KEYS[:1])
    assert len(table) == 1


def test_what_is_printed_is_short() -> None:
    tables = TableSet([OPTIONS])
    tables["main"].put(KEYS, ROWS)
    tables.seal(7)
    assert repr(tables["main"]) == "Table('main', keys=2, float32, dim=4)"
    assert repr(tables) == "TableSet(main; retained=[], sealed=7, active=None)"
    changes = Changes("main", KEYS, ROWS, gone=KEYS[:1])
    assert repr(changes) == "Changes('main', keys=2, gone=1, float32, dim=4)"
    assert repr(Changes("", KEYS, encode_rows(ROWS, "int8")[0])) == "Changes('', keys=2, gone=0, int8, dim=4)"
    assert repr(Changes("", KEYS, [1.0])) == "Changes('', keys=2, gone=0, list, dim=1)"  # type: ignore[arg-type]


def test_gradients_and_rows_that_are_no_numbers_do_what_is_documented() -> None:
    gradients = np.array([[np.nan, 1, 1, 1], [np.inf, 1, 1, 1]], np.float32)
    plain, clipped = _table(optimizer=Sgd(1.0)), _table(optimizer=Sgd(1.0, clip_norm=1.0))
    bounded = _table(optimizer=Sgd(1.0, clip_norm=1.0, clip_value=1.0))
    for table in (plain, clipped, bounded):
        table.push(KEYS, gradients, now_ms=0)
    np.testing.assert_array_equal(plain.lookup(KEYS), -gradients)
    # Of a norm that is infinite the share is zero, and infinity times zero is no number.
    assert np.isnan(clipped.lookup(KEYS)[1]).tolist() == [True, False, False, False]
    assert np.isfinite(bounded.lookup(KEYS)[1]).all()
    wide = np.array([[1e6, -1e6, np.inf, np.nan]], np.float32)
    halves, _ = encode_rows(wide, "float16")
    np.testing.assert_array_equal(halves, np.array([[65504, -65504, np.inf, np.nan]], np.float16))
    numbers, scales = encode_rows(wide, "int8")
    assert np.isnan(Changes("", KEYS[:1], numbers, scales).floats()).all()


def test_the_largest_table_there_may_be_is_told_before_it_is_made() -> None:
    # One number of state is kept beside when a row was used, and not with the embedding.
    assert TableOptions(TableSpec("main", 1_024, 0.0), 1 << 31, optimizer=RowwiseAdagrad()).rows_max == 1 << 31
    with pytest.raises(ConfigError, match="bytes of address space"):
        TableOptions(TableSpec("main", 1_024, 0.0), 1 << 31, optimizer=Adam())
