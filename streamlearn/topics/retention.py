"""Retention and compaction as pure decisions over segments; the implementations delete and rewrite."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from streamlearn.topics.records import Records
from streamlearn.topics.settings import TopicSettings

__all__ = ["FRAME_HEAD_BYTES", "LastOfKey", "SegmentFacts", "expired", "is_aged"]

FRAME_HEAD_BYTES = 32
"""Bytes a record takes beside its key and value; the memory topic counts as the file topic does."""


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """What retention needs to know of a segment; a segment without records has `timestamp_ms_max` -1."""

    base_offset: int
    size_bytes: int
    timestamp_ms_max: int


def is_aged(segment: SegmentFacts, settings: TopicSettings, now_ms: int) -> bool:
    """Whether every record of the segment is older than the retention allows."""
    return settings.retention_ms != -1 and segment.timestamp_ms_max < now_ms - settings.retention_ms


def expired(segments: Sequence[SegmentFacts], settings: TopicSettings, now_ms: int) -> int:
    """How many of the oldest segments are to go; the last one, to which writers append, never is.

    Size is Kafka's rule: a segment goes when what remains without it is still at least the bound.
    """
    total = sum(segment.size_bytes for segment in segments)
    count = 0
    for segment in segments[:-1]:
        over = settings.retention_bytes != -1 and total - segment.size_bytes >= settings.retention_bytes
        if not over and not is_aged(segment, settings, now_ms):
            break
        total -= segment.size_bytes
        count += 1
    return count


@dataclass(slots=True)
class LastOfKey:
    """The last offset of each key of a partition, and from it which records compaction keeps.

    Memory: one entry per distinct key. Compacted topics are for progress and settings, not for events.
    """

    offsets: dict[bytes, int] = field(default_factory=dict)

    def add(self, keys: Iterable[bytes | None], offsets: Iterable[int]) -> None:
        """Take in records in the order of their offsets."""
        self.offsets.update((key, offset) for key, offset in zip(keys, offsets, strict=True) if key is not None)

    def kept(self, records: Records, settings: TopicSettings, now_ms: int) -> list[int]:
        """Which of the records stay: the last of each key, deletions only while they are young."""
        tombstones_from_ms = now_ms - settings.tombstones_keep_ms
        return [
            at
            for at, (key, value, offset, timestamp_ms) in enumerate(
                zip(
                    records.keys,
                    records.values,
                    records.offsets.tolist(),
                    records.timestamps_ms.tolist(),
                    strict=True,
                )
            )
            if key is None
            or (self.offsets.get(key) == offset and (value is not None or timestamp_ms >= tombstones_from_ms))
        ]
