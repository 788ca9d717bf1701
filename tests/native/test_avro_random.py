"""Avro columns against fastavro: schemas, rows, evolutions and damage at random."""

from __future__ import annotations

import copy
import io
import itertools
import json
from collections.abc import Callable
from typing import Any

import fastavro
import numpy as np
from fastavro.read import SchemaResolutionError
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlearn.native import native

Draw = Callable[[st.SearchStrategy[Any]], Any]
DTYPES = {"boolean": "bool", "int": "int32", "long": "int64", "float": "float32", "double": "float64"}
LEAVES: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "string": st.text("aé火🚋", max_size=4),
    "bytes": st.binary(max_size=4),
}
PROMOTIONS = {
    "int": ["long", "float", "double"],
    "long": ["float", "double"],
    "float": ["double"],
    "string": ["bytes"],
    "bytes": ["string"],
}
DEFAULTS = {
    "boolean": True,
    "int": 3,
    "long": -4,
    "float": 0.5,
    "double": 0.25,
    "string": "é",
    "bytes": "\u00ff",
}


def draw_type(draw: Draw, names: Any, depth: int, nullable: bool = True) -> Any:
    kinds = [*LEAVES, "enum"] + ["record", "array"] * (depth > 0) + ["nullable"] * nullable
    kind = draw(st.sampled_from(kinds))
    if kind == "enum":
        symbols = draw(st.lists(st.sampled_from("ABCDE"), min_size=1, unique=True))
        return {"type": "enum", "name": f"E{next(names)}", "symbols": symbols}
    if kind == "array":
        return {"type": "array", "items": draw_type(draw, names, depth - 1)}
    if kind == "record":
        return draw_record(draw, names, depth - 1)
    if kind == "nullable":
        inner = draw_type(draw, names, depth, nullable=False)
        inner = "long" if inner == "null" else inner
        return draw(st.permutations(["null", inner]))
    return kind


def draw_record(draw: Draw, names: Any, depth: int) -> dict[str, Any]:
    count = draw(st.integers(0, 4))
    fields = [{"name": f"f{place}", "type": draw_type(draw, names, depth)} for place in range(count)]
    return {"type": "record", "name": f"R{next(names)}", "fields": fields}


def values(kind: Any) -> st.SearchStrategy[Any]:
    if isinstance(kind, list):
        return st.none() | values(inner_of(kind))
    if isinstance(kind, str):
        return LEAVES[kind]
    if kind["type"] == "enum":
        return st.sampled_from(kind["symbols"])
    if kind["type"] == "array":
        return st.lists(values(kind["items"]), max_size=3)
    return st.fixed_dictionaries({field["name"]: values(field["type"]) for field in kind["fields"]})


def inner_of(union: list[Any]) -> Any:
    return union[0] if union[1] == "null" else union[1]


def zero(kind: Any) -> Any:
    if isinstance(kind, list):
        return None
    if isinstance(kind, str):
        return {"string": "", "bytes": b"", "null": None}.get(kind, 0)
    if kind["type"] == "enum":
        return kind["symbols"][0]
    return [] if kind["type"] == "array" else {field["name"]: zero(field["type"]) for field in kind["fields"]}


def shred(kind: Any, found: list[Any], path: str = "", levels: str = "") -> dict[str, Any]:
    """The columns of values, the slow and obvious way."""
    if isinstance(kind, list):
        validity = {f"{path}{levels}?": np.array([value is not None for value in found], np.uint8)}
        filled = [zero(inner_of(kind)) if value is None else value for value in found]
        return validity | shred(inner_of(kind), filled, path, levels)
    if isinstance(kind, str):
        return shred_leaf(kind, found, path)
    if kind["type"] == "enum":
        return {path: np.array([kind["symbols"].index(value) for value in found], np.int32)}
    if kind["type"] == "array":
        offsets = {f"{path}{levels}[]": np.cumsum([0, *map(len, found)]).astype(np.int32)}
        return offsets | shred(kind["items"], list(itertools.chain(*found)), path, levels + "[]")
    columns: dict[str, Any] = {}
    for field in kind["fields"]:
        below = f"{path}.{field['name']}".lstrip(".")
        columns |= shred(field["type"], [value[field["name"]] for value in found], below)
    return columns


def shred_leaf(kind: str, found: list[Any], path: str) -> dict[str, Any]:
    if kind == "null":
        return {}
    if kind in ("string", "bytes"):
        pieces = [value.encode() if isinstance(value, str) else value for value in found]
        data = np.frombuffer(b"".join(pieces), np.uint8)
        return {path: data, f"{path}$": np.cumsum([0, *map(len, pieces)]).astype(np.int32)}
    if found and all(type(value) is int for value in found):
        # Cast once: by way of a Python float it would be rounded twice.
        return {path: np.array(found, np.int64).astype(DTYPES[kind])}
    return {path: np.array(found, DTYPES[kind])}


def write(schema: Any, rows: list[Any]) -> list[bytes]:
    parsed, written = fastavro.parse_schema(copy.deepcopy(schema)), []
    for row in rows:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, row)
        written.append(out.getvalue())
    return written


def same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert list(found) == list(expected)
    for name, column in expected.items():
        assert found[name].dtype == column.dtype, name
        assert found[name].tobytes() == column.tobytes(), name


def split(buffer: Any, offsets: Any) -> list[bytes]:
    return [buffer[start:end].tobytes() for start, end in itertools.pairwise(offsets.tolist())]


@st.composite
def cases(draw: Draw) -> tuple[dict[str, Any], list[Any]]:
    schema = draw_record(draw, itertools.count(), 3)
    return schema, draw(st.lists(values(schema), max_size=4))


@given(cases())
def test_columns_are_those_of_fastavros_records(case: tuple[dict[str, Any], list[Any]]) -> None:
    schema, rows = case
    plan = native.AvroPlan(json.dumps(schema))
    columns, kept, failures = plan.decode_list(write(schema, rows))
    assert failures == []
    assert kept.tolist() == list(range(len(rows)))
    same(columns, shred(schema, rows))
    assert plan.columns == [(name, str(column.dtype)) for name, column in columns.items()]


@given(cases())
def test_fastavro_reads_the_records_that_columns_become(case: tuple[dict[str, Any], list[Any]]) -> None:
    schema, rows = case
    records = split(*native.AvroPlan(json.dumps(schema)).encode(shred(schema, rows), len(rows)))
    parsed = fastavro.parse_schema(copy.deepcopy(schema))
    assert [fastavro.schemaless_reader(io.BytesIO(record), parsed, None) for record in records] == rows
    assert records == write(schema, rows)


def evolve(draw: Draw, kind: Any, names: Any) -> Any:
    """A schema that can read what `kind` wrote, or most of it."""
    if isinstance(kind, list):
        inner = evolve(draw, inner_of(kind), names)
        return inner if isinstance(inner, list) or draw(st.booleans()) else draw(st.permutations(["null", inner]))
    if draw(st.integers(0, 4)) == 0 and kind != "null":
        return draw(st.permutations(["null", kind]))
    if isinstance(kind, str):
        return draw(st.sampled_from([kind, *PROMOTIONS.get(kind, [])]))
    if kind["type"] == "array":
        return kind | {"items": evolve(draw, kind["items"], names)}
    if kind["type"] == "enum":
        symbols = draw(st.permutations([*kind["symbols"], "NEW"]))[: draw(st.integers(1, 6))]
        return kind | {"symbols": symbols} | ({"default": symbols[0]} if draw(st.booleans()) else {})
    fields = [field | {"type": evolve(draw, field["type"], names)} for field in kind["fields"]]
    for field in fields:
        if draw(st.integers(0, 3)) == 0:
            field |= {"aliases": [field["name"]], "name": f"renamed_{field['name']}"}
    kept = [field for field in draw(st.permutations(fields)) if draw(st.integers(0, 3))]
    leaves = draw(st.lists(st.sampled_from(list(DEFAULTS)), max_size=2))
    kept.extend({"name": f"new{next(names)}", "type": leaf, "default": DEFAULTS[leaf]} for leaf in leaves)
    return kind | {"fields": kept}


@st.composite
def evolutions(draw: Draw) -> tuple[dict[str, Any], dict[str, Any], list[Any]]:
    names = itertools.count()
    writer = draw_record(draw, names, 3)
    reader = evolve(draw, writer, names)
    reader = inner_of(reader) if isinstance(reader, list) else reader
    return writer, reader, draw(st.lists(values(writer), max_size=4))


def read_evolved(writer: Any, reader: Any, records: list[bytes]) -> list[Any]:
    """What fastavro makes of the records, with the error of each it cannot read."""
    parsed, wanted = (fastavro.parse_schema(copy.deepcopy(schema)) for schema in (writer, reader))
    rows: list[Any] = []
    for record in records:
        try:
            rows.append(fastavro.schemaless_reader(io.BytesIO(record), parsed, wanted))
        except (SchemaResolutionError, ValueError) as error:
            rows.append(error)
    return rows


def latin(kind: Any, value: Any) -> Any:
    """The bytes of a bytes default, which fastavro hands out as the text it has in JSON."""
    if isinstance(kind, list):
        return None if value is None else latin(inner_of(kind), value)
    if isinstance(kind, str):
        return value.encode("latin-1") if kind == "bytes" and value == DEFAULTS["bytes"] else value
    if kind["type"] == "array":
        return [latin(kind["items"], item) for item in value]
    if kind["type"] == "record":
        return {field["name"]: latin(field["type"], value[field["name"]]) for field in kind["fields"]}
    return value


@settings(max_examples=200)
@given(evolutions())
def test_evolved_schemas_read_as_fastavro_resolves_them(case: tuple[Any, Any, list[Any]]) -> None:
    writer, reader, rows = case
    records = write(writer, rows)
    expected = read_evolved(writer, reader, records)
    columns, kept, failures = native.AvroPlan(json.dumps(writer), json.dumps(reader)).decode_list(records)
    good = [place for place, row in enumerate(expected) if not isinstance(row, Exception)]
    assert kept.tolist() == good
    assert sorted([*good, *(index for index, _ in failures)]) == list(range(len(records)))
    same(columns, shred(reader, [latin(reader, expected[place]) for place in good]))


@st.composite
def damages(draw: Draw) -> tuple[dict[str, Any], list[bytes], int]:
    schema = draw_record(draw, itertools.count(), 3)
    records = write(schema, draw(st.lists(values(schema), min_size=1, max_size=4)))
    place = draw(st.integers(0, len(records) - 1))
    bad = bytearray(records[place])
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(bad)))
        bad[at : at + draw(st.integers(0, 2))] = draw(st.binary(max_size=3))
    records[place] = draw(st.sampled_from([bytes(bad), draw(st.binary(max_size=30))]))
    return schema, records, place


@settings(max_examples=200)
@given(damages())
def test_damage_to_one_record_never_reaches_another(case: tuple[Any, list[bytes], int]) -> None:
    schema, records, place = case
    plan = native.AvroPlan(json.dumps(schema))
    columns, kept, failures = plan.decode_list(records)
    assert [index for index, _ in failures] in ([], [place])
    encoded = split(*plan.encode(columns, len(kept)))
    for row, index in enumerate(kept.tolist()):
        if index != place:
            assert encoded[row] == records[index]
        else:
            # Damage can leave a sound record, if not one written our way: then it reads the same again.
            again, _, _ = plan.decode_list([encoded[row]])
            same(again, plan.decode_list([records[index]])[0])
