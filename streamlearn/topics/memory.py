"""Topics in the memory of this process, for tests, examples and single-process use."""

from __future__ import annotations

import threading
import time
import uuid
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from streamlearn.clock import Clock
from streamlearn.errors import TopicExists, TopicMissing
from streamlearn.topics.records import Outgoing, Records, empty_records
from streamlearn.topics.retention import FRAME_HEAD_BYTES, LastOfKey, SegmentFacts, expired, is_aged
from streamlearn.topics.settings import TopicSettings, WriterSettings
from streamlearn.topics.topic import Reader, Topic, replaced
from streamlearn.topics.writer import Writer

__all__ = ["MemoryTopic", "create_memory_topic", "delete_memory_topic"]


@dataclass(slots=True)
class _Segment:
    base_offset: int
    offsets: list[int] = field(default_factory=list)
    timestamps_ms: list[int] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    size_bytes: int = 0

    def facts(self) -> SegmentFacts:
        return SegmentFacts(self.base_offset, self.size_bytes, max(self.timestamps_ms, default=-1))

    def records(self, partition: int, start: int, stop: int) -> Records:
        next_offset = self.offsets[stop - 1] + 1 if stop > start else self.base_offset
        return Records(
            partition,
            np.array(self.offsets[start:stop], np.int64),
            np.array(self.timestamps_ms[start:stop], np.int64),
            self.keys[start:stop],
            self.values[start:stop],
            next_offset,
        )

    def extend(self, first_offset: int, outgoing: Outgoing) -> None:
        self.offsets.extend(range(first_offset, first_offset + len(outgoing)))
        self.timestamps_ms.extend(outgoing.timestamps_ms.tolist())
        self.keys.extend([None] * len(outgoing) if outgoing.keys is None else outgoing.keys)
        self.values.extend(outgoing.values)
        self.size_bytes += sum(outgoing.sizes()) + FRAME_HEAD_BYTES * len(outgoing)

    def keep(self, kept: list[int]) -> None:
        if len(kept) == len(self.offsets):
            return
        self.offsets = [self.offsets[at] for at in kept]
        self.timestamps_ms = [self.timestamps_ms[at] for at in kept]
        self.keys = [self.keys[at] for at in kept]
        self.values = [self.values[at] for at in kept]
        self.size_bytes = sum(map(self.record_bytes, range(len(kept))))

    def record_bytes(self, at: int) -> int:
        return FRAME_HEAD_BYTES + len(self.keys[at] or b"") + len(self.values[at] or b"")


@dataclass(slots=True)
class _Log:
    """The partitions of one topic; hold `changed` to use them."""

    settings: TopicSettings
    topic_id: str
    partitions: list[list[_Segment]]
    ends: list[int]
    changed: threading.Condition = field(default_factory=threading.Condition)

    def append(self, partition: int, outgoing: Outgoing, now_ms: int) -> int:
        segments, base = self.partitions[partition], self.ends[partition]
        if segments[-1].size_bytes >= self.settings.segment_bytes:
            segments.append(_Segment(base))
            self.tidy(partition, now_ms)
        segments[-1].extend(base, outgoing)
        self.ends[partition] = base + len(outgoing)
        self.changed.notify_all()
        return base

    def maintain(self, partition: int, now_ms: int) -> None:
        segments = self.partitions[partition]
        if segments[-1].offsets and is_aged(segments[-1].facts(), self.settings, now_ms):
            segments.append(_Segment(self.ends[partition]))
        self.tidy(partition, now_ms)

    def tidy(self, partition: int, now_ms: int) -> None:
        segments = self.partitions[partition]
        del segments[: expired([segment.facts() for segment in segments], self.settings, now_ms)]
        if not self.settings.compacted:
            return
        last = LastOfKey()
        for segment in segments:
            last.add(segment.keys, segment.offsets)
        for segment in segments[:-1]:
            records = segment.records(partition, 0, len(segment.offsets))
            segment.keep(last.kept(records, self.settings, now_ms))

    def find(self, partition: int, offset: int, max_records: int, max_bytes: int) -> Records:
        """Return records of one segment from a readable offset on."""
        segments = self.partitions[partition]
        at = bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1
        for segment in segments[at:]:
            start = bisect_left(segment.offsets, offset)
            stop, size = start, 0
            while stop < min(len(segment.offsets), start + max_records):
                size += segment.record_bytes(stop)
                if size > max_bytes and stop > start:
                    break
                stop += 1
            if stop > start:
                return segment.records(partition, start, stop)
        return empty_records(partition, self.ends[partition])


_LOGS: dict[str, _Log] = {}
_LOGS_LOCK = threading.Lock()


def create_memory_topic(name: str, settings: TopicSettings) -> None:
    """Create a topic in this process; raises TopicExists if the name is taken."""
    partitions = [[_Segment(0)] for _ in range(settings.partitions)]
    with _LOGS_LOCK:
        if name in _LOGS:
            message = f"memory://{name} exists already"
            raise TopicExists(message, help="delete it first, or choose another name")
        _LOGS[name] = _Log(settings, str(uuid.uuid4()), partitions, [0] * settings.partitions)


def delete_memory_topic(name: str) -> None:
    """Delete a topic of this process; raises TopicMissing if it does not exist."""
    log = _log_named(name)
    with _LOGS_LOCK:
        _LOGS.pop(name, None)
    with log.changed:
        log.changed.notify_all()


def _log_named(name: str) -> _Log:
    with _LOGS_LOCK:
        log = _LOGS.get(name)
    if log is None:
        message = f"topic memory://{name} does not exist in this process"
        raise TopicMissing(message, help="create it first; memory topics exist only in the process that created them")
    return log


class MemoryTopic(Topic):
    """A topic in memory; creating the object opens it, and raises TopicMissing if it does not exist."""

    def __init__(self, name: str, clock: Clock) -> None:
        log = _log_named(name)
        self.url = f"memory://{name}"
        self.topic_id = log.topic_id
        self.partitions = log.settings.partitions
        self._log = log
        self._name = name
        self._clock = clock

    def settings(self) -> TopicSettings:
        """Return the settings that the topic was created with."""
        return self._log.settings

    def writer(self, settings: WriterSettings | None = None) -> Writer:
        """Return a writer, which delivers at once."""
        return _MemoryWriter(self, settings or WriterSettings(), self._clock)

    def maintain(self) -> None:
        """Apply retention and compaction now."""
        with self._log.changed:
            for partition in range(self.partitions):
                self._log.maintain(partition, self._clock.wall_ms())

    def close(self) -> None:
        """Do nothing: the topic holds no connections."""

    def _open_reader(self, partitions: tuple[int, ...]) -> Reader:
        return _MemoryReader(self, partitions)

    def live_log(self) -> _Log:
        """Return the log; raises TopicReplaced or TopicMissing if the topic is no longer the one that was opened."""
        current = _log_named(self._name)
        if current is not self._log:
            raise replaced(self.url, self.topic_id, current.topic_id)
        return current


class _MemoryWriter(Writer):
    def __init__(self, topic: MemoryTopic, settings: WriterSettings, clock: Clock) -> None:
        super().__init__(topic.url, topic.settings(), settings, clock)
        self._memory_topic = topic

    def _append(self, partition: int, outgoing: Outgoing) -> NDArray[np.int64]:
        log = self._memory_topic.live_log()
        with log.changed:
            base = log.append(partition, outgoing, self._clock.wall_ms())
        return np.arange(base, base + len(outgoing), dtype=np.int64)

    def _close(self) -> None:
        pass


class _MemoryReader(Reader):
    def __init__(self, topic: MemoryTopic, partitions: tuple[int, ...]) -> None:
        super().__init__(topic.url, topic.topic_id, partitions)
        self._memory_topic = topic

    def _read(self, partition: int, offset: int, limits: tuple[int, int], wait_ms: int) -> Records:
        deadline_s = time.monotonic() + wait_ms / 1000
        while True:
            log = self._memory_topic.live_log()
            with log.changed:
                end = log.ends[partition]
                self.check_offset(partition, offset, log.partitions[partition][0].base_offset, end)
                if offset < end:
                    return replace(log.find(partition, offset, *limits), end=end)
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    return empty_records(partition, offset)
                log.changed.wait(left_s)

    def _earliest(self, partition: int) -> int:
        return self._memory_topic.live_log().partitions[partition][0].base_offset

    def _end(self, partition: int) -> int:
        return self._memory_topic.live_log().ends[partition]

    def _offset_for_time(self, partition: int, timestamp_ms: int) -> int:
        log = self._memory_topic.live_log()
        with log.changed:
            for segment in log.partitions[partition]:
                for offset, stamp_ms in zip(segment.offsets, segment.timestamps_ms, strict=True):
                    if stamp_ms >= timestamp_ms:
                        return offset
            return log.ends[partition]

    def close(self) -> None:
        pass
