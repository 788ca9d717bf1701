"""Retention and compaction as pure decisions over segments; the implementations delete and rewrite."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from streamlearn.topics.records import Records
from streamlearn.topics.settings import TopicSettings

__all__ = ["FRAME_HEAD_BYTES", "LastOfKey", "SegmentFacts", "expired", "is_aged"]

FRAME_HEAD_BYTES = 32
"""Bytes of a record beside its key and value, in file topics; the memory topic counts them too."""


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """The facts of a segment that decide its retention."""

    base_offset: int
    size_bytes: int
    timestamp_ms_max: int  # -1 without records


def is_aged(segment: SegmentFacts, settings: TopicSettings, now_ms: int) -> bool:
    """Return whether every record of the segment is older than the retention allows."""
    return settings.retention_ms != -1 and segment.timestamp_ms_max < now_ms - settings.retention_ms


def expired(segments: Sequence[SegmentFacts], settings: TopicSettings, now_ms: int) -> int:
    """Return how many of the oldest segments to delete; never the last one, to which writers append.

    Size is Kafka's rule: a segment goes if the others together still reach the bound.
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
    """The last offset of each key of a partition, which decides the records that compaction keeps.

    Memory: one entry per distinct key. Compacted topics are for progress and settings, not for events.
    """

    offsets: dict[bytes, int] = field(default_factory=dict)

    def add(self, keys: Iterable[bytes | None], offsets: Iterable[int]) -> None:
        """Add records in the order of their offsets."""
        self.offsets.update((key, offset) for key, offset in zip(keys, offsets, strict=True) if key is not None)

    def kept(self, records: Records, settings: TopicSettings, now_ms: int) -> list[int]:
        """Return the indexes of the records that stay: the last of each key, and tombstones while they are young."""
        tombstones_from_ms = now_ms - settings.tombstones_keep_ms
        rows = zip(records.keys, records.values, records.offsets.tolist(), records.timestamps_ms.tolist(), strict=True)
        return [
            at
            for at, (key, value, offset, timestamp_ms) in enumerate(rows)
            if key is None
            or (self.offsets.get(key) == offset and (value is not None or timestamp_ms >= tombstones_from_ms))
        ]
