"""The writer: it checks, collects and reports for every implementation, which only appends. Keys choose partitions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray

from streamlearn.clock import Clock
from streamlearn.errors import NotDelivered, StreamlearnError, TopicMissing
from streamlearn.native import native
from streamlearn.topics.meters import Meter
from streamlearn.topics.records import Outgoing, check_record
from streamlearn.topics.settings import TopicSettings, WriterSettings

__all__ = ["Writer", "partition_of"]

_UNTRIED = "not tried after an earlier failure"


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of a key as Kafka clients choose it: its murmur2 hash, made positive, modulo `partitions`.

    Examples:
        >>> partition_of(b"request-1", 4)
        3
    """
    return native.partition_of(key, partitions)


@dataclass(slots=True)
class _Collected:
    values: list[bytes | None] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    timestamps_ms: list[int] = field(default_factory=list)
    bytes: int = 0


@dataclass(slots=True)
class _Failure:
    partition: int
    records: int
    error: BaseException

    def __str__(self) -> str:
        reason = self.error.message if isinstance(self.error, StreamlearnError) else repr(self.error)
        return f"partition {self.partition}: {self.records} ({reason})"


class Writer(ABC):
    """Appends records to the partitions of one topic. Use one writer per thread.

    Guaranteed: `append` returns once its records are acknowledged and readable, in their order. Once `flush` returns,
    the records that `send` took are acknowledged; otherwise its error names them. Not guaranteed: that a record
    reported as not delivered is absent, if the connection broke after it was sent.
    The classic mistake is to forget `flush`: `send` alone promises nothing.
    """

    def __init__(self, url: str, topic: TopicSettings, settings: WriterSettings, clock: Clock) -> None:
        self.url = url
        self._topic = topic
        self._settings = settings
        self._clock = clock
        self._collected: dict[int, _Collected] = {}
        self._collected_bytes = 0
        self._meter = Meter(url)
        self._failures: dict[tuple[int, bool], _Failure] = {}  # by partition, and whether it was untried

    def append(
        self,
        partition: int,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None = None,
        timestamps_ms: Sequence[int] | NDArray[np.int64] | None = None,
    ) -> NDArray[np.int64]:
        """Append records and wait until they are acknowledged; records that `send` collected before go first.

        `partition_of` returns the partition of a key. A value of None is a tombstone. Without `keys`, no record has
        one; without `timestamps_ms`, records get the clock's wall time.

        Returns:
            int64[n], the offsets; they need not be dense if others write at the same time.

        Raises:
            Oversize: A record is larger than the topic allows; nothing was sent.
            BadRecord: The topic cannot take a record; nothing was sent.
            TopicMissing: The topic has no such partition, or was deleted.
            TopicReplaced: The topic was deleted and created again.
            TopicUnreachable: The records were not acknowledged within `delivery_timeout_ms`.
            NotDelivered: The topic refused the records, or earlier ones that `send` took.
        """
        self._check_partition(partition)
        count = len(values)
        if timestamps_ms is None:
            timestamps_ms = np.full(count, self._clock.wall_ms(), np.int64)
        outgoing = Outgoing(values, keys, np.ascontiguousarray(timestamps_ms, np.int64))
        outgoing.check(self._topic)
        if partition in self._collected:
            self._deliver([partition])
        if any(failed == partition for failed, _ in self._failures):
            message = f"{self.url} partition {partition}: {count} records not tried after an earlier failure"
            raise NotDelivered(message, help="flush reports the failure; send those records again, then these")
        if not count:
            return np.empty(0, np.int64)
        offsets = self._append(partition, outgoing)
        self._meter.appended(count, sum(outgoing.sizes()))
        return offsets

    def send(
        self, partition: int, value: bytes | None, key: bytes | None = None, timestamp_ms: int | None = None
    ) -> None:
        """Collect a record; the writer appends it with others once enough are collected, at the latest on `flush`.

        After a failure the writer appends nothing until `flush` has reported it, so later records never overtake.

        Raises:
            Oversize: The record is larger than the topic allows.
            BadRecord: The topic cannot take the record.
            TopicMissing: The topic has no such partition.
        """
        self._check_partition(partition)
        timestamp_ms = self._clock.wall_ms() if timestamp_ms is None else timestamp_ms
        size = len(value or b"") + len(key or b"")
        check_record(self._topic, size, key, timestamp_ms)
        if self._collected_bytes + size > self._settings.buffer_bytes_max:
            self._deliver(list(self._collected))
        collected = self._collected.setdefault(partition, _Collected())
        collected.values.append(value)
        collected.keys.append(key)
        collected.timestamps_ms.append(timestamp_ms)
        collected.bytes += size
        self._collected_bytes += size
        full = len(collected.values) >= self._settings.send_records_max
        if full or collected.bytes >= self._settings.send_bytes_max:
            self._deliver([partition])

    def flush(self) -> None:
        """Append the collected records and wait for them.

        Raises:
            NotDelivered: Some were not acknowledged; it states the count and the reason for each partition.
        """
        self._deliver(list(self._collected))
        failures, self._failures = self._failures, {}
        if failures:
            ordered = [failures[key] for key in sorted(failures)]
            message = f"{self.url}: records not delivered: {'; '.join(map(str, ordered))}"
            help = "send them again once the cause is fixed; records in doubt may then be in the topic twice"
            parts = [(failure.partition, failure.records, failure.error) for failure in ordered]
            raise NotDelivered(message, help=help, failures=parts)

    def close(self) -> None:
        """Flush, then close connections and files even if the flush fails."""
        try:
            self.flush()
        finally:
            self._close()

    @abstractmethod
    def _append(self, partition: int, outgoing: Outgoing) -> NDArray[np.int64]: ...

    @abstractmethod
    def _close(self) -> None: ...

    def _append_many(self, outgoing: Mapping[int, Outgoing], outcomes: dict[int, StreamlearnError | None]) -> None:
        """Append to many partitions, and note the outcome of each at once; one without an outcome was not tried."""
        for partition, records in outgoing.items():
            try:
                self._append(partition, records)
            except StreamlearnError as error:
                outcomes[partition] = error
                return
            outcomes[partition] = None

    def _deliver(self, partitions: list[int]) -> None:
        """Append collected records; in any case they are acknowledged, or the next flush names them."""
        outgoing = {
            partition: Outgoing(collected.values, collected.keys, np.array(collected.timestamps_ms, np.int64))
            for partition, collected in self._collected.items()
            if partition in partitions
        }
        outcomes: dict[int, StreamlearnError | None] = {}
        stopped: BaseException | None = None
        try:
            if not self._failures:
                self._append_many(outgoing, outcomes)
        except BaseException as error:
            stopped = error
            raise
        finally:
            for partition in outgoing:
                untried = stopped or NotDelivered(_UNTRIED, help="send them again")
                self._settle(partition, outcomes.get(partition, untried))

    def _settle(self, partition: int, error: BaseException | None) -> None:
        collected = self._collected.pop(partition)
        self._collected_bytes -= collected.bytes
        if error is None:
            self._meter.appended(len(collected.values), collected.bytes)
        else:
            untried = isinstance(error, NotDelivered) and error.message == _UNTRIED
            failure = self._failures.setdefault((partition, untried), _Failure(partition, 0, error))
            failure.records += len(collected.values)

    def _check_partition(self, partition: int) -> None:
        if not 0 <= partition < self._topic.partitions:
            message = f"{self.url} has no partition {partition}: it has {self._topic.partitions}, numbered from 0"
            raise TopicMissing(message, help="`partition_of(key, partitions)` returns an existing partition")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()
        else:  # the collected records belong to work that failed; a second error would hide the first
            self._close()
