"""The writing side of one file partition: append, roll, retention and compaction, each under its lock.

Order of writes: the frames, then the head. What a killed writer left beyond the head was never acknowledged,
and the next writer cuts it off.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
    """Appends to one partition. Any number of processes may have one; for one thread at a time."""

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
        """Append records and acknowledge them; gives the offset of the first.

        Raises:
            NotDelivered: The file system refused the bytes; none of the records is there.
            TopicUnreachable: Another writer kept the lock for longer than `lock_wait_ms`.
            BadRecord: The file is shorter than what was acknowledged.
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
            segment = self._open(head.segment)
            try:
                latest_ms = segment.timestamp_ms_max(head.end_bytes)
            finally:
                segment.close()
            facts = SegmentFacts(head.segment, head.end_bytes, latest_ms)
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
                    lock, waited_ms = self._folder / "lock", self._access.lock_wait_ms
                    message = f"another writer held {lock} for {waited_ms} ms"
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
        """The head, with its segment open and cut to what was acknowledged."""
        head = read_head(self._head, self._head_path)
        path = segment_path(self._folder, head.segment)
        if self._segment_base != head.segment:
            # Opened before the other is closed: after a failure its number must not stay here, for others get it.
            opened, before = os.open(path, os.O_RDWR | os.O_CLOEXEC), self._segment
            self._segment, self._segment_base = opened, head.segment
            if before >= 0:
                os.close(before)
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
            message = (
                f"{segment_path(self._folder, head.segment)}: {len(data)} bytes could not be written: {error.strerror}"
            )
            raise NotDelivered(message, help="free space or repair the disk, then send the records again") from error

    def _roll(self, head: Head) -> Head:
        """Close the segment and begin the next.

        Segments beyond the head are what killed writers left, without records; once the head had passed them
        they would stand between a reader and the records of the segment before.
        """
        for base in bases_of(self._folder):
            if base > head.segment:
                self._unlink(base)
        if self._sync:
            os.fdatasync(self._segment)
        closed = self._open(head.segment)
        try:
            closed.save_index()
        finally:
            closed.close()
        path = segment_path(self._folder, head.next_offset)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644))
        if self._sync:
            _sync_folder(self._folder)
        head = Head(head.next_offset, 0, head.next_offset, head.earliest)
        write_head(self._head, head, sync=self._sync)
        return self._tidy(self._clean_head())

    def _tidy(self, head: Head) -> Head:
        """Retention, then compaction; the head moves before files go, so that no reader is surprised."""
        settings, now_ms = self._topic.settings, self._clock.wall_ms()
        bases = [base for base in bases_of(self._folder) if base <= head.segment]
        facts = [self._facts(base, head) for base in bases]
        gone = expired(facts, settings, now_ms)
        if bases[gone] > head.earliest:
            head = Head(head.segment, head.end_bytes, head.next_offset, bases[gone])
            write_head(self._head, head, sync=self._sync)
        for base in bases[:gone]:
            self._unlink(base)
        for scratch in self._folder.glob("*.scratch*"):  # of writers that were killed: this one has the lock
            scratch.unlink()
        if settings.compacted and len(bases) - gone > 1:
            self._compact(bases[gone:], head)
        return head

    def _unlink(self, base: int) -> None:
        path = segment_path(self._folder, base)
        index_path(path).unlink(missing_ok=True)
        path.unlink(missing_ok=True)

    def _facts(self, base: int, head: Head) -> SegmentFacts:
        segment = self._open(base)
        try:
            end_bytes = head.end_bytes if base == head.segment else segment.size_bytes()
            return SegmentFacts(base, end_bytes, segment.timestamp_ms_max(end_bytes))
        finally:
            segment.close()

    def _compact(self, bases: list[int], head: Head) -> None:
        last = LastOfKey()
        for base in bases:
            end_bytes = head.end_bytes if base == head.segment else -1
            segment = self._open(base)
            try:
                end_bytes = segment.size_bytes() if end_bytes < 0 else end_bytes
                position = 0
                while position < end_bytes:
                    records, position = segment.read(0, position, end_bytes, _COMPACT_LIMITS)
                    last.add(records.keys, records.offsets.tolist())
            finally:
                segment.close()
        for base in bases[:-1]:
            self._rewrite(base, last)

    def _rewrite(self, base: int, last: LastOfKey) -> None:
        """Replace a closed segment by what compaction keeps; readers that have it open go on with it."""
        segment, now_ms = self._open(base), self._clock.wall_ms()
        scratch = segment.path.with_suffix(".scratch-log")
        removed, position = 0, 0
        try:
            end_bytes = segment.size_bytes()
            with scratch.open("wb") as file:
                while position < end_bytes:
                    records, position = segment.read(0, position, end_bytes, _COMPACT_LIMITS)
                    kept = last.kept(records, self._topic.settings, now_ms)
                    removed += len(records) - len(kept)
                    for at in kept:
                        keys, values = [records.keys[at]], [records.values[at]]
                        stamped_ms = records.timestamps_ms[at : at + 1]
                        file.write(native.pack_frames(int(records.offsets[at]), stamped_ms, keys, values))
                file.flush()
                os.fsync(file.fileno())
        finally:
            segment.close()
        if not removed:
            scratch.unlink()
            return
        scratch.replace(segment.path)
        rewritten = self._open(base)
        try:
            rewritten.save_index()
        finally:
            rewritten.close()

    def _open(self, base: int) -> Segment:
        return Segment.open(self._folder, base, self._frame_bytes_max)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
