"""Topics in a folder of this machine, for many readers and writers in many processes, without a server."""

from __future__ import annotations

import os
from bisect import bisect_right
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from streamlearn.clock import Clock
from streamlearn.errors import BadRecord, TopicUnreachable
from streamlearn.topics.file_folder import Folder, folder_unreachable
from streamlearn.topics.file_head import HEAD_NAME, Head, read_head
from streamlearn.topics.file_log import FileLog
from streamlearn.topics.file_segment import Segment, bases_of
from streamlearn.topics.records import Outgoing, Records, empty_records
from streamlearn.topics.retention import FRAME_HEAD_BYTES
from streamlearn.topics.settings import AccessSettings, TopicSettings, WriterSettings
from streamlearn.topics.topic import Reader, Topic, pause_s_of
from streamlearn.topics.writer import Writer

__all__ = ["FileTopic"]

_POLL_S = 0.0005
_CHUNK_BYTES_MIN = 65_536
_CHUNK_BYTES_OF_RECORD = 1_024
_MOVES_MAX = 100


class FileTopic(Topic):
    """A topic in a folder; docs/internals/file-topic.md describes the format."""

    def __init__(self, folder: Folder, access: AccessSettings, clock: Clock) -> None:
        self.url = folder.url
        self.topic_id = folder.topic_id
        self.partitions = folder.settings.partitions
        self._folder = folder
        self._access = access
        self._clock = clock

    def settings(self) -> TopicSettings:
        """Return the settings that the topic was created with."""
        return self._folder.settings

    def writer(self, settings: WriterSettings | None = None) -> Writer:
        """Return a writer, which locks a partition for each append."""
        return _FileWriter(self._folder, settings or WriterSettings(), self._access, self._clock)

    def maintain(self) -> None:
        """Apply retention and compaction now."""
        self._folder.check_same()
        for partition in range(self.partitions):
            log = FileLog(self._folder, partition, access=self._access, clock=self._clock, sync=False)
            with closing(log):
                log.maintain()

    def close(self) -> None:
        """Do nothing: the topic holds no open files."""

    def _open_reader(self, partitions: tuple[int, ...]) -> Reader:
        return _FileReader(self._folder, partitions, self._access, self._clock)


class _FileWriter(Writer):
    def __init__(self, folder: Folder, settings: WriterSettings, access: AccessSettings, clock: Clock) -> None:
        super().__init__(folder.url, folder.settings, settings, clock)
        self._folder = folder
        self._access = access
        self._logs: dict[int, FileLog] = {}

    def _append(self, partition: int, outgoing: Outgoing) -> NDArray[np.int64]:
        log = self._logs.get(partition)
        try:
            if log is None:
                self._folder.check_same()
                sync = self._settings.fsync == "batch"
                log = FileLog(self._folder, partition, access=self._access, clock=self._clock, sync=sync)
                self._logs[partition] = log
            base = log.append(outgoing)
        except OSError as error:
            failure = folder_unreachable(self._folder.path, error)
            failure.unsure = True  # the head may be written although its fsync failed
            raise failure from error
        return np.arange(base, base + len(outgoing), dtype=np.int64)

    def _close(self) -> None:
        for log in self._logs.values():
            log.close()
        self._logs.clear()


class _FileReader(Reader):
    """Keeps one head and one segment open per partition, and the end of its last read."""

    def __init__(self, folder: Folder, partitions: tuple[int, ...], access: AccessSettings, clock: Clock) -> None:
        super().__init__(folder.url, folder.topic_id, partitions)
        self._folder = folder
        self._access = access
        self._clock = clock
        self._frame_bytes_max = folder.settings.record_bytes_max + FRAME_HEAD_BYTES
        self._heads: dict[int, tuple[int, Path]] = {}
        self._segments: dict[int, Segment] = {}
        self._ends: dict[int, tuple[int, int, int]] = {}  # partition -> segment, offset, byte at which to continue
        self._partition_received_s: dict[int, float] = {}

    def _read(self, partition: int, offset: int, limits: tuple[int, int], wait_ms: int) -> Records:
        now_s = self._clock.monotonic_s()
        deadline_s, received_s = now_s + wait_ms / 1000, self._partition_received_s.setdefault(partition, now_s)
        while True:
            head = self._head(partition)
            self.check_offset(partition, offset, head.earliest, head.next_offset)
            now_s = self._clock.monotonic_s()
            if offset < head.next_offset:
                self._partition_received_s[partition] = now_s
                return self._records(partition, offset, head, limits)
            if now_s >= deadline_s:
                return empty_records(partition, offset)
            self._clock.sleep(min(pause_s_of(now_s - received_s, _POLL_S), deadline_s - now_s))

    def _earliest(self, partition: int) -> int:
        return self._head(partition).earliest

    def _end(self, partition: int) -> int:
        return self._head(partition).next_offset

    def _offset_for_time(self, partition: int, timestamp_ms: int) -> int:
        head = self._head(partition)
        for _ in range(_MOVES_MAX):
            try:
                return self._search_time(partition, timestamp_ms, head)
            except (FileNotFoundError, BadRecord) as error:
                head = self._newer_head(partition, head, error)
        message = f"{self.url} partition {partition}: writers moved on {_MOVES_MAX} times during one read"
        raise TopicUnreachable(message, help="try again; create the topic with a larger segment_bytes")

    def _search_time(self, partition: int, timestamp_ms: int, head: Head) -> int:
        for base in self._bases(partition, head):
            segment = self._segment(partition, base)
            offset = segment.offset_for_time(timestamp_ms, self._end_bytes(segment, head))
            if offset is not None:
                return max(offset, head.earliest)
        return head.next_offset

    def close(self) -> None:
        for descriptor, _ in self._heads.values():
            os.close(descriptor)
        for segment in self._segments.values():
            segment.close()
        self._heads.clear()
        self._segments.clear()
        self._ends.clear()

    def _head(self, partition: int) -> Head:
        try:
            self._folder.check_same()
            if partition not in self._heads:
                path = self._folder.partition(partition) / HEAD_NAME
                self._heads[partition] = (os.open(path, os.O_RDONLY | os.O_CLOEXEC), path)
            return read_head(*self._heads[partition])
        except OSError as error:
            raise folder_unreachable(self._folder.path, error) from error

    def _records(self, partition: int, offset: int, head: Head, limits: tuple[int, int]) -> Records:
        """Return the records at `offset`, which is below the end.

        Writers work at the same time: an inconsistency is damage only if the head has not changed.
        """
        chunk_bytes = max(_CHUNK_BYTES_MIN, limits[0] * _CHUNK_BYTES_OF_RECORD)
        limits = (limits[0], min(limits[1], chunk_bytes, self._access.fetch_bytes_max))
        for _ in range(_MOVES_MAX):
            try:
                records = self._scan(partition, offset, head, limits)
            except (FileNotFoundError, BadRecord) as error:
                head = self._newer_head(partition, head, error)
                self.check_offset(partition, offset, head.earliest, head.next_offset)
                continue
            if len(records) or records.next_offset >= head.next_offset:
                return replace(records, end=head.next_offset)
            offset = records.next_offset
        return empty_records(partition, offset)

    def _scan(self, partition: int, offset: int, head: Head, limits: tuple[int, int]) -> Records:
        """Return the records at `offset` from its segment, or none, with the next segment's begin as `next_offset`.

        Raises FileNotFoundError if retention deleted the segment after `head` was read, and BadRecord if the file is
        damaged or compaction has replaced it.
        """
        base = self._base_of(partition, offset, head)
        segment = self._segment(partition, base)
        end_bytes = self._end_bytes(segment, head)
        end = self._ends.get(partition)
        is_next = end is not None and end[:2] == (base, offset)
        position = end[2] if end is not None and is_next else segment.position_of(offset, end_bytes)
        while position < end_bytes:
            records, position = segment.read(offset, position, end_bytes, limits, partition=partition)
            if len(records):
                self._ends[partition] = (base, records.next_offset, position)
                return records
        self._ends.pop(partition, None)
        next_base = next((later for later in self._bases(partition, head) if later > base), head.next_offset)
        # Check after listing: if a segment in between was deleted, its records would be skipped.
        current = self._head(partition)
        self.check_offset(partition, offset, current.earliest, current.next_offset)
        return empty_records(partition, max(offset, next_base))

    def _newer_head(self, partition: int, head: Head, error: FileNotFoundError | BadRecord) -> Head:
        """Return the current head; raise `error` if it is damage, since no writer has moved on or replaced the file."""
        current, segment = self._head(partition), self._segments.get(partition)
        if isinstance(error, BadRecord) and current == head and not (segment and self._is_rewritten(segment)):
            raise error
        self._ends.pop(partition, None)
        if segment is not None:
            segment.close()
            del self._segments[partition]
        return current

    def _base_of(self, partition: int, offset: int, head: Head) -> int:
        end = self._ends.get(partition)
        if end is not None and end[1] == offset:
            return end[0]
        bases = self._bases(partition, head)
        if not bases or bases[0] > offset:
            raise FileNotFoundError
        return bases[bisect_right(bases, offset) - 1]

    def _bases(self, partition: int, head: Head) -> list[int]:
        folder = self._folder.partition(partition)
        return [base for base in bases_of(folder) if head.earliest <= base <= head.segment]

    def _end_bytes(self, segment: Segment, head: Head) -> int:
        return head.end_bytes if segment.base_offset == head.segment else segment.size_bytes()

    def _segment(self, partition: int, base: int) -> Segment:
        segment = self._segments.get(partition)
        if segment is not None and segment.base_offset == base and not self._is_rewritten(segment):
            return segment
        opened = Segment.open(self._folder.partition(partition), base, self._frame_bytes_max)
        if segment is not None:
            segment.close()
        self._ends.pop(partition, None)  # its position is of the previous file
        self._segments[partition] = opened
        return opened

    def _is_rewritten(self, segment: Segment) -> bool:
        """Return whether compaction has replaced the segment's file."""
        return self._folder.settings.compacted and segment.is_replaced()
