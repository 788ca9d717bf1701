"""Topics in a folder of this machine: many readers and writers in many processes, no server."""

from __future__ import annotations

import os
from bisect import bisect_right
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from streamlearn.clock import Clock
from streamlearn.errors import BadRecord, TopicUnreachable
from streamlearn.topics.file_folder import Folder, folder_unreachable, open_folder
from streamlearn.topics.file_head import HEAD_NAME, Head, read_head
from streamlearn.topics.file_log import FileLog
from streamlearn.topics.file_segment import Segment, bases_of
from streamlearn.topics.records import Outgoing, Records, empty_records
from streamlearn.topics.retention import FRAME_HEAD_BYTES
from streamlearn.topics.settings import AccessSettings, TopicSettings, WriterSettings
from streamlearn.topics.topic import Reader, Topic, pause_s_of
from streamlearn.topics.writer import Writer

__all__ = ["FileTopic", "open_file_topic"]

_POLL_S = 0.0005
_CHUNK_BYTES_MIN = 65_536
_CHUNK_BYTES_OF_RECORD = 1_024
_MOVES_MAX = 100


def open_file_topic(path: Path, access: AccessSettings, clock: Clock) -> FileTopic:
    """Open a topic's folder.

    Raises:
        TopicMissing: There is none.
    """
    return FileTopic(open_folder(path), access, clock)


class FileTopic(Topic):
    """A topic in a folder; the contract is `Topic`'s, the format is in docs/internals/file-topic.md."""

    def __init__(self, folder: Folder, access: AccessSettings, clock: Clock) -> None:
        self.url = folder.url
        self.topic_id = folder.topic_id
        self.partitions = folder.settings.partitions
        self._folder = folder
        self._access = access
        self._clock = clock

    def settings(self) -> TopicSettings:
        """What the topic was created with."""
        return self._folder.settings

    def writer(self, settings: WriterSettings | None = None) -> Writer:
        """A writer; it locks a partition for each append."""
        return _FileWriter(self._folder, settings or WriterSettings(), self._access, self._clock)

    def maintain(self) -> None:
        """Apply retention and compaction now."""
        self._folder.check_same()
        for partition in range(self.partitions):
            log = FileLog(self._folder, partition, access=self._access, clock=self._clock, sync=False)
            try:
                log.maintain()
            finally:
                log.close()

    def close(self) -> None:
        """Nothing to let go of."""

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
            failed = folder_unreachable(self._folder.path, error)
            failed.unsure = True  # the head may say so already, though its fsync failed
            raise failed from error
        return np.arange(base, base + len(outgoing), dtype=np.int64)

    def _close(self) -> None:
        for log in self._logs.values():
            log.close()
        self._logs.clear()


class _FileReader(Reader):
    """Keeps one head and one segment open per partition, and where the last read of it ended."""

    def __init__(self, folder: Folder, partitions: tuple[int, ...], access: AccessSettings, clock: Clock) -> None:
        super().__init__(folder.url, folder.topic_id, partitions)
        self._folder = folder
        self._access = access
        self._clock = clock
        self._frame_bytes_max = folder.settings.record_bytes_max + FRAME_HEAD_BYTES
        self._heads: dict[int, tuple[int, Path]] = {}
        self._segments: dict[int, Segment] = {}
        self._ends: dict[int, tuple[int, int, int]] = {}  # partition -> segment, offset, byte at which to go on
        self._partition_came_s: dict[int, float] = {}

    def _read(self, partition: int, offset: int, limits: tuple[int, int], wait_ms: int) -> Records:
        now_s = self._clock.monotonic_s()
        deadline_s, came_s = now_s + wait_ms / 1000, self._partition_came_s.setdefault(partition, now_s)
        while True:
            head = self._head(partition)
            self.check_offset(partition, offset, head.earliest, head.next_offset)
            now_s = self._clock.monotonic_s()
            if offset < head.next_offset:
                self._partition_came_s[partition] = now_s
                return self._found(partition, offset, head, limits)
            if now_s >= deadline_s:
                return empty_records(partition, offset)
            self._clock.sleep(min(pause_s_of(now_s - came_s, _POLL_S), deadline_s - now_s))

    def _earliest(self, partition: int) -> int:
        return self._head(partition).earliest

    def _end(self, partition: int) -> int:
        return self._head(partition).next_offset

    def _offset_for_time(self, partition: int, timestamp_ms: int) -> int:
        head = self._head(partition)
        for _ in range(_MOVES_MAX):
            try:
                return self._found_time(partition, timestamp_ms, head)
            except (FileNotFoundError, BadRecord) as error:
                head = self._moved_on(partition, head, error)
        raise self._restless(partition)

    def _found_time(self, partition: int, timestamp_ms: int, head: Head) -> int:
        for base in self._bases(partition, head):
            segment = self._segment(partition, base)
            found = segment.offset_for_time(timestamp_ms, self._end_bytes(segment, head))
            if found is not None:
                return max(found, head.earliest)
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

    def _found(self, partition: int, offset: int, head: Head, limits: tuple[int, int]) -> Records:
        """The records at `offset`, which is below the end.

        Writers move on while this looks: what does not fit together is damage only under a head that stands.
        """
        chunk_bytes = max(_CHUNK_BYTES_MIN, limits[0] * _CHUNK_BYTES_OF_RECORD)
        limits = (limits[0], min(limits[1], chunk_bytes, self._access.fetch_bytes_max))
        for _ in range(_MOVES_MAX):
            try:
                records = self._scanned(partition, offset, head, limits)
            except (FileNotFoundError, BadRecord) as error:
                head = self._moved_on(partition, head, error)
                self.check_offset(partition, offset, head.earliest, head.next_offset)
                continue
            if len(records) or records.next_offset >= head.next_offset:
                return records
            offset = records.next_offset
        return empty_records(partition, offset)

    def _scanned(self, partition: int, offset: int, head: Head, limits: tuple[int, int]) -> Records:
        """The records at `offset` of the segment it belongs to; without any, where the next segment begins.

        Raises:
            FileNotFoundError: Retention took what the head speaks of.
            BadRecord: Damage, or a file that compaction put in the place of the one the head speaks of.
        """
        base = self._base_of(partition, offset, head)
        segment = self._segment(partition, base)
        end_bytes = self._end_bytes(segment, head)
        known = self._ends.get(partition)
        at_end = known is not None and known[:2] == (base, offset)
        position = known[2] if known is not None and at_end else segment.position_of(offset, end_bytes)
        while position < end_bytes:
            records, position = segment.read(offset, position, end_bytes, limits, partition=partition)
            if len(records):
                self._ends[partition] = (base, records.next_offset, position)
                return records
        self._ends.pop(partition, None)
        following = next((later for later in self._bases(partition, head) if later > base), head.next_offset)
        # Listed before, looked at after: were a segment between deleted, its records would be passed over.
        now = self._head(partition)
        self.check_offset(partition, offset, now.earliest, now.next_offset)
        return empty_records(partition, max(offset, following))

    def _moved_on(self, partition: int, head: Head, error: FileNotFoundError | BadRecord) -> Head:
        """The head now, when a writer moved on since `head` was read or has replaced the segment's file.

        Raises:
            BadRecord: Nothing moved: the damage is there.
        """
        now, known = self._head(partition), self._segments.get(partition)
        if isinstance(error, BadRecord) and now == head and not (known and self._is_rewritten(known)):
            raise error
        self._ends.pop(partition, None)
        if known is not None:
            known.close()
            del self._segments[partition]
        return now

    def _restless(self, partition: int) -> TopicUnreachable:
        message = f"{self.url} partition {partition}: writers moved on {_MOVES_MAX} times during one read"
        return TopicUnreachable(message, help="try again; create the topic with a larger segment_bytes")

    def _base_of(self, partition: int, offset: int, head: Head) -> int:
        known = self._ends.get(partition)
        if known is not None and known[1] == offset:
            return known[0]
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
        known = self._segments.get(partition)
        if known is not None and known.base_offset == base and not self._is_rewritten(known):
            return known
        opened = Segment.open(self._folder.partition(partition), base, self._frame_bytes_max)
        if known is not None:
            known.close()
        self._ends.pop(partition, None)  # a byte of another file means nothing in this one
        self._segments[partition] = opened
        return opened

    def _is_rewritten(self, segment: Segment) -> bool:
        """Whether compaction has put another file in this one's place."""
        return self._folder.settings.compacted and segment.is_replaced()
