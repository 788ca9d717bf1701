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
    """

    topic_id: str
    partition: int
    offset: int


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
    """

    partition: int
    offsets: NDArray[np.int64]
    timestamps_ms: NDArray[np.int64]
    keys: list[bytes | None]
    values: list[bytes | None]
    next_offset: int

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
        )


def empty_records(partition: int, offset: int) -> Records:
    """No records; reading goes on at `offset`."""
    none = np.empty(0, np.int64)
    return Records(partition, none, none, [], [], offset)


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
            raise UsageError(message, help="give one key (or none at all) and one timestamp for each value")
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
        message = "a record without a key cannot be kept by key"
        raise BadRecord(message, help="give every record of a compacted topic a key")
    if not 0 <= timestamp_ms < 2**63:
        message = f"timestamp {timestamp_ms} ms is {'before 1970' if timestamp_ms < 0 else 'beyond 64 bits'}"
        raise BadRecord(message, help="timestamps are milliseconds since 1970 UTC")
