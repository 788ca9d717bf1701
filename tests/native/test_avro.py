"""Avro columns by example: names, values, resolution, and what is refused."""

from __future__ import annotations

import io
import itertools
import json
import threading
from typing import Any

import fastavro
import numpy as np
import pytest

from streamlearn.native import native

EVENT: dict[str, Any] = {
    "type": "record",
    "name": "Event",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "at_ms", "type": "long"},
        {"name": "seen", "type": "boolean", "default": True},
        {"name": "device", "type": {"type": "enum", "name": "Device", "symbols": ["PHONE", "TV"]}},
        {
            "name": "items",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Item",
                    "fields": [
                        {"name": "video_id", "type": "long"},
                        {"name": "score", "type": ["null", "float"]},
                        {"name": "tags", "type": {"type": "array", "items": "string"}, "default": ["new"]},
                    ],
                },
            },
        },
    ],
}
ROWS: list[dict[str, Any]] = [
    {
        "id": "ä",
        "at_ms": 5,
        "seen": False,
        "device": "TV",
        "items": [
            {"video_id": 7, "score": 0.5, "tags": ["x", ""]},
            {"video_id": 8, "score": None, "tags": []},
        ],
    },
    {"id": "", "at_ms": -1, "seen": True, "device": "PHONE", "items": []},
]
COLUMNS: dict[str, Any] = {
    "id": np.frombuffer("ä".encode(), np.uint8),
    "id$": np.array([0, 2, 2], np.int32),
    "at_ms": np.array([5, -1], np.int64),
    "seen": np.array([False, True]),
    "device": np.array([1, 0], np.int32),
    "items[]": np.array([0, 2, 2], np.int32),
    "items.video_id": np.array([7, 8], np.int64),
    "items.score?": np.array([1, 0], np.uint8),
    "items.score": np.array([0.5, 0], np.float32),
    "items.tags[]": np.array([0, 2, 2], np.int32),
    "items.tags": np.frombuffer(b"x", np.uint8),
    "items.tags$": np.array([0, 1, 1], np.int32),
}


def record(fields: list[tuple[str, Any]], **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": n, "type": t} for n, t in fields], **more}


def plan(writer: Any, reader: Any = None) -> Any:
    return native.AvroPlan(json.dumps(writer), json.dumps(writer if reader is None else reader))


def write(schema: Any, rows: list[dict[str, Any]]) -> list[bytes]:
    parsed = fastavro.parse_schema(schema)
    written = []
    for row in rows:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, row)
        written.append(out.getvalue())
    return written


def same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert list(found) == list(expected)
    for name, column in expected.items():
        assert found[name].dtype == column.dtype, name
        assert found[name].tolist() == column.tolist(), name


def split(buffer: Any, offsets: Any) -> list[bytes]:
    return [buffer[start:end].tobytes() for start, end in itertools.pairwise(offsets.tolist())]


def test_a_plan_names_its_columns_by_path_and_mark() -> None:
    found = native.AvroPlan(json.dumps(EVENT)).columns
    assert found == [(name, str(column.dtype)) for name, column in COLUMNS.items()]


def test_arrays_and_nullables_within_one_another_keep_their_marks_apart() -> None:
    longs = {"type": "array", "items": ["null", "long"]}
    schema = record([("x", ["null", {"type": "array", "items": longs}]), ("n", "null")])
    found = plan(schema)
    assert [name for name, _ in found.columns] == ["x?", "x[]", "x[][]", "x[][]?", "x"]
    rows: list[Any] = [{"x": [[1, None], []], "n": None}, {"x": None, "n": None}, {"x": [[3]], "n": None}]
    columns, _, failures = found.decode_list(write(schema, rows))
    assert failures == []
    expected = [[1, 0, 1], [0, 2, 2, 3], [0, 2, 2, 3], [1, 0, 1], [1, 0, 3]]
    assert [column.tolist() for column in columns.values()] == expected
    assert split(*found.encode(columns, 3)) == write(schema, rows)


def test_records_become_columns_and_columns_records() -> None:
    records = write(EVENT, ROWS)
    buffer = np.frombuffer(b"".join(records), np.uint8)
    ends = np.cumsum([len(piece) for piece in records])
    columns, rows, failures = plan(EVENT).decode(buffer, ends - [len(piece) for piece in records], ends)
    same(columns, COLUMNS)
    assert rows.tolist() == [0, 1]
    assert failures == []
    assert split(*plan(EVENT).encode(COLUMNS, 2)) == records


def test_headers_are_skipped_and_prefixes_written() -> None:
    header = b"\xc3\x01" + bytes(8)
    records = split(*plan(EVENT).encode(COLUMNS, 2, header))
    assert records == [header + body for body in write(EVENT, ROWS)]
    columns, rows, failures = plan(EVENT).decode_list([*records, b"\xc3\x01"], skip=10)
    same(columns, COLUMNS)
    assert (rows.tolist(), failures) == ([0, 1], [(2, "2 bytes, fewer than the 10 to skip")])


def test_no_records_are_empty_columns() -> None:
    columns, rows, failures = plan(EVENT).decode_list([])
    assert {name: len(column) for name, column in columns.items() if len(column)} == {
        "id$": 1,
        "items[]": 1,
        "items.tags[]": 1,
        "items.tags$": 1,
    }
    assert (len(rows), failures) == (0, [])
    assert split(*plan(EVENT).encode(columns, 0)) == []


def test_a_bad_record_is_named_and_its_neighbours_stay() -> None:
    first, last = write(EVENT, ROWS)
    bad = first[:-3] + b"\xff" + first[-2:]
    columns, rows, failures = plan(EVENT).decode_list([first, bad, b"", last])
    same(columns, COLUMNS)
    assert rows.tolist() == [0, 3]
    assert [index for index, _ in failures] == [1, 2]
    assert failures[0][1].startswith("items.")
    assert failures[1][1] == "id: truncated inside an integer (at byte 0)"


def reader_fields(*fields: dict[str, Any], name: str = "Event") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def decoded(writer: Any, reader: Any, rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    columns, _, failures = plan(writer, reader).decode_list(write(writer, rows))
    assert failures == []
    return {name: column.tolist() for name, column in columns.items()}


def test_a_reader_takes_what_it_knows_and_fills_in_what_the_writer_lacks() -> None:
    inner = record([("a", "int"), ("b", ["null", "string"])], name="Inner")
    default = [{"a": 3, "b": None}, {"a": 4, "b": "é"}]
    reader = reader_fields(
        {"name": "when", "aliases": ["at_ms"], "type": ["null", "double"]},
        {"name": "new", "type": {"type": "array", "items": inner}, "default": default},
        {"name": "raw", "type": "bytes", "default": "\u00ff"},
    )
    assert decoded(EVENT, reader, ROWS) == {
        "when?": [1, 1],
        "when": [5.0, -1.0],
        "new[]": [0, 2, 4],
        "new.a": [3, 4, 3, 4],
        "new.b?": [0, 1, 0, 1],
        "new.b": list("éé".encode()),
        "new.b$": [0, 0, 2, 2, 4],
        "raw": [255, 255],
        "raw$": [0, 1, 2],
    }


def test_null_where_the_reader_wants_a_value_fails_that_record_alone() -> None:
    writer, reader = record([("x", ["null", "int"])]), record([("x", "long")])
    columns, rows, failures = plan(writer, reader).decode_list(write(writer, [{"x": 1}, {"x": None}, {"x": 3}]))
    assert (columns["x"].tolist(), rows.tolist()) == ([1, 3], [0, 2])
    assert failures == [(1, "x: null cannot become long (at byte 1)")]


def test_symbols_are_matched_by_name() -> None:
    def enum(symbols: list[str], **more: Any) -> dict[str, Any]:
        return record([("e", {"type": "enum", "name": "E", "symbols": symbols, **more})])

    writer = enum(["A", "B", "C"])
    records = write(writer, [{"e": symbol} for symbol in "ABC"])
    columns, rows, failures = plan(writer, enum(["C", "A"])).decode_list(records)
    assert (columns["e"].tolist(), rows.tolist()) == ([1, 0], [0, 2])
    assert failures == [(1, "e: the reader has no symbol 'B' (at byte 1)")]
    columns, _, failures = plan(writer, enum(["C", "OTHER"], default="OTHER")).decode_list(records)
    assert (columns["e"].tolist(), failures) == ([1, 1, 0], [])


def test_the_branches_of_a_union_are_resolved_one_by_one() -> None:
    writer, reader = record([("x", ["null", "int", "string", "float"])]), record([("x", ["double", "null"])])
    rows: list[dict[str, Any]] = [{"x": 1}, {"x": "a"}, {"x": None}, {"x": 0.5}]
    columns, kept, failures = plan(writer, reader).decode_list(write(writer, rows))
    assert (columns["x?"].tolist(), columns["x"].tolist(), kept.tolist()) == (
        [1, 0, 1],
        [1, 0, 0.5],
        [0, 2, 3],
    )
    assert failures == [(1, "x: string cannot become union of double, null (at byte 1)")]
    with pytest.raises(ValueError, match="'x': union of null, int, string, float cannot become boolean"):
        plan(writer, record([("x", "boolean")]))


def test_every_avro_type_can_be_skipped() -> None:
    general = ["null", "string", {"type": "map", "values": "long"}, {"type": "fixed", "name": "F", "size": 3}]
    maps = {"type": "map", "values": {"type": "array", "items": general}}
    writer = record([("m", maps), ("f", "F"), ("u", ["F", "long"]), ("x", "int")])
    rows = [{"m": {"k": [None, "s", {"a": 1}, b"abc"]}, "f": b"def", "u": 2, "x": 9}]
    assert decoded(writer, record([("x", "int")]), rows) == {"x": [9]}


BAD_PLANS = [
    ("{", EVENT, "writer schema: not JSON: EOF while parsing an object at line 1 column 1"),
    ('"long"', "long", "reader schema: the root must be a record, not long"),
    ({**EVENT, "name": "Other"}, EVENT, "record 'Other' cannot become record 'Event'"),
    (record([]), record([("x", "nothing")]), "reader schema: 'x': type 'nothing' is not defined"),
    (
        record([]),
        record([("x", {"type": "map", "values": "int"})]),
        "reader schema: 'x': map cannot become columns",
    ),
    (
        record([]),
        record([("a", {"type": "array", "items": record([("x", ["int", "string"])], name="I")})]),
        "reader schema: 'a.x': a union must be null and one other type, not int, string",
    ),
    (record([("x", "string")]), record([("x", "long")]), "'x': string cannot become long"),
    (
        record([("y", "int")]),
        record([("x", "long")]),
        "'x': the reader's record 'R' has this field without a default and the writer's record 'R' lacks it",
    ),
    (
        record([]),
        reader_fields({"name": "x", "type": "int", "default": "a"}),
        "'x': default: \"a\" is not a 32-bit",
    ),
    (
        record([("x", "int"), ("x", "int")]),
        EVENT,
        "writer schema: record 'R': field 'x' is not a valid name, or occurs twice",
    ),
]


@pytest.mark.parametrize(("writer", "reader", "reason"), BAD_PLANS)
def test_a_plan_that_cannot_be_is_refused_with_its_path(writer: Any, reader: Any, reason: str) -> None:
    texts = [
        schema if isinstance(schema, str) and schema[0] in '{"' else json.dumps(schema) for schema in (writer, reader)
    ]
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is looked into below
        native.AvroPlan(*texts)
    assert reason in str(caught.value)


def changed(**columns: Any) -> dict[str, Any]:
    return COLUMNS | {name.replace("__", "."): column for name, column in columns.items()}


BAD_COLUMNS: list[tuple[dict[str, Any], type[Exception], str]] = [
    (changed(at_ms=np.zeros(3, np.int64)), ValueError, "column 'at_ms': 3 values, expected 2"),
    (
        changed(at_ms=np.zeros(2, np.float32)),
        TypeError,
        "column 'at_ms': expected a C-contiguous 1-D int64 array, got float32 of shape (2,)",
    ),
    (
        changed(seen=[True, False]),
        TypeError,
        "column 'seen': expected a C-contiguous 1-D bool or uint8 array, got list",
    ),
    (changed(seen=np.array([0, 2], np.uint8)), ValueError, "column 'seen': index 1 is 2, not 0 or 1"),
    (
        changed(device=np.array([0, 2], np.int32)),
        ValueError,
        "column 'device': index 1 is 2, expected a symbol below 2",
    ),
    (
        changed(device=np.array([-1, 0], np.int32)),
        ValueError,
        "column 'device': index 0 is -1, expected a symbol below 2",
    ),
    (
        changed(**{"items[]": np.array([0, 3, 2], np.int32)}),
        ValueError,
        "column 'items[]': offsets[2] is 2, less than 3 before it",
    ),
    (
        changed(items__video_id=np.zeros(3, np.int64)),
        ValueError,
        "column 'items.video_id': 3 values, expected 2",
    ),
    (
        changed(**{"id$": np.array([0, 2, 3], np.int32)}),
        ValueError,
        "column 'id$': offsets[2] is 3 and must be 2, the length of the data",
    ),
    (changed(**{"id$": np.array([0, 1, 2], np.int32)}), ValueError, "column 'id': index 0 is not UTF-8"),
    (changed(id=np.array([65, 255], np.uint8)), ValueError, "column 'id': index 0 is not UTF-8"),
    (changed(other=np.zeros(2)), ValueError, "column 'other': the schema has no such column"),
]


@pytest.mark.parametrize(("columns", "kind", "reason"), BAD_COLUMNS, ids=[reason for *_, reason in BAD_COLUMNS])
def test_columns_that_are_no_records_are_refused_by_name(
    columns: dict[str, Any], kind: type[Exception], reason: str
) -> None:
    with pytest.raises(kind) as caught:
        plan(EVENT).encode(columns, 2)
    assert str(caught.value) == reason


def test_a_missing_column_is_its_default_or_an_error() -> None:
    given = {name: column for name, column in COLUMNS.items() if name != "seen" and "tags" not in name}
    expected = [dict(row, seen=True, items=[dict(item, tags=["new"]) for item in row["items"]]) for row in ROWS]
    assert split(*plan(EVENT).encode(given, 2)) == write(EVENT, expected)
    for name in ("at_ms", "id$", "items[]", "items.score?", "device"):
        rest = {key: column for key, column in COLUMNS.items() if key != name}
        with pytest.raises(ValueError, match="missing, and its field has no default") as caught:
            plan(EVENT).encode(rest, 2)
        assert f"'{name}'" in str(caught.value)
    half = {name: column for name, column in COLUMNS.items() if name != "items.tags$"}
    with pytest.raises(ValueError, match=r"^column 'items\.tags\$': missing"):
        plan(EVENT).encode(half, 2)


def test_only_a_plan_of_one_schema_encodes() -> None:
    reader = reader_fields({"name": "at_ms", "type": "long"})
    with pytest.raises(ValueError, match="make a plan with the same schema twice"):
        plan(EVENT, reader).encode({"at_ms": np.zeros(1, np.int64)}, 1)


def test_more_rows_than_memory_are_refused() -> None:
    for rows in (2**62, 2**64 - 1):
        with pytest.raises(ValueError, match="rows"):
            plan(record([])).encode({}, rows)


def test_spans_must_lie_inside_the_buffer() -> None:
    buffer = np.zeros(10, np.uint8)
    for start, end in [(0, 11), (-1, 5), (6, 5), (11, 11), (0, -1)]:
        with pytest.raises(ValueError, match=r"^span 1: \["):
            plan(record([])).decode(buffer, np.array([0, start]), np.array([0, end]))
    with pytest.raises(ValueError, match=r"^starts and ends: 1 and 2 values"):
        plan(record([])).decode(buffer, np.array([0]), np.array([0, 1]))


def test_arguments_of_decode_are_refused_by_name() -> None:
    spans = np.zeros(1, np.int64)
    with pytest.raises(TypeError, match=r"^buffer: expected a C-contiguous 1-D uint8 array, got bytes$"):
        plan(EVENT).decode(b"", spans, spans)
    with pytest.raises(TypeError, match=r"^ends: expected a C-contiguous 1-D int64 array, got int32 of shape"):
        plan(EVENT).decode(np.zeros(0, np.uint8), spans, spans.astype(np.int32))
    with pytest.raises(TypeError, match=r"^records\[1\]: expected bytes, got str$"):
        plan(EVENT).decode_list([b"", "a"])


def test_items_of_every_kind_are_bounded_by_a_limit() -> None:
    longs = plan(record([("n", {"type": "array", "items": "long"})]))
    columns, _, failures = longs.decode_list([b"\x04\x02\x02\x00", b"\x04\x02\x02\x04\x02\x02\x00"], items_max=3)
    assert columns["n[]"].tolist() == [0, 2]
    assert failures == [(1, "n: more than 3 items (at byte 4)")]


def test_items_without_bytes_are_bounded_by_a_limit() -> None:
    nulls = plan(record([("n", {"type": "array", "items": "null"})]))
    columns, _, failures = nulls.decode_list([b"\x06\x00", b"\x08\x00"], items_max=3)
    assert columns["n[]"].tolist() == [0, 3]
    assert failures == [(1, "n: more than 3 items (at byte 1)")]


def test_threads_may_share_a_plan() -> None:
    shared, records, found = plan(EVENT), write(EVENT, ROWS) * 500, []

    def work() -> None:
        columns, rows, _ = shared.decode_list(records)
        found.append(split(*shared.encode(columns, len(rows))) == records)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert found == [True] * 4
