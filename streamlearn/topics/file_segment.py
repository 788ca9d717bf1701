"""One segment of a file partition's log: its frames, and an index of offsets and times.

It does not know which bytes are acknowledged: callers pass the byte at which a segment ends.
"""

from __future__ import annotations

import os
import re
import struct
from bisect import bisect_right
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from streamlearn.errors import BadRecord
from streamlearn.native import native
from streamlearn.topics.records import Records

__all__ = ["Segment", "bases_of", "fault", "index_path", "segment_path"]

_BLOCK_BYTES = 65_536
_CHUNK_BYTES = 4 * 1_048_576
_INDEX = struct.Struct("<4sIqq")
_INDEX_MAGIC = b"SLI1"
_PREFIX_BYTES = 8
_BASE = re.compile(r"[0-9]{20}")
_FAULTS = {
    "length": "an impossible record length",
    "checksum": "a wrong checksum",
    "offset": "an offset that does not increase",
    "torn": "fewer bytes than were acknowledged",
}


def segment_path(folder: Path, base_offset: int) -> Path:
    """Return the file of the segment that begins at an offset."""
    return folder / f"{base_offset:020d}.log"


def index_path(path: Path) -> Path:
    """Return the index file of a closed segment."""
    return path.with_suffix(".index")


def bases_of(folder: Path) -> list[int]:
    """Return the base offsets of all segment files in a folder, in order; other files there are not touched."""
    return sorted(int(path.stem) for path in folder.glob("*.log") if _BASE.fullmatch(path.stem))


def fault(path: Path, position: int, offset: int, stop: str) -> BadRecord:
    """Return the error for acknowledged bytes that cannot be read."""
    message = f"{path}: {_FAULTS[stop]} at byte {position}, where offset {offset} or a later one is expected"
    help = (
        "the file was changed or damaged after it was written; restore it from a copy, or choose a later "
        "position to read from"
    )
    return BadRecord(message, help=help)


@dataclass(slots=True)
class Segment:
    """An open segment; `blocks` index it up to `indexed_bytes` as (offset, position, largest timestamp)."""

    path: Path
    base_offset: int
    frame_bytes_max: int
    descriptor: int
    blocks: list[tuple[int, int, int]] = field(default_factory=list)
    indexed_bytes: int = 0

    @classmethod
    def open(cls, folder: Path, base_offset: int, frame_bytes_max: int) -> Segment:
        """Open a segment for reading, with its index if there is a valid one."""
        path = segment_path(folder, base_offset)
        segment = cls(path, base_offset, frame_bytes_max, os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        segment._load_index()
        return segment

    def close(self) -> None:
        """Close the file."""
        os.close(self.descriptor)

    def size_bytes(self) -> int:
        """Return the size of the file."""
        return os.fstat(self.descriptor).st_size

    def is_replaced(self) -> bool:
        """Return whether its path now names another file or none."""
        try:
            return self.path.stat().st_ino != os.fstat(self.descriptor).st_ino
        except FileNotFoundError:
            return True

    def timestamp_ms_max(self, end_bytes: int) -> int:
        """Return the largest timestamp before `end_bytes`; -1 without records."""
        self.index_to(end_bytes)
        return max((block[2] for block in self.blocks), default=-1)

    def position_of(self, offset: int, end_bytes: int) -> int:
        """Return a byte at which a frame begins, at most a block before the frame of `offset`."""
        if offset <= self.base_offset:
            return 0
        self.index_to(end_bytes)
        at = bisect_right(self.blocks, offset, key=lambda block: block[0]) - 1
        return self.blocks[at][1] if at >= 0 else 0

    def offset_for_time(self, timestamp_ms: int, end_bytes: int) -> int | None:
        """Return the first offset with a timestamp at or after `timestamp_ms`, or None."""
        self.index_to(end_bytes)
        start = next((block for block in self.blocks if block[2] >= timestamp_ms), None)
        if start is None:
            return None
        position = start[1]
        while position < end_bytes:
            records, position = self.read(0, position, end_bytes, (1_000, _BLOCK_BYTES * 2))
            matches = np.flatnonzero(records.timestamps_ms >= timestamp_ms)
            if matches.size:
                return int(records.offsets[matches[0]])
        return None

    def read(
        self, offset: int, position: int, end_bytes: int, limits: tuple[int, int], *, partition: int = -1
    ) -> tuple[Records, int]:
        """Return records from `offset` on, and the byte at which to continue.

        `position` is a byte at which a frame begins. `limits` are the most records and the most bytes; the first
        record comes whatever its size. Damaged bytes raise BadRecord.
        """
        chunk_bytes = min(limits[1] + _PREFIX_BYTES, _CHUNK_BYTES)
        while True:
            data = os.pread(self.descriptor, min(chunk_bytes, end_bytes - position), position)
            columns, consumed, stop = native.scan_frames(data, offset, *limits, self.frame_bytes_max)
            valid = consumed > 0 or stop in ("end", "limit")
            if valid and (data or position >= end_bytes):
                next_offset = int(columns[0][-1]) + 1 if len(columns[0]) else offset
                return Records(partition, *columns, next_offset), position + consumed
            if stop != "torn" or position + len(data) >= end_bytes or len(data) < chunk_bytes:
                raise fault(self.path, position, offset, "torn" if stop == "end" else stop)
            # The frame is larger than the chunk. Its length is within frame_bytes_max, or `stop` would be "length".
            chunk_bytes = _PREFIX_BYTES + max(_PREFIX_BYTES, int.from_bytes(data[:4], "little"))

    def index_to(self, end_bytes: int) -> None:
        """Extend the index up to `end_bytes`."""
        chunk_bytes = _CHUNK_BYTES
        while self.indexed_bytes < end_bytes:
            position = self.indexed_bytes
            data = os.pread(self.descriptor, min(chunk_bytes, end_bytes - position), position)
            blocks, consumed, _, stop = native.index_frames(data, _BLOCK_BYTES, self.frame_bytes_max)
            if not consumed and stop == "torn" and chunk_bytes < self.frame_bytes_max:
                chunk_bytes = self.frame_bytes_max
                continue
            if not consumed:
                raise fault(self.path, position, self.base_offset, "torn" if stop == "end" else stop)
            self.blocks.extend((offset, position + at, latest_ms) for offset, at, latest_ms in blocks)
            self.indexed_bytes = position + consumed

    def save_index(self) -> None:
        """Write the index of the segment, which must not change any more."""
        self.index_to(self.size_bytes())
        body = np.array(self.blocks, np.int64).reshape(-1, 3).astype("<i8").tobytes()
        head = _INDEX.pack(_INDEX_MAGIC, native.crc32c(body), len(self.blocks), self.indexed_bytes)
        target = index_path(self.path)
        scratch = target.with_suffix(".scratch")
        scratch.write_bytes(head + body)
        scratch.replace(target)

    def _load_index(self) -> None:
        try:
            raw = index_path(self.path).read_bytes()
        except FileNotFoundError:
            return
        if len(raw) < _INDEX.size:
            return
        magic, checksum, count, end_bytes = _INDEX.unpack_from(raw)
        body = raw[_INDEX.size :]
        valid = magic == _INDEX_MAGIC and len(body) == count * 24 and native.crc32c(body) == checksum
        if valid and end_bytes == self.size_bytes():
            self.blocks = [(a, b, c) for a, b, c in np.frombuffer(body, "<i8").reshape(-1, 3).tolist()]
            self.indexed_bytes = end_bytes
