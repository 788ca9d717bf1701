"""The framing in a record's first bytes, which identifies the schema of its writer.

Written records have the Avro single-object framing (C3 01 and an 8-byte fingerprint). Records that are read may also
have the Confluent framing (00 and a 4-byte big-endian registry id) of producers that use a schema registry.
"""

from __future__ import annotations

from typing import NamedTuple

from streamlearn.errors import BadRecord
from streamlearn.schemas.schema import MARKER, PREFIX_BYTES

__all__ = ["Framing", "read_framing"]

_CONFLUENT_BYTES = 5


class Framing(NamedTuple):
    """The framing of a record."""

    fingerprint: int | None  # of the writer schema; None with Confluent framing
    registry_id: int | None  # the Confluent schema id; None with single-object framing
    body_at: int  # where the record's body begins


def read_framing(record: bytes | memoryview) -> Framing:
    """Read the framing of one record; raises BadRecord if it has neither."""
    if record[:2] == MARKER and len(record) >= PREFIX_BYTES:
        return Framing(int.from_bytes(record[2:PREFIX_BYTES], "little"), None, PREFIX_BYTES)
    if record[:1] == b"\x00" and len(record) >= _CONFLUENT_BYTES:
        return Framing(None, int.from_bytes(record[1:_CONFLUENT_BYTES], "big"), _CONFLUENT_BYTES)
    message = f"a record of {len(record)} bytes begins {bytes(record[:PREFIX_BYTES]).hex(' ') or 'with nothing'}"
    hint = "a record begins with C3 01 and a fingerprint, or with 00 and a schema registry id"
    if record[:1] in (b"{", b"["):
        hint = f"this looks like JSON: write Avro, as `streamlearn schema APP` prints it; {hint}"
    raise BadRecord(message, help=hint)
