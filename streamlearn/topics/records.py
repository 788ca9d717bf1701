"""Records: what a read gives, what an append takes, and the position from which reading goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamlearn.errors import BadRecord, Oversize, UsageError
from streamlearn.topics.settings import TopicSettings

__all__ = ["Outgoing", "Position", "Records", "check_record", "empty_records"]


@dataclass(frozen=True, slots=True)
class Position:
    """Where reading a partition goes on: the first offset not yet wholly used.

    Attributes:
        topic_id: Of the topic it was taken from; a topic deleted and created again has another.
        partition: The partition.
        offset: The next offset to read.
        leader_epoch: Kafka's leader epoch of the record before it, which shows whether the log was truncated and has
            grown again; -1 where it is not known, as in other topics.
    """

    topic_id: str
    partition: int
    offset: int
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """Records of one partition, as columns of equal length n, in the order of their offsets.

    Attributes:
        partition: The partition.
        offsets: int64[n], growing but not dense: compaction leaves gaps.
        timestamps_ms: int64[n], whatever their writers stamped them with.
        keys: n keys, None where a record has none.
        values: n values; None is the tombstone of a compacted topic, an empty value is not.
        next_offset: Where to read on. Beyond the last offset plus one where records are gone.
        leader_epochs: (first offset, Kafka's leader epoch from there on), both growing; none in other topics.
    """

    partition: int
    offsets: NDArray[np.int64]
    timestamps_ms: NDArray[np.int64]
    keys: list[bytes | None]
    values: list[bytes | None]
    next_offset: int
    leader_epochs: Sequence[tuple[int, int]] = ()

    def __len__(self) -> int:
        return len(self.values)

    def slice(self, start: int, stop: int) -> Records:
        """The records from `start` up to, without, `stop`; reading on from it loses none of the others."""
        stop = min(max(start, stop), len(self))
        if stop == len(self):
            following = self.next_offset
        else:
            following = int(self.offsets[stop - 1]) + 1 if stop > start else int(self.offsets[start])
        return Records(
            self.partition,
            self.offsets[start:stop],
            self.timestamps_ms[start:stop],
            self.keys[start:stop],
            self.values[start:stop],
            following,
            self.leader_epochs,
        )

    @property
    def leader_epoch(self) -> int:
        """The leader epoch of the record before `next_offset`; -1 where it is not known."""
        return self.leader_epoch_at(self.next_offset - 1)

    def leader_epoch_at(self, offset: int) -> int:
        """The leader epoch of the record at an offset; -1 where it is not known."""
        return next((epoch for first, epoch in reversed(self.leader_epochs) if first <= offset), -1)


def empty_records(partition: int, offset: int, leader_epochs: Sequence[tuple[int, int]] = ()) -> Records:
    """No records; reading goes on at `offset`."""
    none = np.empty(0, np.int64)
    return Records(partition, none, none, [], [], offset, leader_epochs)


@dataclass(frozen=True, slots=True, eq=False)
class Outgoing:
    """Records on their way into one partition, as columns of equal length n > 0.

    Attributes:
        values: n values, None for a tombstone.
        keys: n keys, or None when no record has one.
        timestamps_ms: int64[n].
    """

    values: Sequence[bytes | None]
    keys: Sequence[bytes | None] | None
    timestamps_ms: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.values)

    def slice(self, start: int, stop: int) -> Outgoing:
        """The records from `start` up to, without, `stop`."""
        keys = None if self.keys is None else self.keys[start:stop]
        return Outgoing(self.values[start:stop], keys, self.timestamps_ms[start:stop])

    def sizes(self) -> list[int]:
        """Bytes of key and value of each record."""
        values = [len(value) if value else 0 for value in self.values]
        if self.keys is None:
            return values
        return [size + (len(key) if key else 0) for size, key in zip(values, self.keys, strict=True)]

    def check(self, settings: TopicSettings) -> None:
        """Refuse what a topic of these settings would refuse, before anything is sent.

        Raises:
            UsageError: Columns of different lengths.
            Oversize: A record larger than the topic's limit.
            BadRecord: A record without a key, for a compacted topic; a negative timestamp.
        """
        keys = len(self.values) if self.keys is None else len(self.keys)
        if keys != len(self.values) or self.timestamps_ms.shape != (len(self.values),):
            message = f"{len(self.values)} values, {keys} keys, timestamps of shape {self.timestamps_ms.shape}"
            raise UsageError(message, help="give one key (or none) and one timestamp for each value")
        if len(self):
            unkeyed = self.keys is None or None in self.keys
            check_record(settings, max(self.sizes()), None if unkeyed else b"", int(self.timestamps_ms.min()))


def check_record(settings: TopicSettings, size_bytes: int, key: bytes | None, timestamp_ms: int) -> None:
    """Refuse a record, or the worst of many, that a topic of these settings would refuse.

    Raises:
        Oversize: It is larger than the topic's limit.
        BadRecord: It has no key, and the topic is compacted; its timestamp is negative or beyond 64 bits.
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
