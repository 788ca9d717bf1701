"""The writer of a Kafka topic: one idempotent batch in flight per partition, acknowledged by all replicas in sync.

The writer sends a batch again, byte for byte, until the broker answers; its sequence numbers let the broker drop
duplicates. After a failure the writer takes a new producer id, since sequence numbers of the old one may be in use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from streamlearn.clock import Clock
from streamlearn.errors import NotDelivered, Oversize, StreamlearnError
from streamlearn.native import native
from streamlearn.topics.kafka_link import ErrorCode, LinkDown, Produced, error_name, is_passing
from streamlearn.topics.kafka_session import KafkaSession, TryAgain
from streamlearn.topics.records import Outgoing
from streamlearn.topics.settings import TopicSettings, WriterSettings
from streamlearn.topics.writer import Writer

__all__ = ["BATCH_OVERHEAD_BYTES", "KafkaWriter"]

BATCH_OVERHEAD_BYTES = 100
"""Most bytes of a batch of one record beside its key and value: a head of 61, varints of up to 32, and a margin."""
_RECORD_OVERHEAD_BYTES = 32
_SEQUENCES = 2**31


@dataclass(slots=True)
class _Delivery:
    """The delivery of one partition's records, batch after batch."""

    partition: int
    outgoing: Outgoing
    cuts: list[tuple[int, int]]
    offsets: NDArray[np.int64]
    cut: int = 0
    batch: bytes = b""
    packed_for: tuple[int, int, int] = (-1, -1, -1)
    unsure: bool = False  # whether the current batch may have been written, although it was not acknowledged
    error: StreamlearnError | None = None
    reason: Exception | None = field(default=None, repr=False)

    @property
    def done(self) -> bool:
        return self.error is not None or self.cut == len(self.cuts)

    @property
    def written_count(self) -> int:
        """Records that are certainly written."""
        return self.cuts[self.cut - 1][1] if self.cut else 0

    def fail(self, error: StreamlearnError) -> None:
        """End the delivery; the error states how many records were or may have been written."""
        if self.written_count:
            count = f"{self.written_count} of {len(self.outgoing)}"
            error.message = f"{error.message}; the first {count} records were written"
        if self.unsure:
            start, stop = self.cuts[self.cut]
            error.message = f"{error.message}; {stop - start} records may or may not have been written"
        error.unsure = self.unsure or self.written_count > 0
        self.error = error


class KafkaWriter(Writer):
    """A `Writer` with one request in flight per leader."""

    def __init__(self, session: KafkaSession, topic: TopicSettings, settings: WriterSettings, clock: Clock) -> None:
        super().__init__(session.url, topic, settings, clock)
        self._session = session
        self._batch_bytes_max = topic.record_bytes_max + BATCH_OVERHEAD_BYTES
        self._producer: tuple[int, int] | None = None
        self._sequences: dict[int, int] = {}

    def _append(self, partition: int, outgoing: Outgoing) -> NDArray[np.int64]:
        delivery = self._delivery(partition, outgoing)
        self._deliver_to_all([delivery])
        if delivery.error is not None:
            raise delivery.error from delivery.reason
        return delivery.offsets

    def _append_many(self, outgoing: Mapping[int, Outgoing], outcomes: dict[int, StreamlearnError | None]) -> None:
        """Append to all partitions at once; a failure of one does not stop the others."""
        deliveries = [self._delivery(partition, records) for partition, records in outgoing.items()]
        try:
            self._deliver_to_all(deliveries)
        finally:
            outcomes.update((delivery.partition, delivery.error) for delivery in deliveries if delivery.done)

    def _close(self) -> None:
        self._session.close()

    def _delivery(self, partition: int, outgoing: Outgoing) -> _Delivery:
        return _Delivery(partition, outgoing, self._cuts(outgoing), np.empty(len(outgoing), np.int64))

    def _cuts(self, outgoing: Outgoing) -> list[tuple[int, int]]:
        """Return the runs [start, stop) of records that fit into one batch; a single record always fits."""
        cuts, start, size = [], 0, BATCH_OVERHEAD_BYTES
        for at, record_bytes in enumerate(outgoing.sizes()):
            record_bytes += _RECORD_OVERHEAD_BYTES
            if at > start and size + record_bytes > self._batch_bytes_max:
                cuts.append((start, at))
                start, size = at, BATCH_OVERHEAD_BYTES
            size += record_bytes
        return [*cuts, (start, len(outgoing))]

    def _deliver_to_all(self, deliveries: list[_Delivery]) -> None:
        """Complete every delivery; `delivery_timeout_ms` counts from the last acknowledged batch."""
        session = self._session
        try:
            while not all(delivery.done for delivery in deliveries):
                session.persist(lambda: self._advance(deliveries), self._settings.delivery_timeout_ms)
        except StreamlearnError as error:
            for delivery in deliveries:
                if not delivery.done:
                    delivery.reason = error
                    delivery.fail(type(error)(error.message, help=error.help))
        finally:
            if any(not delivery.done or delivery.error is not None for delivery in deliveries):
                self._producer = None

    def _advance(self, deliveries: list[_Delivery]) -> None:
        """Send the current batches, as many as fit into one request to each leader; TryAgain if none was written."""
        session, advanced = self._session, False
        if session.is_due():
            session.verify()
        batches: dict[int, dict[int, bytes]] = {}
        in_flight: list[_Delivery] = []
        reason: Exception = TryAgain("sending failed")
        left_bytes: dict[int, int] = {}
        for delivery in (delivery for delivery in deliveries if not delivery.done):
            try:
                leader = session.leader(delivery.partition)
            except TryAgain as error:
                reason = error
                continue
            self._pack(delivery)
            room = left_bytes.setdefault(leader, session.access.request_bytes_max)
            if len(delivery.batch) <= room or leader not in batches:
                batches.setdefault(leader, {})[delivery.partition] = delivery.batch
                left_bytes[leader] = room - len(delivery.batch)
                in_flight.append(delivery)
        were_unsure = [delivery.unsure for delivery in in_flight]
        for delivery in in_flight:
            delivery.unsure = True  # until there is an answer
        answers = session.link.produce((session.name, session.facts.topic_id), batches) if batches else {}
        for delivery, was_unsure in zip(in_flight, were_unsure, strict=True):
            try:
                self._take(delivery, answers[delivery.partition], was_unsure)
                advanced = True
            except (LinkDown, TryAgain) as error:
                delivery.reason = reason = error
        if not advanced:
            raise TryAgain(str(reason)) from reason

    def _pack(self, delivery: _Delivery) -> None:
        """Pack the current batch; one that may have been written stays as it was, so that the broker recognizes it."""
        numbers = delivery.packed_for if delivery.unsure else self._numbers(delivery.partition)
        if numbers != delivery.packed_for or not delivery.batch:
            part = delivery.outgoing.slice(*delivery.cuts[delivery.cut])
            delivery.batch = native.pack_kafka_batch(numbers, part.timestamps_ms, part.keys, part.values)
            delivery.packed_for = numbers

    def _numbers(self, partition: int) -> tuple[int, int, int]:
        """Return the producer's id and epoch, and the next sequence number of a partition."""
        if self._producer is None:
            code, producer_id, epoch = self._session.link.producer_id()
            self._session.check(code)
            self._producer = (producer_id, epoch)
            self._sequences.clear()
        return (*self._producer, self._sequences.setdefault(partition, 0))

    def _take(self, delivery: _Delivery, produced: Produced | LinkDown, was_unsure: bool) -> None:
        """Handle the answer to a batch; raises LinkDown without one, or TryAgain if the batch must be sent again."""
        if isinstance(produced, LinkDown):
            raise produced
        code = produced.error
        if code == ErrorCode.NO_ERROR or (code == ErrorCode.DUPLICATE_SEQUENCE and produced.base_offset >= 0):
            self._acknowledge(delivery, produced.base_offset)
            return
        if code in ErrorCode.CERTAINLY_REFUSED:
            delivery.unsure = was_unsure
        if code in ErrorCode.PRODUCER_STATE_LOST and not delivery.unsure:
            self._producer = None  # the broker forgot this producer and wrote nothing of the batch
            raise TryAgain(error_name(code))
        if code in ErrorCode.UNKNOWN_TOPIC or (is_passing(code) and code not in ErrorCode.PRODUCER_STATE_LOST):
            raise TryAgain(error_name(code))
        reason = f": {produced.reason}" if produced.reason else ""
        where = f"{self.url} partition {delivery.partition}"
        message = f"{where}: the broker refused the records: {error_name(code)}{reason}"
        if code in ErrorCode.MESSAGE_TOO_LARGE:
            delivery.fail(Oversize(message, help="the topic's max.message.bytes was lowered; open the topic again"))
        else:
            help = "fix what the broker names; the topic's settings may have changed"
            delivery.fail(NotDelivered(message, help=help))

    def _acknowledge(self, delivery: _Delivery, base: int) -> None:
        start, stop = delivery.cuts[delivery.cut]
        delivery.offsets[start:stop] = np.arange(base, base + stop - start)
        if delivery.packed_for[:2] == self._producer:
            self._sequences[delivery.partition] = (delivery.packed_for[2] + stop - start) % _SEQUENCES
        delivery.cut += 1
        delivery.batch, delivery.unsure = b"", False
