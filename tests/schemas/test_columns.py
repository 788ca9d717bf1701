"""Records of columns are the bytes that fastavro writes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlearn.errors import BadRecord
from streamlearn.schemas import schema_of
from streamlearn.schemas.columns import write_columns

__all__: list[str] = []

PART = {
    "type": "record",
    "name": "Part",
    "fields": [{"name": "name", "type": "string"}, {"name": "texts", "type": {"type": "array", "items": "string"}}],
}
SCHEMA = schema_of(
    {
        "type": "record",
        "name": "Columns",
        "fields": [
            {"name": "rows", "type": "int"},
            {"name": "time_ms", "type": "long"},
            {"name": "column", "type": "bytes"},
            {"name": "parts", "type": {"type": "array", "items": PART}},
        ],
    }
)
PARTS = st.lists(st.fixed_dictionaries({"name": st.text(), "texts": st.lists(st.text(), max_size=3)}), max_size=3)
ROWS, TIMES = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)


@given(ROWS, TIMES, st.lists(TIMES, max_size=200), PARTS)
def test_a_record_is_as_fastavro_writes_it(rows: int, time_ms: int, column: list[int], parts: Any) -> None:
    array = np.array(column, np.int64)
    value = {"rows": rows, "time_ms": time_ms, "column": array, "parts": parts}
    assert write_columns(SCHEMA, value) == SCHEMA.write(value | {"column": array.tobytes()})
    assert write_columns(SCHEMA, value | {"column": array.reshape(-1, 1)}) == write_columns(SCHEMA, value)


@pytest.mark.parametrize("wrong", [{"more": 1}, {"column": 7}, {"column": np.arange(9)[::2]}, {"parts": [{}]}])
def test_a_value_of_another_shape_is_refused_by_the_schemas_name(wrong: dict[str, Any]) -> None:
    value = {"rows": 1, "time_ms": 2, "column": b"", "parts": []}
    assert write_columns(SCHEMA, value)
    with pytest.raises(BadRecord, match="as Columns"):
        write_columns(SCHEMA, value | wrong)
