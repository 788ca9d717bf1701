"""Rows of columns against the native codec: what is taken encodes to the very bytes of the rows taken."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from streamlearn.events import join_rows, rows_of, take_rows, texts_of
from streamlearn.native import native

SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "All",
        "fields": [
            {"name": "text", "type": "string"},
            {"name": "number", "type": "long"},
            {"name": "maybe", "type": ["null", "string"]},
            {"name": "texts", "type": {"type": "array", "items": "string"}},
            {"name": "holes", "type": {"type": "array", "items": ["null", "float"]}},
            {"name": "deep", "type": {"type": "array", "items": {"type": "array", "items": "string"}}},
            {
                "name": "items",
                "type": {
                    "type": "array",
                    "items": {
                        "type": "record",
                        "name": "Item",
                        "fields": [
                            {"name": "id", "type": "long"},
                            {"name": "tags", "type": {"type": "array", "items": "string"}},
                            {"name": "score", "type": ["null", "float"]},
                        ],
                    },
                },
            },
        ],
    }
)
ROWS = 9


@pytest.fixture(scope="module")
def plan() -> Any:
    return native.AvroPlan(SCHEMA)


@pytest.fixture(scope="module")
def columns() -> dict[str, npt.NDArray[Any]]:
    """Nine rows with a bit of everything, some of it empty."""
    rng = np.random.default_rng(5)
    found: dict[str, npt.NDArray[Any]] = {"number": rng.integers(0, 99, ROWS)}
    _put_text(found, "text", ROWS, rng)
    found["maybe?"] = (np.arange(ROWS) % 3 != 0).astype(np.uint8)
    _put_text(found, "maybe", ROWS, rng, found["maybe?"])
    _put_text(found, "texts", _put_array(found, "texts[]", ROWS, rng), rng)
    holes = _put_array(found, "holes[]", ROWS, rng)
    found["holes[]?"] = rng.integers(0, 2, holes, np.uint8)
    found["holes"] = rng.random(holes, np.float32) * found["holes[]?"]
    inner = _put_array(found, "deep[][]", _put_array(found, "deep[]", ROWS, rng), rng)
    _put_text(found, "deep", inner, rng)
    items = _put_array(found, "items[]", ROWS, rng)
    found["items.id"] = rng.integers(0, 99, items)
    _put_text(found, "items.tags", _put_array(found, "items.tags[]", items, rng), rng)
    found["items.score?"] = rng.integers(0, 2, items, np.uint8)
    found["items.score"] = rng.random(items, np.float32) * found["items.score?"]
    return found


def _put_array(found: dict[str, npt.NDArray[Any]], name: str, rows: int, rng: np.random.Generator) -> int:
    counts = rng.integers(0, 4, rows)
    found[name] = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    return int(counts.sum())


def _put_text(
    found: dict[str, npt.NDArray[Any]],
    name: str,
    rows: int,
    rng: np.random.Generator,
    present: npt.NDArray[np.uint8] | None = None,
) -> None:
    lengths = rng.integers(0, 5, rows) * (1 if present is None else present)
    found[f"{name}$"] = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    found[name] = rng.integers(97, 123, int(lengths.sum()), np.uint8)


def _records(plan: Any, columns: dict[str, npt.NDArray[Any]], rows: int) -> list[bytes]:
    buffer, offsets = plan.encode(columns, rows)
    whole = buffer.tobytes()
    return [whole[offsets[row] : offsets[row + 1]] for row in range(rows)]


def test_the_columns_here_are_all_that_the_schema_has(plan: Any, columns: dict[str, npt.NDArray[Any]]) -> None:
    assert {name for name, _ in plan.columns} == set(columns)
    assert len(set(_records(plan, columns, ROWS))) == ROWS


@pytest.mark.parametrize(("begin", "end"), [(0, ROWS), (0, 4), (3, 7), (8, 9), (5, 5), (0, 0)])
def test_a_stretch_of_rows_has_the_bytes_of_those_rows(
    plan: Any, columns: dict[str, npt.NDArray[Any]], begin: int, end: int
) -> None:
    kept = rows_of(columns, begin, end)
    assert _records(plan, kept, end - begin) == _records(plan, columns, ROWS)[begin:end]


@pytest.mark.parametrize("rows", [[8, 0, 3], [2, 2, 2], [], list(range(ROWS))])
def test_rows_are_taken_in_any_order_and_more_than_once(
    plan: Any, columns: dict[str, npt.NDArray[Any]], rows: list[int]
) -> None:
    taken = take_rows(columns, np.array(rows, np.int64))
    whole = _records(plan, columns, ROWS)
    assert _records(plan, taken, len(rows)) == [whole[row] for row in rows]


def test_joined_parts_are_the_rows_one_after_another(plan: Any, columns: dict[str, npt.NDArray[Any]]) -> None:
    parts = [rows_of(columns, 4, ROWS), rows_of(columns, 0, 0), rows_of(columns, 0, 4)]
    whole = _records(plan, columns, ROWS)
    assert _records(plan, join_rows(parts), ROWS) == whole[4:] + whole[:4]


def test_texts_keep_their_bytes_whatever_their_length() -> None:
    texts = ["", "blåbær", "x"]
    codes = np.array([1, 0, 2, 1])
    data, offsets = texts_of(codes, texts)
    found = [data[begin:end].tobytes().decode() for begin, end in pairwise(offsets)]
    assert found == [texts[code] for code in codes]
    assert texts_of(np.zeros(0, np.int64), texts)[1].tolist() == [0]
