"""The head of a file partition: what is acknowledged, in 40 bytes that every append replaces in place.

Bytes beyond the head's end were never acknowledged, and bytes before it were. This tells a torn tail from corruption.
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
_LAYOUT = struct.Struct("<4sI4q")
_BODY = struct.Struct("<4q")
_BODY_FROM = _LAYOUT.size - _BODY.size
_READS_MAX = 100


@dataclass(frozen=True, slots=True)
class Head:
    """What a partition has acknowledged."""

    segment: int  # base offset of the segment that writers append to; larger segments do not count yet
    end_bytes: int  # acknowledged bytes of that segment
    next_offset: int  # the offset of the next record
    earliest: int  # the first readable offset; older segments may still exist until they are deleted

    def to_bytes(self) -> bytes:
        """Return the bytes of the file."""
        body = _BODY.pack(self.segment, self.end_bytes, self.next_offset, self.earliest)
        return _MAGIC + native.crc32c(body).to_bytes(4, "little") + body


def read_head(descriptor: int, path: Path) -> Head:
    """Read the head, which a writer may be replacing; raises BadRecord if it stays unreadable."""
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
    """Replace the head in place by one write of 40 bytes, whose checksum readers verify."""
    os.pwrite(descriptor, head.to_bytes(), 0)
    if sync:
        os.fdatasync(descriptor)
