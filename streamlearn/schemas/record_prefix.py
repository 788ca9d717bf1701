"""Which schema wrote a record, read off its first bytes.

Written: Avro single-object encoding (C3 01 and an 8-byte fingerprint). Also read: the Confluent framing (00
and a 4-byte big-endian registry id), for producers that go through a schema registry.
"""

from __future__ import annotations

from typing import NamedTuple

from streamlearn.errors import BadRecord
from streamlearn.schemas.schema import MARKER, PREFIX_BYTES

__all__ = ["CONFLUENT_BYTES", "Framing", "read_framing"]

CONFLUENT_BYTES = 5


class Framing(NamedTuple):
    """What the first bytes of a record say.

    Attributes:
        fingerprint: The writer schema's fingerprint; None under Confluent framing.
        registry_id: The Confluent schema id; None under single-object framing.
        body_at: Where the record's body begins.
    """

    fingerprint: int | None
    registry_id: int | None
    body_at: int


def read_framing(record: bytes | memoryview) -> Framing:
    """Read the framing of one record.

    Raises:
        BadRecord: The bytes begin in neither way.
    """
    if record[:2] == MARKER and len(record) >= PREFIX_BYTES:
        return Framing(int.from_bytes(record[2:PREFIX_BYTES], "little"), None, PREFIX_BYTES)
    if record[:1] == b"\x00" and len(record) >= CONFLUENT_BYTES:
        return Framing(None, int.from_bytes(record[1:CONFLUENT_BYTES], "big"), CONFLUENT_BYTES)
    message = f"a record of {len(record)} bytes begins {bytes(record[:PREFIX_BYTES]).hex(' ') or 'with nothing'}"
    raise BadRecord(message, help="a record begins with C3 01 and a fingerprint, or with 00 and a schema registry id")
