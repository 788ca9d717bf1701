"""The writing side of one file partition: append, roll, retention and compaction, each under its lock.

A writer writes the frames first, then the head. Bytes that a killed writer left beyond the head were never
acknowledged, and the next writer truncates them.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from streamlearn.clock import Clock
from streamlearn.errors import NotDelivered, TopicUnreachable
from streamlearn.native import native
from streamlearn.topics.file_folder import Folder
from streamlearn.topics.file_head import HEAD_NAME, Head, read_head, write_head
from streamlearn.topics.file_segment import Segment, bases_of, fault, index_path, segment_path
from streamlearn.topics.records import Outgoing
from streamlearn.topics.retention import FRAME_HEAD_BYTES, LastOfKey, SegmentFacts, expired, is_aged
from streamlearn.topics.settings import AccessSettings

__all__ = ["FileLog"]

_LOCK_PAUSE_S = 0.0002
_LOCK_PAUSE_S_MAX = 0.01
_COMPACT_LIMITS = (4_096, 4 * 1_048_576)


class FileLog:
    """Appends to one partition. Any number of processes may have one; use it in one thread at a time."""

    def __init__(self, folder: Folder, partition: int, *, access: AccessSettings, clock: Clock, sync: bool) -> None:
        self._topic = folder
        self._folder = folder.partition(partition)
        self._access = access
        self._clock = clock
        self._sync = sync
        self._frame_bytes_max = folder.settings.record_bytes_max + FRAME_HEAD_BYTES
        self._head_path = self._folder / HEAD_NAME
        self._lock = self._head = self._segment = self._segment_base = -1
        try:
            self._lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CLOEXEC)
            self._head = os.open(self._head_path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Close the files."""
        for descriptor in (self._lock, self._head, self._segment):
            if descriptor >= 0:
                os.close(descriptor)
        self._lock = self._head = self._segment = -1

    def append(self, outgoing: Outgoing) -> int:
        """Append records, acknowledge them and return the offset of the first.

        Raises NotDelivered if the file system refuses the bytes (none is written then), TopicUnreachable after
        `lock_wait_ms`, and BadRecord if the file is shorter than its acknowledged length.
        """
        with self._locked():
            head = self._clean_head()
            if head.end_bytes >= self._topic.settings.segment_bytes:
                head = self._roll(head)
            data = native.pack_frames(head.next_offset, outgoing.timestamps_ms, outgoing.keys, outgoing.values)
            self._write(head, data)
            end_bytes, next_offset = head.end_bytes + len(data), head.next_offset + len(outgoing)
            write_head(self._head, Head(head.segment, end_bytes, next_offset, head.earliest), sync=self._sync)
            return head.next_offset

    def maintain(self) -> None:
        """Apply retention and compaction now."""
        with self._locked():
            head = self._clean_head()
            facts = self._facts(head.segment, head)
            if head.end_bytes and is_aged(facts, self._topic.settings, self._clock.wall_ms()):
                self._roll(head)
            else:
                self._tidy(head)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        started_s, pause_s = self._clock.monotonic_s(), _LOCK_PAUSE_S
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if (self._clock.monotonic_s() - started_s) * 1000 > self._access.lock_wait_ms:
                    message = f"another writer held {self._folder / 'lock'} for {self._access.lock_wait_ms} ms"
                    help = "find the process that holds the lock (`fuser`), or raise lock_wait_ms"
                    raise TopicUnreachable(message, help=help) from None
                self._clock.sleep(pause_s)
                pause_s = min(pause_s * 2, _LOCK_PAUSE_S_MAX)
        try:
            self._topic.check_same()
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _clean_head(self) -> Head:
        """Return the head, with its segment open and truncated to the acknowledged bytes."""
        head = read_head(self._head, self._head_path)
        path = segment_path(self._folder, head.segment)
        if self._segment_base != head.segment:
            # Open first, close second: if opening fails, no closed descriptor may stay here, since it gets reused.
            opened, previous = os.open(path, os.O_RDWR | os.O_CLOEXEC), self._segment
            self._segment, self._segment_base = opened, head.segment
            if previous >= 0:
                os.close(previous)
        size = os.fstat(self._segment).st_size
        if size < head.end_bytes:
            raise fault(path, size, head.next_offset, "torn")
        if size > head.end_bytes:
            os.ftruncate(self._segment, head.end_bytes)
        return head

    def _write(self, head: Head, data: bytes) -> None:
        written = 0
        try:
            while written < len(data):
                written += os.pwrite(self._segment, memoryview(data)[written:], head.end_bytes + written)
            if self._sync:
                os.fdatasync(self._segment)
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._segment, head.end_bytes)
            path = segment_path(self._folder, head.segment)
            message = f"{path}: {len(data)} bytes could not be written: {error.strerror}"
            raise NotDelivered(message, help="free space or repair the disk, then send the records again") from error

    def _roll(self, head: Head) -> Head:
        """Close the segment and begin the next.

        Segments beyond the head are what killed writers left, without records. Delete them: once the head passes
        them, they would stand between a reader and the records of the previous segment.
        """
        for base in bases_of(self._folder):
            if base > head.segment:
                self._unlink(base)
        if self._sync:
            os.fdatasync(self._segment)
        with closing(self._open(head.segment)) as segment:
            segment.save_index()
        path = segment_path(self._folder, head.next_offset)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644))
        if self._sync:
            _sync_folder(self._folder)
        head = Head(head.next_offset, 0, head.next_offset, head.earliest)
        write_head(self._head, head, sync=self._sync)
        return self._tidy(self._clean_head())

    def _tidy(self, head: Head) -> Head:
        """Apply retention, then compaction. The head moves before files are deleted, for the sake of readers."""
        settings, now_ms = self._topic.settings, self._clock.wall_ms()
        bases = [base for base in bases_of(self._folder) if base <= head.segment]
        expired_count = expired([self._facts(base, head) for base in bases], settings, now_ms)
        kept = bases[expired_count:]
        if kept[0] > head.earliest:
            head = Head(head.segment, head.end_bytes, head.next_offset, kept[0])
            write_head(self._head, head, sync=self._sync)
        for base in bases[:expired_count]:
            self._unlink(base)
        for scratch in self._folder.glob("*.scratch*"):  # left by killed writers, since this one has the lock
            scratch.unlink()
        if settings.compacted and len(kept) > 1:
            self._compact(kept, head)
        return head

    def _unlink(self, base: int) -> None:
        path = segment_path(self._folder, base)
        index_path(path).unlink(missing_ok=True)
        path.unlink(missing_ok=True)

    def _facts(self, base: int, head: Head) -> SegmentFacts:
        with closing(self._open(base)) as segment:
            end_bytes = head.end_bytes if base == head.segment else segment.size_bytes()
            return SegmentFacts(base, end_bytes, segment.timestamp_ms_max(end_bytes))

    def _compact(self, bases: list[int], head: Head) -> None:
        last = LastOfKey()
        for base in bases:
            with closing(self._open(base)) as segment:
                end_bytes = head.end_bytes if base == head.segment else segment.size_bytes()
                position = 0
                while position < end_bytes:
                    records, position = segment.read(0, position, end_bytes, _COMPACT_LIMITS)
                    last.add(records.keys, records.offsets.tolist())
        for base in bases[:-1]:
            self._rewrite(base, last)

    def _rewrite(self, base: int, last: LastOfKey) -> None:
        """Replace a closed segment by the records that compaction keeps; readers keep their open file."""
        scratch = segment_path(self._folder, base).with_suffix(".scratch-log")
        now_ms, removed, position = self._clock.wall_ms(), 0, 0
        with closing(self._open(base)) as segment, scratch.open("wb") as file:
            end_bytes = segment.size_bytes()
            while position < end_bytes:
                records, position = segment.read(0, position, end_bytes, _COMPACT_LIMITS)
                kept = last.kept(records, self._topic.settings, now_ms)
                removed += len(records) - len(kept)
                for at in kept:
                    keys, values = [records.keys[at]], [records.values[at]]
                    timestamps_ms = records.timestamps_ms[at : at + 1]
                    file.write(native.pack_frames(int(records.offsets[at]), timestamps_ms, keys, values))
            file.flush()
            os.fsync(file.fileno())
        if not removed:
            scratch.unlink()
            return
        scratch.replace(segment.path)
        with closing(self._open(base)) as rewritten:
            rewritten.save_index()

    def _open(self, base: int) -> Segment:
        return Segment.open(self._folder, base, self._frame_bytes_max)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
