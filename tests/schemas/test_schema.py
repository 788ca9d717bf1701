"""A schema: its fingerprint, writing, reading, and the framing before each record."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlearn.errors import BadRecord, ConfigError
from streamlearn.native import native
from streamlearn.schemas import CONTROL, PROGRESS, Schema, schema_of
from streamlearn.schemas.app import app_schemas
from streamlearn.schemas.record_prefix import Framing, read_framing
from streamlearn.schemas.schema import MARKER, PREFIX_BYTES
from streamlearn.testing import small_app
from tools.golden_records import CONTROL_VALUES, PROGRESS_VALUES, golden_records

SCHEMAS = app_schemas(small_app())


def test_fingerprints_of_the_specifications_types_are_the_specifications() -> None:
    known = {
        "null": 0x63DD24E7CC258F8A,
        "boolean": 0x9F42FC78A4D4F764,
        "int": 0x7275D51A3F395C8F,
        "long": 0xD054E14493F41DB7,
        "float": 0x4D7C02CB3EA8D790,
        "double": 0x8E7535C032AB957E,
        "bytes": 0x4FC016DAC3201965,
        "string": 0x8F014872634503C7,
    }
    assert {name: native.schema_fingerprint(f'"{name}"'.encode()) for name in known} == known
    assert native.schema_fingerprint(b"") == 0xC15D213AA4D7A795


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_fingerprint_is_fastavros(name: str) -> None:
    schema = SCHEMAS[name]
    canonical = fastavro.schema.to_parsing_canonical_form(schema.json)
    reference = fastavro.schema.fingerprint(canonical, "CRC-64-AVRO")
    assert schema.prefix == MARKER + bytes.fromhex(reference)
    assert schema.fingerprint == int.from_bytes(schema.prefix[2:], "little")


def test_a_fingerprint_ignores_docs_and_defaults() -> None:
    plain: dict[str, Any] = {"type": "record", "name": "a.B", "fields": [{"name": "x", "type": "int"}]}
    told = json.loads(json.dumps(plain))
    told["doc"] = told["fields"][0]["doc"] = "Said."
    told["fields"][0]["default"] = 5
    assert schema_of(plain).fingerprint == schema_of(told).fingerprint
    assert schema_of(plain).name == "B"


def test_schemas_of_an_application_are_all_different() -> None:
    assert len({schema.fingerprint for schema in SCHEMAS.values()}) == 8


def test_events_of_two_applications_are_told_apart() -> None:
    other = app_schemas(small_app("other"))
    for name in ("impression", "action"):
        assert other[name].fingerprint != SCHEMAS[name].fingerprint
    for name in ("sample", "control"):  # several models read one topic of samples
        assert other[name].fingerprint == SCHEMAS[name].fingerprint


@pytest.mark.parametrize("name", SCHEMAS)
def test_what_is_written_is_read_back_and_written_alike(name: str) -> None:
    record = golden_records()[name]
    value = SCHEMAS[name].read(record[PREFIX_BYTES:])
    assert SCHEMAS[name].write(value) == record
    assert SCHEMAS[name].read(memoryview(record)[PREFIX_BYTES:]) == value


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"kind": "PAUSE"}, id="no such symbol"),
        pytest.param({"event_time_ms": "soon"}, id="a wrong type"),
        pytest.param({"event_time_ms": 1 << 70}, id="too large"),
        pytest.param({"source": None}, id="no text"),
        pytest.param({"mood": 1}, id="a field too many"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(BadRecord, match="cannot encode the value as Control"):
        CONTROL.write(CONTROL_VALUES | change)


def test_a_value_that_lacks_a_field_is_refused() -> None:
    with pytest.raises(BadRecord, match="cannot encode the value as Control"):
        CONTROL.write({"kind": "END"})


def test_bytes_cut_anywhere_are_refused() -> None:
    body = PROGRESS.write(PROGRESS_VALUES)[PREFIX_BYTES:]
    for length in range(len(body)):
        with pytest.raises(BadRecord, match=f"{length} bytes as Progress") as caught:
            PROGRESS.read(body[:length])
        assert caught.value.help


def test_bytes_that_go_on_too_long_are_refused() -> None:
    body = PROGRESS.write(PROGRESS_VALUES)[PREFIX_BYTES:]
    with pytest.raises(BadRecord, match=f"ends after {len(body)} of {len(body) + 1} bytes"):
        PROGRESS.read(body + b"\0")


@given(name=st.sampled_from(sorted(SCHEMAS)), body=st.binary(max_size=200))
def test_garbage_is_a_bad_record_and_nothing_else(name: str, body: bytes) -> None:
    with suppress(BadRecord):
        SCHEMAS[name].read(body)


def test_bytes_of_a_schema_that_cannot_be_resolved_are_a_bad_record() -> None:
    writer = schema_of({"type": "record", "name": "Progress", "fields": [{"name": "lot", "type": "string"}]})
    with pytest.raises(BadRecord, match="as Progress"):
        PROGRESS.read(b"\x02a", writer)


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        pytest.param("{", "not an Avro schema", id="no JSON"),
        pytest.param("5", "not an Avro schema", id="a number"),
        pytest.param("null", "not an Avro schema", id="null"),
        pytest.param("[]", "not an Avro schema", id="a union"),
        pytest.param('"string"', "not an Avro schema", id="a type's name"),
        pytest.param("{}", "not an Avro schema", id="no type"),
        pytest.param({"type": "array", "items": "int"}, "the schema is a 'array'", id="an array"),
        pytest.param({"type": "record", "name": "a", "fields": 5}, "not an Avro schema", id="fields"),
        pytest.param(
            {"type": "record", "name": "a", "fields": [{"name": "b", "type": "no"}]},
            "no",
            id="an unknown type",
        ),
    ],
)
def test_what_is_no_record_schema_is_refused(declared: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        schema_of(declared)
    assert "Avro record schema" in caught.value.help


def test_a_schema_from_text_and_from_values_is_one() -> None:
    assert schema_of(CONTROL.text) == CONTROL == Schema(CONTROL.text)


def test_single_object_framing_is_read() -> None:
    record = golden_records()["control"]
    assert read_framing(record) == Framing(CONTROL.fingerprint, None, 10)
    assert read_framing(memoryview(record)) == Framing(CONTROL.fingerprint, None, 10)
    assert read_framing(CONTROL.prefix) == Framing(CONTROL.fingerprint, None, 10)


def test_confluent_framing_is_read() -> None:
    assert read_framing(b"\x00\x00\x00\x01\x02body") == Framing(None, 258, 5)
    assert read_framing(b"\x00\xff\xff\xff\xff") == Framing(None, 2**32 - 1, 5)


@pytest.mark.parametrize(
    ("record", "said"),
    [
        pytest.param(b"", "0 bytes begins with nothing", id="empty"),
        pytest.param(b"{'request_id'", "begins 7b 27 72 65 71 75 65 73 74 5f", id="JSON"),
        pytest.param(MARKER + b"1234567", "9 bytes begins c3 01 31", id="a short fingerprint"),
        pytest.param(b"\x00\x00\x00\x01", "4 bytes begins 00 00 00 01", id="a short id"),
        pytest.param(b"\xc3\x02" + bytes(20), "begins c3 02", id="another marker"),
    ],
)
def test_anything_else_is_garbage_shown_in_hex(record: bytes, said: str) -> None:
    with pytest.raises(BadRecord, match=said) as caught:
        read_framing(record)
    assert "C3 01" in caught.value.help


def test_json_is_recognised() -> None:
    for record, is_json in ((b'{"request_id": 1}', True), (b"[1]", True), (b"", False), (MARKER, False)):
        with pytest.raises(BadRecord) as caught:
            read_framing(record)
        assert ("looks like JSON" in caught.value.help) == is_json
