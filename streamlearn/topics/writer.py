"""The writer: checks, collecting and reporting, the same for every implementation, which only appends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from streamlearn.clock import Clock
from streamlearn.errors import NotDelivered, StreamlearnError, TopicMissing
from streamlearn.topics.meters import Meter
from streamlearn.topics.records import Outgoing, check_record
from streamlearn.topics.settings import TopicSettings, WriterSettings

__all__ = ["Writer"]

_UNTRIED = "not tried after an earlier failure"


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


def _untried() -> NotDelivered:
    return NotDelivered(_UNTRIED, help="send them again")


class Writer(ABC):
    """Appends records to the partitions of one topic. For one thread at a time; take one writer per thread.

    Guaranteed: `append` returns once its records are acknowledged and readable, in their order. What `send`
    took is either acknowledged when `flush` returns or named by what it raises. Not guaranteed: that a record
    reported as not delivered is not there, when the connection broke after it was sent.
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
        """Append records and wait until they are acknowledged; what `send` collected for the partition goes first.

        Args:
            partition: Where to; `partition_of` says where a key belongs.
            values: n values; None is a tombstone.
            keys: n keys, each may be None; no keys at all when None.
            timestamps_ms: n times; the clock's wall time when None.

        Returns:
            int64[n], the offsets; with other writers at work they need not be dense.

        Raises:
            Oversize: A record is larger than the topic allows; nothing was sent.
            BadRecord: A record the topic cannot take; nothing was sent.
            TopicMissing: No such partition, or the topic was deleted.
            TopicReplaced: The topic was deleted and created again.
            TopicUnreachable: Not acknowledged within `delivery_timeout_ms`.
            NotDelivered: The topic refused the records, or those that `send` took before them.
        """
        self._check_partition(partition)
        count = len(values)
        times = (
            np.full(count, self._clock.wall_ms(), np.int64)
            if timestamps_ms is None
            else np.ascontiguousarray(timestamps_ms, np.int64)
        )
        outgoing = Outgoing(values, keys, times)
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
        """Collect a record; it is appended with others when enough are collected, at the latest by `flush`.

        After a failure nothing more is tried until `flush` has reported it: later records never overtake.

        Raises:
            Oversize: The record is larger than the topic allows.
            BadRecord: The topic cannot take the record.
            TopicMissing: No such partition.
        """
        self._check_partition(partition)
        at_ms = self._clock.wall_ms() if timestamp_ms is None else timestamp_ms
        size = len(value or b"") + len(key or b"")
        check_record(self._topic, size, key, at_ms)
        if self._collected_bytes + size > self._settings.buffer_bytes_max:
            self._deliver(list(self._collected))
        waiting = self._collected.setdefault(partition, _Collected())
        waiting.values.append(value)
        waiting.keys.append(key)
        waiting.timestamps_ms.append(at_ms)
        waiting.bytes += size
        self._collected_bytes += size
        full = len(waiting.values) >= self._settings.send_records_max
        if full or waiting.bytes >= self._settings.send_bytes_max:
            self._deliver([partition])

    def flush(self) -> None:
        """Append what `send` collected and wait for it.

        Raises:
            NotDelivered: Some of it was not acknowledged: how many records of which partitions, and why.
        """
        self._deliver(list(self._collected))
        failures, self._failures = self._failures, {}
        if failures:
            found = [failures[at] for at in sorted(failures)]
            message = f"{self.url}: records not delivered: {'; '.join(str(failure) for failure in found)}"
            help = "send them again once the cause is fixed; records in doubt may then be in the topic twice"
            parts = [(failure.partition, failure.records, failure.error) for failure in found]
            raise NotDelivered(message, help=help, failures=parts)

    @property
    def unsent_bytes(self) -> int:
        """Bytes of keys and values that `send` has collected and not yet appended."""
        return self._collected_bytes

    def close(self) -> None:
        """Flush, and let go of connections and files whatever the flush says."""
        try:
            self.flush()
        finally:
            self._close()

    @abstractmethod
    def _append(self, partition: int, outgoing: Outgoing) -> NDArray[np.int64]: ...

    @abstractmethod
    def _close(self) -> None: ...

    def _append_many(self, outgoing: Mapping[int, Outgoing], outcomes: dict[int, StreamlearnError | None]) -> None:
        """Append to many partitions; what became of each is put down in `outcomes` as soon as it is known.

        What has no outcome in the end was not tried.
        """
        for partition, records in outgoing.items():
            try:
                self._append(partition, records)
            except StreamlearnError as error:
                outcomes[partition] = error
                return
            outcomes[partition] = None

    def _deliver(self, partitions: list[int]) -> None:
        """Append what was collected; whatever happens, it is acknowledged or the next flush names it."""
        outgoing = {
            partition: Outgoing(waiting.values, waiting.keys, np.array(waiting.timestamps_ms, np.int64))
            for partition, waiting in self._collected.items()
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
                self._settle(partition, outcomes[partition] if partition in outcomes else stopped or _untried())

    def _settle(self, partition: int, error: BaseException | None) -> None:
        waiting = self._collected.pop(partition)
        self._collected_bytes -= waiting.bytes
        if error is None:
            self._meter.appended(len(waiting.values), waiting.bytes)
        else:
            untried = isinstance(error, NotDelivered) and error.message == _UNTRIED
            failure = self._failures.setdefault((partition, untried), _Failure(partition, 0, error))
            failure.records += len(waiting.values)

    def _check_partition(self, partition: int) -> None:
        if not 0 <= partition < self._topic.partitions:
            message = f"{self.url} has no partition {partition}: it has {self._topic.partitions}, numbered from 0"
            raise TopicMissing(message, help="`partition_of(key, partitions)` returns an existing partition")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:  # what was collected belongs to work that failed; reporting it would hide why
            self._close()
