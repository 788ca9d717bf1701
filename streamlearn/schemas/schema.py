"""An Avro schema: its JSON, its fingerprint, and the ten bytes at the begin of each of its records."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import fastavro
from fastavro.read import SchemaResolutionError
from fastavro.schema import to_parsing_canonical_form

from streamlearn.errors import BadRecord, ConfigError
from streamlearn.native import native

__all__ = ["MARKER", "PREFIX_BYTES", "Schema", "schema_of"]

MARKER = b"\xc3\x01"
PREFIX_BYTES = 10
# fastavro raises any of these for invalid bytes, depending on where its Cython code fails.
_DECODE_ERRORS = (
    EOFError, IndexError, KeyError, MemoryError, OverflowError, SchemaResolutionError, TypeError, ValueError,
)  # fmt: skip

# A schema as plain JSON values; fastavro has no types for it.
JsonSchema: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class Schema:
    """A record schema. Schemas are equal if their texts are."""

    text: str  # indented JSON

    @cached_property
    def json(self) -> dict[str, Any]:
        """The schema as plain values."""
        values: dict[str, Any] = json.loads(self.text)
        return values

    @cached_property
    def name(self) -> str:
        """The record's own name, such as "Impression", without its namespace."""
        return str(self.json["name"]).rpartition(".")[2]

    @cached_property
    def parsed(self) -> Any:
        """The schema as fastavro reads and writes with it."""
        return fastavro.parse_schema(self.json)

    @cached_property
    def plan(self) -> Any:
        """The native plan that encodes and decodes columns of records."""
        return native.AvroPlan(self.text, self.text)

    @cached_property
    def fingerprint(self) -> int:
        """The CRC-64-AVRO fingerprint of the Avro specification, over the parsing canonical form."""
        return native.schema_fingerprint(to_parsing_canonical_form(self.json).encode())

    @cached_property
    def prefix(self) -> bytes:
        """The single-object framing: C3 01 and the fingerprint, little-endian."""
        return MARKER + self.fingerprint.to_bytes(8, "little")

    def write(self, value: Mapping[str, Any]) -> bytes:
        """Encode one record with its framing; raises BadRecord if the value does not fit the schema."""
        out = io.BytesIO()
        out.write(self.prefix)
        try:
            fastavro.schemaless_writer(out, self.parsed, value, strict=True)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, IndexError) as error:
            message = f"cannot encode the value as {self.name}: {error}"
            raise BadRecord(message, help=f"see the schema of {self.name}") from error
        return out.getvalue()

    def read(self, body: bytes | memoryview, writer: Schema | None = None) -> dict[str, Any]:
        """Decode the bytes after a record's framing; `writer` is their schema if it is another one.

        Raises:
            BadRecord: The bytes are truncated, too long or invalid.
        """
        source = io.BytesIO(body)
        try:
            value = fastavro.schemaless_reader(source, (writer or self).parsed, self.parsed if writer else None)
        except _DECODE_ERRORS as error:
            message = f"cannot decode {len(body)} bytes as {self.name}: {type(error).__name__}: {error}"
            help = "the record was truncated or damaged, or written with another schema"
            raise BadRecord(message, help=help) from error
        if source.tell() != len(body):
            message = f"{self.name} ends after {source.tell()} of {len(body)} bytes"
            raise BadRecord(message, help="the record was written with another schema, or bytes were added")
        assert isinstance(value, dict)
        return value


def schema_of(declared: JsonSchema | str) -> Schema:
    """Return a schema from plain values or JSON text; raises ConfigError if it is not an Avro record schema."""
    try:
        values = json.loads(declared) if isinstance(declared, str) else declared
        schema = Schema(json.dumps(values, indent=2))
        _ = schema.fingerprint  # computing it validates the whole schema
        if values["type"] != "record":
            message = f"the schema is a {values['type']!r}"
            raise ConfigError(message, help="give an Avro record schema")
        if not isinstance(values.get("fields"), list):
            message = "the record schema has no fields"
            raise ConfigError(message, help="give an Avro record schema")
    except (ValueError, KeyError, TypeError, RecursionError, fastavro.schema.SchemaParseException) as error:
        message = f"not an Avro schema: {error}"
        raise ConfigError(message, help="give an Avro record schema as JSON") from error
    return schema
