"""Records as a read returns them and as an append takes them, and the position at which reading continues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from streamlearn.errors import BadRecord, Oversize, UsageError
from streamlearn.topics.settings import TopicSettings

__all__ = ["Outgoing", "Position", "Records", "check_record", "empty_records"]


@dataclass(frozen=True, slots=True)
class Position:
    """The offset at which reading of a partition continues.

    `topic_id` tells a topic from an earlier one of the same name. `leader_epoch` is Kafka's leader epoch of the record
    before `offset`: it reveals a log that was truncated and has grown again. It is -1 if unknown or not in Kafka.
    """

    topic_id: str
    partition: int
    offset: int
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """Records of one partition, as columns of equal length n, in the order of their offsets."""

    partition: int
    offsets: NDArray[np.int64]  # [n], increasing but not dense: compaction leaves gaps
    timestamps_ms: NDArray[np.int64]  # [n], as the writers stamped the records
    keys: list[bytes | None]  # [n], None for a record without a key
    values: list[bytes | None]  # [n], None for a tombstone of a compacted topic; an empty value is not a tombstone
    next_offset: int  # where to read on; beyond the last offset plus one if the records after it were deleted
    leader_epochs: Sequence[tuple[int, int]] = ()  # (first offset, leader epoch from there on), increasing; for Kafka
    end: int = -1  # the partition's end when they were read; -1 if unknown

    def __len__(self) -> int:
        return len(self.values)

    def slice(self, start: int, stop: int) -> Records:
        """Return the records [start, stop); reading on from its `next_offset` skips none of the others."""
        stop = min(max(start, stop), len(self))
        if stop == len(self):
            next_offset = self.next_offset
        else:
            next_offset = int(self.offsets[stop - 1]) + 1 if stop > start else int(self.offsets[start])
        return replace(
            self,
            offsets=self.offsets[start:stop],
            timestamps_ms=self.timestamps_ms[start:stop],
            keys=self.keys[start:stop],
            values=self.values[start:stop],
            next_offset=next_offset,
        )

    @property
    def is_at_end(self) -> bool:
        """Whether the partition ended after these records when they were read."""
        return 0 <= self.end <= self.next_offset

    @property
    def leader_epoch(self) -> int:
        """The leader epoch of the record before `next_offset`; -1 if unknown."""
        return self.leader_epoch_at(self.next_offset - 1)

    def leader_epoch_at(self, offset: int) -> int:
        """Return the leader epoch of the record at an offset; -1 if unknown."""
        return next((epoch for first, epoch in reversed(self.leader_epochs) if first <= offset), -1)


def empty_records(partition: int, offset: int, leader_epochs: Sequence[tuple[int, int]] = ()) -> Records:
    """Return no records, with `offset` as the next one to read."""
    none = np.empty(0, np.int64)
    return Records(partition, none, none, [], [], offset, leader_epochs)


@dataclass(frozen=True, slots=True, eq=False)
class Outgoing:
    """Records to append to one partition, as columns of equal length n > 0."""

    values: Sequence[bytes | None]  # None is a tombstone
    keys: Sequence[bytes | None] | None  # None if no record has a key
    timestamps_ms: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.values)

    def slice(self, start: int, stop: int) -> Outgoing:
        """Return the records [start, stop)."""
        keys = None if self.keys is None else self.keys[start:stop]
        return Outgoing(self.values[start:stop], keys, self.timestamps_ms[start:stop])

    def sizes(self) -> list[int]:
        """Return the bytes of key and value of each record."""
        values = [len(value) if value else 0 for value in self.values]
        if self.keys is None:
            return values
        return [size + (len(key) if key else 0) for size, key in zip(values, self.keys, strict=True)]

    def check(self, settings: TopicSettings) -> None:
        """Refuse records that a topic with these settings refuses, before anything is sent.

        Raises:
            UsageError: The columns differ in length.
            Oversize: A record is larger than the topic's limit.
            BadRecord: A record of a compacted topic has no key, or a timestamp is out of range.
        """
        keys = len(self.values) if self.keys is None else len(self.keys)
        if keys != len(self.values) or self.timestamps_ms.shape != (len(self.values),):
            message = f"{len(self.values)} values, {keys} keys, timestamps of shape {self.timestamps_ms.shape}"
            raise UsageError(message, help="give one key (or none) and one timestamp for each value")
        if len(self):
            unkeyed = self.keys is None or None in self.keys
            check_record(settings, max(self.sizes()), None if unkeyed else b"", int(self.timestamps_ms.min()))


def check_record(settings: TopicSettings, size_bytes: int, key: bytes | None, timestamp_ms: int) -> None:
    """Refuse a record, or the worst of many, that a topic with these settings refuses.

    Raises:
        Oversize: It is larger than the topic's limit.
        BadRecord: It has no key and the topic is compacted, or its timestamp is negative or beyond 64 bits.
    """
    if size_bytes > settings.record_bytes_max:
        message = f"a record of {size_bytes} bytes is larger than the topic's limit of {settings.record_bytes_max}"
        raise Oversize(message, help="make the record smaller, or create the topic with a larger record_bytes_max")
    if settings.compacted and key is None:
        message = "a compacted topic cannot take a record without a key"
        raise BadRecord(message, help="give every record of a compacted topic a key")
    if not 0 <= timestamp_ms < 2**63:
        message = f"timestamp {timestamp_ms} ms is {'before 1970' if timestamp_ms < 0 else 'beyond 64 bits'}"
        raise BadRecord(message, help="timestamps are milliseconds since 1970 UTC")
