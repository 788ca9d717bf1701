"""The interfaces `Topic` and `Reader`: the contract of every implementation. It knows no implementation."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence

from streamlearn.errors import PositionLost, TopicMissing, TopicReplaced, UsageError
from streamlearn.resource import Resource
from streamlearn.topics.meters import Meter
from streamlearn.topics.records import Position, Records
from streamlearn.topics.settings import Durability, TopicSettings, WriterSettings
from streamlearn.topics.writer import Writer

__all__ = ["Reader", "Topic", "pause_s_of", "replaced"]

_POLL_S = 0.01
_PAUSE_S_MAX, _PAUSE_SHARE = 1.0, 0.05


def pause_s_of(silence_s: float, least_s: float, most_s: float = _PAUSE_S_MAX) -> float:
    """Return the seconds until the next poll: a fixed share of the silence so far, within [least_s, most_s].

    Examples:
        >>> pause_s_of(0.0, 0.01), pause_s_of(1.0, 0.01), pause_s_of(60.0, 0.01), pause_s_of(60.0, 0.5)
        (0.01, 0.05, 1.0, 1.0)
    """
    return max(least_s, min(silence_s * _PAUSE_SHARE, most_s))


class Topic(Resource, ABC):
    """A named log of records in partitions.

    Guaranteed: an acknowledged record keeps its offset, and records of a partition are read in the order of
    their offsets. Not guaranteed: any order between partitions; dense offsets; increasing timestamps.
    The classic mistake is to keep an offset without the topic's id: after a topic is deleted and created
    again the same number names another record. Keep a `Position`.
    """

    url: str  # without credentials
    topic_id: str  # chosen when the topic is created, never reused
    partitions: int  # the number of partitions

    @abstractmethod
    def settings(self) -> TopicSettings:
        """Return the topic's current settings as the implementation reports them."""

    def durability(self) -> Durability | None:
        """Return the topic's replication; None without brokers, or if this user may not read their settings."""
        return None

    @abstractmethod
    def writer(self, settings: WriterSettings | None = None) -> Writer:
        """Return a writer; close it. Writers of many threads and processes may write at the same time."""

    def reader(self, partitions: Iterable[int] | None = None, positions: Iterable[Position] = ()) -> Reader:
        """Return a reader of the given partitions, by default of all; close it.

        `positions` are checked at once, so that a lost one fails the start and not an hour's work.

        Raises:
            TopicMissing: The topic has no such partition.
            TopicReplaced: A position has another topic id.
            PositionLost: A position is outside [earliest, end].
        """
        chosen = tuple(range(self.partitions)) if partitions is None else tuple(partitions)
        for partition in chosen:
            self.check_partition(partition)
        reader = self._open_reader(chosen)
        try:
            for position in positions:
                reader.check(position)
        except BaseException:
            reader.close()
            raise
        return reader

    @abstractmethod
    def maintain(self) -> None:
        """Apply retention and compaction now.

        Writers also do so when they begin a segment. Kafka's broker does it by itself: there, this does nothing.
        """

    @abstractmethod
    def close(self) -> None:
        """Close connections and files, but not the readers and writers made here."""

    @abstractmethod
    def _open_reader(self, partitions: tuple[int, ...]) -> Reader: ...

    def check_partition(self, partition: int) -> None:
        """Refuse a partition that the topic does not have."""
        if not 0 <= partition < self.partitions:
            message = f"{self.url} has no partition {partition}: it has {self.partitions}, numbered from 0"
            raise TopicMissing(message, help="use partitions that the topic has")


class Reader(Resource, ABC):
    """Reads partitions of one topic from offsets that its caller keeps. Use it in one thread at a time.

    Guaranteed: no record comes twice, out of order or is skipped silently; a read is of the topic id that the reader
    was opened with, or it fails. Not guaranteed: as many records as requested, even if there are more.
    The classic mistake is to take an empty read for the end of the topic: compare with `end`.
    """

    def __init__(self, url: str, topic_id: str, partitions: Iterable[int]) -> None:
        self.url = url
        self.topic_id = topic_id
        self._partitions = frozenset(partitions)
        self._meter = Meter(url)
        self._received_s = time.monotonic()

    def read(
        self, partition: int, offset: int, *, max_records: int = 1_000, max_bytes: int = 1_048_576, wait_ms: int = 0
    ) -> Records:
        """Return records from `offset` on: at least one if it exists, none after `wait_ms` without any.

        The first record comes even if it is larger than `max_bytes`. A read returns within `wait_ms` plus
        `AccessSettings.answer_wait_ms`, whatever a broker does; the next read returns an answer that comes later.
        Only the error for a lost offset may take longer, since it names both bounds. If a broker is away for less
        than `unreachable_after_ms`, the read returns no records.

        Of a compressed record beyond `AccessSettings.record_bytes_max` perhaps only the beginning comes. If a batch
        expands to more than `decompressed_bytes_max`, one empty record stands for its rest, and the log names the
        offsets.

        Raises:
            UsageError: `max_records` or `max_bytes` is below 1.
            PositionLost: `offset` is below earliest or beyond the end.
            TopicReplaced: The topic was deleted and created again.
            TopicMissing: The topic was deleted.
            TopicUnreachable: The topic could not be reached for longer than its bound.
            BadRecord: The bytes at `offset` are damaged.
        """
        self._check_partition(partition)
        records = self._read(partition, offset, _limits(max_records, max_bytes), wait_ms)
        self._count([records])
        return records

    def read_many(
        self, positions: Mapping[int, int], *, max_records: int = 1_000, max_bytes: int = 1_048_576, wait_ms: int = 0
    ) -> list[Records]:
        """Return records of many partitions as `read` does, for the price of about one read.

        `positions` maps each partition to its offset. `max_records` and `max_bytes` bound each partition, `wait_ms`
        bounds the whole call.

        Guaranteed: one `Records` for each position, in the order of `positions`, empty if there are none
        yet; it returns as soon as one of them has records. Not guaranteed: records of every partition that has
        some; a partition whose turn has not come reads as empty.

        Raises:
            UsageError: `max_records` or `max_bytes` is below 1.
            StreamlearnError: As `read`; the next read returns the records of the other partitions.
        """
        for partition in positions:
            self._check_partition(partition)
        batches = self._read_many(positions, _limits(max_records, max_bytes), wait_ms)
        self._count(batches)
        return batches

    def earliest(self, partition: int) -> int:
        """Return the first offset that can still be read."""
        self._check_partition(partition)
        return self._earliest(partition)

    def end(self, partition: int) -> int:
        """Return the offset after the last acknowledged record; the next record gets it or a larger one."""
        self._check_partition(partition)
        return self._end(partition)

    def offset_for_time(self, partition: int, timestamp_ms: int) -> int:
        """Return the first offset with a timestamp at or after `timestamp_ms`, or the end if there is none.

        Timestamps need not increase with offsets: later records may have earlier ones.
        """
        self._check_partition(partition)
        return self._offset_for_time(partition, timestamp_ms)

    @abstractmethod
    def close(self) -> None:
        """Close connections and files."""

    @abstractmethod
    def _read(self, partition: int, offset: int, limits: tuple[int, int], wait_ms: int) -> Records: ...

    def _read_many(self, positions: Mapping[int, int], limits: tuple[int, int], wait_ms: int) -> list[Records]:
        """Read each partition without waiting; repeat after pauses until one has records or the time is up."""
        deadline_s = time.monotonic() + wait_ms / 1000
        batches = [self._read(partition, offset, limits, 0) for partition, offset in positions.items()]
        while batches and not any(map(len, batches)) and (left_s := deadline_s - (now_s := time.monotonic())) > 0:
            time.sleep(min(left_s, pause_s_of(now_s - self._received_s, _POLL_S)))
            batches = [self._read(records.partition, records.next_offset, limits, 0) for records in batches]
        return batches

    @abstractmethod
    def _earliest(self, partition: int) -> int: ...

    @abstractmethod
    def _end(self, partition: int) -> int: ...

    @abstractmethod
    def _offset_for_time(self, partition: int, timestamp_ms: int) -> int: ...

    def _count(self, batches: Sequence[Records]) -> None:
        if records := sum(map(len, batches)):
            self._received_s = time.monotonic()
            columns = (column for batch in batches for column in (batch.keys, batch.values))
            self._meter.read(records, sum(sum(map(len, filter(None, column))) for column in columns))

    def _check_partition(self, partition: int) -> None:
        if partition not in self._partitions:
            message = f"{self.url}: this reader was not opened for partition {partition}"
            raise TopicMissing(message, help="name every partition to read when you open the reader")

    def check(self, position: Position) -> None:
        """Refuse a position that cannot be read.

        Raises:
            TopicReplaced: It has another topic id.
            PositionLost: It is outside [earliest, end].
        """
        if position.topic_id != self.topic_id:
            raise replaced(self.url, position.topic_id, self.topic_id)
        self.check_offset(position.partition, position.offset, self.earliest(position.partition), None)

    def check_offset(self, partition: int, offset: int, earliest: int, end: int | None) -> None:
        """Refuse an offset outside [earliest, end]; None looks up the end."""
        end = self.end(partition) if end is None else end
        if not earliest <= offset <= end:
            where = f"{self.url} partition {partition}"
            message = f"{where}: position {offset} is outside the readable range [{earliest}, {end}]"
            help = (
                "records were deleted before they were read, or the topic lost its end; choose the position "
                "to continue from: records are never skipped silently"
            )
            raise PositionLost(message, help=help)


def _limits(max_records: int, max_bytes: int) -> tuple[int, int]:
    if max_records < 1 or max_bytes < 1:
        message = f"a read of at most {max_records} records and {max_bytes} bytes"
        raise UsageError(message, help="ask for at least 1 of each; a read returns one record whatever its size")
    return max_records, max_bytes


def replaced(url: str, wanted_id: str, found_id: str) -> TopicReplaced:
    """Return the error for a topic that has another id than the expected one."""
    message = f"{url} has topic id {found_id}, not {wanted_id}: it was deleted and created again"
    return TopicReplaced(
        message, help="offsets of the old topic mean nothing in the new one; start over and name a position"
    )
