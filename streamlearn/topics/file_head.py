"""The head of a file partition: what is acknowledged, in 40 bytes that every append replaces in place.

Bytes beyond the head's end were never acknowledged, and bytes before it were: this is how a torn tail and
corruption are told apart.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path

from streamlearn.errors import BadRecord
from streamlearn.native import native

__all__ = ["HEAD_NAME", "Head", "read_head", "write_head"]

HEAD_NAME = "head"
_MAGIC = b"SLH1"
_LAYOUT = struct.Struct("<4sIqqqq")
_BODY_FROM = 8
_READS_MAX = 100


@dataclass(frozen=True, slots=True)
class Head:
    """What a partition has acknowledged.

    Attributes:
        segment: Base offset of the segment that is appended to; segments of a larger one do not count yet.
        end_bytes: Bytes of that segment that are acknowledged.
        next_offset: The offset the next record will have.
        earliest: The first offset that may be read; older segments may still lie there, about to be deleted.
    """

    segment: int
    end_bytes: int
    next_offset: int
    earliest: int

    def to_bytes(self) -> bytes:
        """The bytes of the file."""
        body = _LAYOUT.pack(_MAGIC, 0, self.segment, self.end_bytes, self.next_offset, self.earliest)[_BODY_FROM:]
        return _MAGIC + native.crc32c(body).to_bytes(4, "little") + body


def read_head(descriptor: int, path: Path) -> Head:
    """Read the head of a partition, which a writer may be replacing at this moment.

    Raises:
        BadRecord: It stays unreadable, so it is not a moment's half-written state.
    """
    raw = b""
    for _ in range(_READS_MAX):
        raw = os.pread(descriptor, _LAYOUT.size, 0)
        if len(raw) == _LAYOUT.size:
            magic, checksum, *numbers = _LAYOUT.unpack(raw)
            if magic == _MAGIC and native.crc32c(raw[_BODY_FROM:]) == checksum:
                return Head(*numbers)
    message = f"{path} is not the head of a partition: {raw[:16].hex()}... ({len(raw)} bytes)"
    raise BadRecord(message, help="restore the partition's folder from a copy, or delete the topic")


def write_head(descriptor: int, head: Head, *, sync: bool) -> None:
    """Replace the head in place; one write of 40 bytes, checked by its readers."""
    os.pwrite(descriptor, head.to_bytes(), 0)
    if sync:
        os.fdatasync(descriptor)
