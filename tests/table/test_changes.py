"""Changes through Arrow and npz files, ours and other systems', and hostile ones."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pyarrow import parquet

from streamlearn.errors import BadRecord, VersionRefused
from streamlearn.features import TableSpec
from streamlearn.table import Adagrad, Changes, RowType, TableOptions, TableSet
from streamlearn.table.changes import encode_rows

ROW_TYPES: tuple[RowType, ...] = get_args(RowType)
KEYS = np.array([0, (1 << 64) - 1, 1 << 63, 7], np.uint64)
ROWS = np.array([[0.5, -0.0, 3e-9], [1, 2, 3], [-7, 65504, 0], [1e-3, -1e-3, 0.1]], np.float32)


def _options(row_type: RowType = "float32") -> TableOptions:
    optimizer = Adagrad() if row_type == "float32" else None
    return TableOptions(TableSpec("main", 3, 0.05), rows_max=1_000, optimizer=optimizer, row_type=row_type)


def _exported(row_type: RowType) -> Changes:
    """What one version changed in a table: rows, and a key that is gone."""
    tables = TableSet([_options(row_type)])
    tables["main"].put(np.array([99], np.uint64), ROWS[:1])
    tables.seal(1)
    tables.commit(1)
    tables["main"].put(KEYS, ROWS)
    tables["main"].remove(np.array([99], np.uint64))
    tables.seal(2)
    (changes,) = tables.changed(1, 2, parts=1024)
    return changes


def _assert_equal(found: Changes, expected: Changes) -> None:
    for field in fields(Changes):
        one, other = getattr(found, field.name), getattr(expected, field.name)
        if isinstance(other, np.ndarray):
            assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes()), field.name
        else:
            assert one == other, field.name


def _staged(changes: Changes, row_type: RowType = "float32") -> npt.NDArray[np.float32]:
    tables = TableSet([_options(row_type)])
    tables.stage(1, None, [replace(changes, table="main", gone=None)])
    return tables["main"].lookup(KEYS)


def test_a_first_version_has_nothing_that_could_go() -> None:
    tables = TableSet([_options("float32")])
    with pytest.raises(VersionRefused, match="cannot remove key 99 in the first version"):
        tables.stage(1, None, [_exported("float32")])
    assert (tables.retained, tables["main"].stats().keys) == ([], 0)


@pytest.mark.parametrize("row_type", ROW_TYPES)
def test_changes_come_back_from_a_file_as_they_were(row_type: RowType, tmp_path: Path) -> None:
    changes = _exported(row_type)
    assert changes.gone is not None
    assert changes.gone.tolist() == [99]
    changes.save(tmp_path / "rows.npz")
    _assert_equal(Changes.load(tmp_path / "rows.npz"), changes)
    bare = Changes("", KEYS, ROWS)
    bare.save(tmp_path / "bare")
    _assert_equal(Changes.load(tmp_path / "bare"), bare)


@pytest.mark.parametrize("row_type", ROW_TYPES)
def test_changes_come_back_from_arrow_as_they_were(row_type: RowType, tmp_path: Path) -> None:
    changes = _exported(row_type)
    rows, gone = changes.to_arrow()
    # A table that has no state has no column for it.
    expected = changes if row_type == "float32" else replace(changes, state=None)
    _assert_equal(Changes.from_arrow(rows, gone), expected)
    parquet.write_table(rows, tmp_path / "rows.parquet")
    _assert_equal(Changes.from_arrow(parquet.read_table(tmp_path / "rows.parquet"), gone), expected)
    chunked = pa.concat_tables([rows.slice(0, 1), rows.slice(1, 0), rows.slice(1)])
    _assert_equal(Changes.from_arrow(chunked, pa.chunked_array([gone[:0], gone])), expected)
    none = Changes.from_arrow(rows.slice(0, 0))
    assert (len(none), none.rows.shape, none.gone) == (0, (0, 3), None)
    assert Changes.from_arrow(rows, table="another").table == "another"


@pytest.mark.parametrize("row_type", ROW_TYPES)
def test_rows_as_floats_are_what_a_table_reads(row_type: RowType) -> None:
    changes = _exported(row_type)
    at = [changes.keys.tolist().index(key) for key in KEYS.tolist()]
    assert changes.floats()[at].tobytes() == _staged(changes, row_type).tobytes()
    numbers, scales = encode_rows(ROWS, row_type)
    assert numbers[:, :].tobytes() == changes.rows[at].tobytes()
    assert (scales is None) == (changes.scales is None) == (row_type != "int8")


@pytest.mark.parametrize("kind", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", ">u8", ">i4"])
def test_whole_numbers_of_any_type_are_keys(kind: str, tmp_path: Path) -> None:
    keys = np.array([3, 100], kind)
    np.savez(tmp_path / "rows.npz", keys=keys, rows=ROWS[:2], gone=keys[:0], ticks=keys, counts=keys)
    found = Changes.load(tmp_path / "rows.npz")
    assert found.ticks is not None
    assert found.counts is not None
    assert (found.keys.dtype, found.keys.tolist()) == (np.dtype(np.uint64), [3, 100])
    assert (found.ticks.dtype, found.counts.dtype) == (np.dtype(np.uint32), np.dtype(np.uint8))
    assert found.counts.tolist() == found.ticks.tolist() == [3, 100]
    if not kind.startswith(">"):
        table = pa.table({"key": pa.array(keys), "row": pa.array(ROWS[:2].tolist(), pa.list_(pa.float32(), 3))})
        assert Changes.from_arrow(table).keys.tolist() == [3, 100]


@pytest.mark.parametrize("kind", ["float64", ">f4", ">f8", "float16", ">f2"])
def test_rows_of_other_floats_are_taken_as_the_nearest_ones(kind: str, tmp_path: Path) -> None:
    given_rows = ROWS.astype(kind)
    np.savez(tmp_path / "rows.npz", keys=KEYS, rows=np.asfortranarray(given_rows))
    found = Changes.load(tmp_path / "rows.npz")
    expected = given_rows.astype(np.float16 if kind.endswith("f2") or kind == "float16" else np.float32)
    assert (found.rows.dtype, found.rows.tobytes()) == (expected.dtype, expected.tobytes())
    if expected.dtype == np.float16:
        assert _staged(found, "float16").tobytes() == expected.astype(np.float32).tobytes()
    else:
        assert _staged(found).tobytes() == expected.tobytes()


@pytest.mark.parametrize("lists", [pa.list_(pa.float64()), pa.large_list(pa.float32()), pa.list_(pa.float64(), 3)])
def test_lists_of_one_length_are_rows_in_any_chunks(lists: pa.DataType) -> None:
    rows = pa.chunked_array(
        [pa.array(ROWS[:1].tolist(), lists), pa.array([], lists), pa.array(ROWS[1:].tolist(), lists)]
    )
    keys = pa.chunked_array([pa.array(KEYS[:3]), pa.array(KEYS[3:])])
    table = pa.table({"key": keys, "row": rows, "note": pa.array(["a", "b", "c", None])})
    assert _staged(Changes.from_arrow(table)).tobytes() == ROWS.tobytes()
    cut = Changes.from_arrow(table.slice(1, 2))
    assert (cut.keys.tolist(), cut.rows.tolist()) == (KEYS[1:3].tolist(), ROWS[1:3].tolist())


_BAD_ARRAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "no keys": ("`keys` and `rows` are required", {"keys": None}),
    "no rows": ("`keys` and `rows` are required", {"rows": None}),
    "an array nobody knows": ("the known arrays are", {"weights": ROWS}),
    "keys below zero": ("keys go from -1", {"keys": np.array([-1, 1, 2, 3])}),
    "keys that are floats": ("keys are float64", {"keys": np.arange(4.0)}),
    "keys that are texts": ("keys are <U1", {"keys": np.array(list("abcd"))}),
    "keys of two dimensions": ("the shape", {"keys": KEYS[None]}),
    "one key": ("the shape", {"keys": np.array(5, np.uint64)}),
    "fewer keys": ("the shape", {"keys": KEYS[1:]}),
    "rows of one dimension": ("the shape", {"rows": ROWS.reshape(-1)}),
    "rows that are whole numbers": ("rows are int32", {"rows": ROWS.astype(np.int32)}),
    "rows that are complex": ("rows are complex64", {"rows": ROWS.astype(np.complex64)}),
    "rows beyond float32": ("beyond", {"rows": ROWS.astype(np.float64) * 1e300}),
    "int8 without scales": ("scales are not given", {"rows": np.ones((4, 3), np.int8)}),
    "scales of floats": ("scales are given", {"scales": np.ones(4, np.float32)}),
    "fewer scales": ("the shape", {"rows": np.ones((4, 3), np.int8), "scales": np.ones(3, np.float32)}),
    "scales that are whole": ("scales are int8", {"rows": np.ones((4, 3), np.int8), "scales": np.ones(4, np.int8)}),
    "state of one dimension": ("the shape", {"state": np.ones(4, np.float32)}),
    "state of other rows": ("the shape", {"state": np.ones((3, 3), np.float32)}),
    "ticks alone": ("ticks are given alone", {"ticks": np.ones(4, np.uint32)}),
    "counts alone": ("counts are given alone", {"counts": np.ones(4, np.uint8)}),
    "counts beyond a byte": ("beyond the range of uint8", {"counts": np.full(4, 256), "ticks": np.ones(4, np.uint32)}),
    "ticks beyond 32 bits": (
        "beyond the range of uint32",
        {"counts": np.ones(4, np.uint8), "ticks": np.full(4, 1 << 32)},
    ),
    "gone of two dimensions": ("the shape", {"gone": KEYS[None]}),
    "gone below zero": ("gone go from", {"gone": np.array([-5])}),
    "objects": ("Object arrays cannot be loaded", {"rows": np.array([[{}]], object)}),
}


@pytest.mark.parametrize("what", _BAD_ARRAYS)
def test_arrays_that_would_be_other_numbers_here_are_refused(what: str, tmp_path: Path) -> None:
    match, changed = _BAD_ARRAYS[what]
    arrays = {name: array for name, array in {"keys": KEYS, "rows": ROWS, **changed}.items() if array is not None}
    np.savez(tmp_path / "rows.npz", **arrays)
    with pytest.raises(BadRecord, match=match):
        Changes.load(tmp_path / "rows.npz")


def _fixed(rows: Any, kind: pa.DataType | None = None) -> pa.Array:
    return pa.array(rows, pa.list_(kind or pa.float32(), 3))


_GOOD_COLUMNS = {"key": pa.array(KEYS), "row": _fixed(ROWS.tolist())}
_BAD_COLUMNS: dict[str, tuple[str, dict[str, Any]]] = {
    "no keys": ("once each", {"key": None}),
    "no rows": ("once each", {"row": None}),
    "a null key": ("'key' has 1 nulls", {"key": pa.array([1, 2, None, 4], pa.uint64())}),
    "a null row": ("'row' has 1 nulls", {"row": _fixed([[1, 2, 3]] * 3 + [None])}),
    "a null in a row": ("'row' has 1 nulls", {"row": _fixed([[1, 2, 3]] * 3 + [[1, None, 3]])}),
    "keys that are texts": ("'key' is string", {"key": pa.array(list("1234"))}),
    "keys that are floats": ("keys are float", {"key": pa.array([1.0, 2, 3, 4])}),
    "keys that are bools": ("'key' is bool", {"key": pa.array([True] * 4)}),
    "keys that are times": ("'key' is timestamp", {"key": pa.array([1] * 4, pa.timestamp("ms"))}),
    "keys below zero": ("keys go from -4", {"key": pa.array([-4, 3, 2, 1])}),
    "rows that are numbers": ("'row' is float", {"row": pa.array([1.0] * 4, pa.float32())}),
    "rows of texts": ("'row' is string", {"row": _fixed([["a"] * 3] * 4, pa.string())}),
    "rows of lists": ("'row' is fixed_size_list", {"row": _fixed([[[1.0]] * 3] * 4, pa.list_(pa.float32(), 1))}),
    "rows of several lengths": ("lists of 1 to 2", {"row": pa.array([[1.0], [1.0, 2.0], [1.0], [1.0]])}),
    "texts beside": ("'tick' is string", {"tick": pa.array(list("abcd")), "count": pa.array([1] * 4)}),
    "scales of a wrong type": ("'scale' is string", {"scale": pa.array(list("abcd"))}),
}


@pytest.mark.parametrize("what", _BAD_COLUMNS)
def test_columns_that_would_be_other_numbers_here_are_refused(what: str) -> None:
    match, changed = _BAD_COLUMNS[what]
    columns = {name: column for name, column in {**_GOOD_COLUMNS, **changed}.items() if column is not None}
    with pytest.raises(BadRecord, match=match):
        Changes.from_arrow(pa.table(columns))


def test_a_column_that_is_there_twice_and_gone_keys_of_nothing_are_refused() -> None:
    table = pa.table(_GOOD_COLUMNS)
    with pytest.raises(BadRecord, match="once each"):
        Changes.from_arrow(table.append_column("key", pa.array(KEYS)))
    for gone in (pa.array([1, None], pa.uint64()), pa.array(["a"]), pa.array([-1]), pa.array([True])):
        with pytest.raises(BadRecord, match="gone"):
            Changes.from_arrow(table, gone)
    named = table.replace_schema_metadata({"table": b"\xff"})
    assert Changes.from_arrow(named, pa.array([5])).table == "�"


def _saved(tmp_path: Path) -> bytes:
    _exported("int8").save(tmp_path / "whole.npz")
    return (tmp_path / "whole.npz").read_bytes()


_HOSTILE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "text": lambda _: b"keys,rows\n1,2\n",
    "cut in the middle": lambda whole: whole[: len(whole) // 2],
    "cut at the end": lambda whole: whole[:-10],
    "a pickle": lambda _: b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00}\x94\x8c\x01a\x94K\x01s.",
    "an array alone": lambda _: b"\x93NUMPY\x01\x00v\x00{'descr': '<u8', 'fortran_order': False, 'shape': (1,), }"
    + b" " * 61 + b"\n" + b"\x00" * 8,
    "a shape beyond all memory": lambda whole: whole.replace(b"'shape': (4, 3)", b"'shape': (9" + b"9" * 3 + b")"),
    "another method of packing": lambda whole: whole.replace(b"PK\x01\x02", b"PK\x01\x07"),
}  # fmt: skip


@pytest.mark.parametrize("what", _HOSTILE)
def test_files_that_are_something_else_are_bad_records(what: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.npz"
    path.write_bytes(_HOSTILE[what](_saved(tmp_path)))
    with pytest.raises(BadRecord, match=r"rows\.npz"):
        Changes.load(path)


def test_a_file_that_is_not_there_is_not_a_bad_record(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Changes.load(tmp_path / "nowhere.npz")


@hypothesis_settings(max_examples=150, derandomize=True, database=None)
@given(st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=4))
def test_a_damaged_file_is_refused_or_reads_as_it_was(damage: list[tuple[float, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        whole = bytearray(_saved(Path(folder)))
        expected = Changes.load(Path(folder) / "whole.npz")
        for at, flip in damage:
            whole[int(at * len(whole))] ^= flip
        (Path(folder) / "damaged.npz").write_bytes(whole)
        try:
            found = Changes.load(Path(folder) / "damaged.npz")
        except BadRecord:
            return
    # What no checksum covers, such as a date in the archive, changes no number.
    assert found.keys.tobytes() == expected.keys.tobytes()
    assert found.rows.tobytes() == expected.rows.tobytes()


def _apply(row_type: RowType = "float32", **changed: Any) -> None:
    given_changes = replace(Changes("main", KEYS, ROWS), **changed)
    TableSet([_options(row_type)])["main"].apply(given_changes)


@pytest.mark.parametrize(
    ("row_type", "changed", "kind", "match"),
    [
        ("float32", {"rows": ROWS.astype(">f4")}, TypeError, "rows: expected"),
        ("float32", {"rows": ROWS.view(np.int32)}, TypeError, "rows: expected"),
        ("float32", {"rows": ROWS.astype(np.float64)}, TypeError, "rows: expected"),
        ("float16", {"rows": ROWS.astype(np.float16).view(np.int16)}, TypeError, "rows: expected"),
        ("int8", {"rows": np.ones((4, 3), np.uint8), "scales": np.ones(4, np.float32)}, TypeError, "rows: expected"),
        ("int8", {"rows": np.ones((4, 3), np.int8)}, ValueError, "scales"),
        ("float32", {"scales": np.ones(4, np.float32)}, ValueError, "scales"),
        ("int8", {"rows": np.ones((4, 3), np.int8), "scales": np.ones(3, np.float32)}, ValueError, "scales: expected"),
        ("float32", {"rows": ROWS.reshape(2, 6)}, ValueError, "rows: expected the shape"),
        ("float32", {"rows": ROWS.reshape(3, 4)}, ValueError, "rows: expected the shape"),
        ("float32", {"rows": np.asfortranarray(ROWS)}, TypeError, "non-contiguous"),
        ("float32", {"rows": ROWS.tolist()}, TypeError, "got list"),
        ("float32", {"keys": KEYS.astype(np.int64)}, TypeError, "keys: expected"),
        ("float32", {"keys": np.repeat(KEYS, 2)[::2]}, TypeError, "non-contiguous"),
        ("float32", {"gone": KEYS.astype(np.int64)}, TypeError, "gone: expected"),
        ("float32", {"gone": KEYS[None]}, ValueError, "gone: expected"),
        ("float32", {"state": np.ones((4, 2), np.float32)}, ValueError, "state: expected the shape"),
        ("float32", {"state": np.ones((3, 4), np.float32)}, ValueError, "state: expected the shape"),
        ("float32", {"state": np.ones((4, 3))}, TypeError, "state: expected"),
        ("float32", {"ticks": np.ones(4, np.uint32)}, ValueError, "counts: missing"),
        ("float32", {"counts": np.ones(4, np.uint8)}, ValueError, "ticks: missing"),
        ("float32", {"ticks": np.ones(4, np.int64), "counts": np.ones(4, np.uint8)}, TypeError, "ticks: expected"),
        ("float32", {"ticks": np.ones(4, np.uint32), "counts": np.ones(3, np.uint8)}, ValueError, "counts: expected"),
    ],
)  # fmt: skip
def test_changes_that_do_not_fit_their_table_are_refused_by_name(
    row_type: RowType, changed: dict[str, Any], kind: type[Exception], match: str
) -> None:
    with pytest.raises(kind, match=match):
        _apply(row_type, **changed)


def test_a_table_that_does_not_learn_leaves_state_aside() -> None:
    changes = _exported("float32")
    assert changes.state is not None
    assert changes.state.shape == (4, 3)
    for row_type in ("float16", "int8"):
        found = _staged(changes, row_type)
        numbers, scales = encode_rows(ROWS, row_type)
        expected = numbers.astype(np.float32) * (1 if scales is None else scales[:, None])
        assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("rows", [ROWS.reshape(-1), ROWS.astype(np.float64), np.asfortranarray(ROWS), ROWS.tolist()])
def test_rows_to_encode_are_float32_as_they_lie(rows: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="rows: expected"):
        encode_rows(rows, "int8")
