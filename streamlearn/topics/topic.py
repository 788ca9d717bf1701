"""The interface of topics: what every implementation promises. It knows no implementation."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self

from streamlearn.errors import PositionLost, TopicMissing, TopicReplaced, UsageError
from streamlearn.topics.meters import Meter
from streamlearn.topics.records import Position, Records
from streamlearn.topics.settings import Durability, TopicSettings, WriterSettings
from streamlearn.topics.writer import Writer

__all__ = ["Reader", "Topic", "pause_s_of", "replaced"]

_TURN_S = 0.01
_PAUSE_S_MAX, _PAUSE_SHARE = 0.25, 0.05


def pause_s_of(silence_s: float, least_s: float, most_s: float = _PAUSE_S_MAX) -> float:
    """How long to wait before the next look: the longer nothing came the longer, so that it adds little to a silence.

    Examples:
        >>> pause_s_of(0.0, 0.01), pause_s_of(1.0, 0.01), pause_s_of(60.0, 0.01), pause_s_of(60.0, 0.5)
        (0.01, 0.05, 0.25, 0.5)
    """
    return max(least_s, min(silence_s * _PAUSE_SHARE, most_s))


class Topic(ABC):
    """A named log of records in partitions.

    Guaranteed: an acknowledged record keeps its offset, and records of a partition are read in the order of
    their offsets. Not guaranteed: any order between partitions; dense offsets; timestamps that grow.
    The classic mistake is to keep an offset without the topic's id: after a topic is deleted and created
    again the same number names another record. Keep a `Position`.

    Attributes:
        url: Where it is, without credentials.
        topic_id: Made when the topic was created and never used again.
        partitions: Their number.
    """

    url: str
    topic_id: str
    partitions: int

    @abstractmethod
    def settings(self) -> TopicSettings:
        """What the topic is set to now, as the implementation says; not what this process once asked for."""

    def durability(self) -> Durability | None:
        """What a lost broker costs; None where no brokers keep it, or this user may not see their settings."""
        return None

    @abstractmethod
    def writer(self, settings: WriterSettings | None = None) -> Writer:
        """Something that appends; close it. Writers of many threads and processes may write at once."""

    def reader(self, partitions: Iterable[int] | None = None, positions: Iterable[Position] = ()) -> Reader:
        """Something that reads the given partitions (all of them when None); close it.

        Args:
            partitions: Those that will be read.
            positions: Checked now, so that a lost one stops a start and not an hour's work.

        Raises:
            TopicMissing: No such partition.
            TopicReplaced: A position of another topic id.
            PositionLost: A position outside [earliest, end].
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

        Writers do so themselves when they begin a segment. Kafka's broker does it alone: nothing is done.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of connections and files; readers and writers made here are closed by their owners."""

    @abstractmethod
    def _open_reader(self, partitions: tuple[int, ...]) -> Reader: ...

    def check_partition(self, partition: int) -> None:
        """Refuse a partition the topic does not have."""
        if not 0 <= partition < self.partitions:
            message = f"{self.url} has no partition {partition}: it has {self.partitions}, numbered from 0"
            raise TopicMissing(message, help="use partitions that the topic has")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Reader(ABC):
    """Reads partitions of one topic, from offsets its caller keeps. For one thread at a time.

    Guaranteed: never a record twice, out of order or silently left out; a read is of the topic id the reader
    was opened with or it fails. Not guaranteed: as many records as asked for, even when there are more.
    The classic mistake is to take an empty read for the end of the topic: compare with `end`.
    """

    def __init__(self, url: str, topic_id: str, partitions: Iterable[int]) -> None:
        self.url = url
        self.topic_id = topic_id
        self._partitions = frozenset(partitions)
        self._meter = Meter(url)
        self._came_s = time.monotonic()

    def read(
        self,
        partition: int,
        offset: int,
        *,
        max_records: int = 1_000,
        max_bytes: int = 1_048_576,
        wait_ms: int = 0,
    ) -> Records:
        """Records from `offset` on: at least one if there is one, none after `wait_ms` without any.

        The first record is given even when it is larger than `max_bytes`. A read returns within `wait_ms` and
        the `answer_wait_ms` of `AccessSettings`, whatever a broker does; an answer that comes later is given by
        the next read. Only an offset the broker refuses is asked after for longer, to name both bounds. A
        broker that is away for less than `unreachable_after_ms` reads as no records.

        Raises:
            UsageError: `max_records` or `max_bytes` is below 1.
            PositionLost: `offset` is below earliest or beyond the end.
            TopicReplaced: The topic was deleted and created again.
            TopicMissing: The topic was deleted.
            TopicUnreachable: The topic could not be reached for longer than its bound.
            BadRecord: The bytes at `offset` are not what was written.
            Oversize: They are compressed, and become more than `decompressed_bytes_max`.
        """
        self._check_partition(partition)
        records = self._read(partition, offset, _limits(max_records, max_bytes), wait_ms)
        self._count([records])
        return records

    def read_many(
        self,
        positions: Mapping[int, int],
        *,
        max_records: int = 1_000,
        max_bytes: int = 1_048_576,
        wait_ms: int = 0,
    ) -> list[Records]:
        """Records of many partitions, as `read` gives them, for the price of about one read.

        Guaranteed: one `Records` for each position, in the order of `positions`, empty where there is nothing
        yet; it returns as soon as one of them has records. Not guaranteed: records of every partition that has
        some; a partition whose turn has not come reads as empty.

        Args:
            positions: Partition to the offset to read from.
            max_records: Of each partition.
            max_bytes: Of each partition; the first record comes whatever its size.
            wait_ms: For all of them together.

        Raises:
            UsageError: `max_records` or `max_bytes` is below 1.
            StreamlearnError: As `read`; what was found in other partitions is given by the next read.
        """
        for partition in positions:
            self._check_partition(partition)
        found = self._read_many(positions, _limits(max_records, max_bytes), wait_ms)
        self._count(found)
        return found

    def earliest(self, partition: int) -> int:
        """The first offset that can still be read."""
        self._check_partition(partition)
        return self._earliest(partition)

    def end(self, partition: int) -> int:
        """The offset after the last acknowledged record; the next record will have it or a larger one."""
        self._check_partition(partition)
        return self._end(partition)

    def offset_for_time(self, partition: int, timestamp_ms: int) -> int:
        """The first offset whose record is stamped at or after `timestamp_ms`; the end when there is none.

        Timestamps need not grow with offsets: later records may well be stamped earlier.
        """
        self._check_partition(partition)
        return self._offset_for_time(partition, timestamp_ms)

    @abstractmethod
    def close(self) -> None:
        """Let go of connections and files."""

    @abstractmethod
    def _read(self, partition: int, offset: int, limits: tuple[int, int], wait_ms: int) -> Records: ...

    def _read_many(self, positions: Mapping[int, int], limits: tuple[int, int], wait_ms: int) -> list[Records]:
        """One look at each; when there is nothing, others after pauses until there is."""
        until_s = time.monotonic() + wait_ms / 1000
        found = [self._read(partition, offset, limits, 0) for partition, offset in positions.items()]
        while found and not any(map(len, found)) and (left_s := until_s - (now_s := time.monotonic())) > 0:
            time.sleep(min(left_s, pause_s_of(now_s - self._came_s, _TURN_S)))
            found = [self._read(records.partition, records.next_offset, limits, 0) for records in found]
        return found

    @abstractmethod
    def _earliest(self, partition: int) -> int: ...

    @abstractmethod
    def _end(self, partition: int) -> int: ...

    @abstractmethod
    def _offset_for_time(self, partition: int, timestamp_ms: int) -> int: ...

    def _count(self, found: Sequence[Records]) -> None:
        records = sum(map(len, found))
        if records:
            self._came_s = time.monotonic()
            columns = (column for each in found for column in (each.keys, each.values))
            self._meter.read(records, sum(sum(map(len, filter(None, column))) for column in columns))

    def _check_partition(self, partition: int) -> None:
        if partition not in self._partitions:
            message = f"{self.url}: this reader was not opened for partition {partition}"
            raise TopicMissing(message, help="name every partition to read when you open the reader")

    def check(self, position: Position) -> None:
        """Refuse a position that cannot be read from.

        Raises:
            TopicReplaced: Its topic id is another.
            PositionLost: It is outside [earliest, end].
        """
        if position.topic_id != self.topic_id:
            raise replaced(self.url, position.topic_id, self.topic_id)
        self.check_offset(position.partition, position.offset, self.earliest(position.partition), None)

    def check_offset(self, partition: int, offset: int, earliest: int, end: int | None) -> None:
        """Refuse an offset outside [earliest, end]; the end is asked for when it is None."""
        end = self.end(partition) if end is None else end
        if not earliest <= offset <= end:
            where = f"{self.url} partition {partition}"
            message = f"{where}: position {offset} is outside the readable range [{earliest}, {end}]"
            help = (
                "records were deleted before they were read, or the topic lost its end; choose the position "
                "to continue from: records are never skipped silently"
            )
            raise PositionLost(message, help=help)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _limits(max_records: int, max_bytes: int) -> tuple[int, int]:
    if max_records < 1 or max_bytes < 1:
        message = f"a read of at most {max_records} records and {max_bytes} bytes"
        raise UsageError(message, help="ask for at least 1 of each; a read returns one record whatever its size")
    return max_records, max_bytes


def replaced(url: str, wanted_id: str, found_id: str) -> TopicReplaced:
    """The error of a topic that has another id than the one wanted."""
    message = f"{url} has topic id {found_id}, not {wanted_id}: it was deleted and created again"
    return TopicReplaced(
        message, help="offsets of the old topic mean nothing in the new one; start over and name a position"
    )
