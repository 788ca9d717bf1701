"""Checksums: published values, every kind of bytes, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import fastavro
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlearn.native import native

# The examples of RFC 3720, appendix B.4, and the usual check value.
KNOWN = [
    (bytes(32), 0x8A9136AA),
    (bytes([0xFF] * 32), 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(reversed(range(32))), 0x113FDB5C),
    (b"123456789", 0xE3069283),
    (b"", 0),
]


@pytest.mark.parametrize(("data", "checksum"), KNOWN)
def test_crc32c_has_its_published_values(data: bytes, checksum: int) -> None:
    assert native.crc32c(data) == checksum


@given(st.binary(max_size=200), st.integers(0, 200))
def test_a_checksum_goes_on_from_the_part_before(data: bytes, cut: int) -> None:
    assert native.crc32c(data[cut:], native.crc32c(data[:cut])) == native.crc32c(data)


@given(st.binary(max_size=64))
def test_every_kind_of_contiguous_bytes_is_read(data: bytes) -> None:
    array = np.frombuffer(data, np.uint8)
    kinds: list[Any] = [data, bytearray(data), memoryview(data), memoryview(b"x" + data)[1:], array]
    assert {native.crc32c(kind) for kind in kinds} == {native.crc32c(data)}


REFUSED = [
    (memoryview(b"abcdef")[::2], "memoryview"),
    (np.zeros(6, np.uint8)[::2], "a non-contiguous uint8 of shape (3,)"),
    (np.zeros(3, np.float32), "float32 of shape (3,)"),
    ("abc", "str"),
    ([1, 2], "list"),
]


@pytest.mark.parametrize(("data", "got"), REFUSED, ids=[got for _, got in REFUSED])
def test_what_is_not_contiguous_bytes_is_refused(data: Any, got: str) -> None:
    wanted = "contiguous bytes (bytes, bytearray, memoryview or uint8 array)"
    with pytest.raises(TypeError) as caught:
        native.crc32c(data)
    assert str(caught.value) == f"data: expected {wanted}, got {got}"


def test_schema_fingerprints_are_fastavros() -> None:
    field = {"name": "x", "type": ["null", {"type": "array", "items": "long"}]}
    schemas: list[Any] = ["int", {"type": "record", "name": "a.R", "fields": [field]}]
    for schema in schemas:
        canonical = fastavro.schema.to_parsing_canonical_form(schema)
        expected = fastavro.schema.fingerprint(canonical, "CRC-64-AVRO")
        # The text is the fingerprint's bytes as single-object framing has them: lowest first.
        assert native.schema_fingerprint(canonical.encode()).to_bytes(8, "little").hex() == expected
    assert json.loads(canonical)["name"] == "a.R"
