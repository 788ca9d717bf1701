"""Writing to a Kafka topic: one idempotent batch in flight per partition, acknowledged by all replicas in sync.

A batch is sent again, byte for byte, until the broker answers; the sequence numbers in it let the broker drop
what it has already. After a failure the writer takes a new producer id: numbers of the old one may be in use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from streamlearn.clock import Clock
from streamlearn.errors import NotDelivered, Oversize, StreamlearnError
from streamlearn.native import native
from streamlearn.topics.kafka_link import (
    CERTAINLY_REFUSED,
    DUPLICATE_SEQUENCE,
    MESSAGE_TOO_LARGE,
    NO_ERROR,
    PRODUCER_STATE_LOST,
    UNKNOWN_TOPIC,
    LinkDown,
    Produced,
    error_name,
    is_passing,
)
from streamlearn.topics.kafka_session import KafkaSession, TryAgain
from streamlearn.topics.records import Outgoing
from streamlearn.topics.settings import TopicSettings, WriterSettings
from streamlearn.topics.writer import Writer

__all__ = ["BATCH_OVERHEAD_BYTES", "KafkaWriter"]

BATCH_OVERHEAD_BYTES = 100
"""Most bytes a batch of one record takes beside its key and value: 61 of head, 32 of varints, some air."""
_RECORD_OVERHEAD_BYTES = 32
_SEQUENCES = 2**31


@dataclass(slots=True)
class _Delivery:
    """The records of one partition on their way, batch after batch.

    `unsure` says whether the batch in hand may be in, though nobody acknowledged it.
    """

    partition: int
    outgoing: Outgoing
    cuts: list[tuple[int, int]]
    offsets: NDArray[np.int64]
    cut: int = 0
    batch: bytes = b""
    packed_for: tuple[int, int, int] = (-1, -1, -1)
    unsure: bool = False
    error: StreamlearnError | None = None
    reason: Exception | None = field(default=None, repr=False)

    @property
    def done(self) -> bool:
        return self.error is not None or self.cut == len(self.cuts)

    @property
    def in_records(self) -> int:
        """How many of the records are in for certain."""
        return self.cuts[self.cut - 1][1] if self.cut else 0

    def fail(self, error: StreamlearnError) -> None:
        """End it; what is in and what is in doubt is said."""
        count = len(self.outgoing)
        if self.in_records:
            error.message = f"{error.message}; the first {self.in_records} of {count} records were written"
        if self.unsure:
            start, stop = self.cuts[self.cut]
            error.message = f"{error.message}; {stop - start} records may or may not have been written"
        error.unsure = self.unsure or self.in_records > 0
        self.error = error


class KafkaWriter(Writer):
    """Appends by requests of its own, one to each leader at a time; the contract is `Writer`'s."""

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
        """To all at once: a failure of one partition stops none of the others."""
        deliveries = [self._delivery(partition, records) for partition, records in outgoing.items()]
        try:
            self._deliver_to_all(deliveries)
        finally:
            outcomes.update((each.partition, each.error) for each in deliveries if each.done)

    def _close(self) -> None:
        self._session.close()

    def _delivery(self, partition: int, outgoing: Outgoing) -> _Delivery:
        return _Delivery(partition, outgoing, self._cuts(outgoing), np.empty(len(outgoing), np.int64))

    def _cuts(self, outgoing: Outgoing) -> list[tuple[int, int]]:
        """Runs of records that fit into a batch; a single record always does, its size was checked."""
        cuts, start, size = [], 0, BATCH_OVERHEAD_BYTES
        for at, record_bytes in enumerate(outgoing.sizes()):
            record_bytes += _RECORD_OVERHEAD_BYTES
            if at > start and size + record_bytes > self._batch_bytes_max:
                cuts.append((start, at))
                start, size = at, BATCH_OVERHEAD_BYTES
            size += record_bytes
        return [*cuts, (start, len(outgoing))]

    def _deliver_to_all(self, deliveries: list[_Delivery]) -> None:
        """Bring every delivery to its end; `delivery_timeout_ms` counts from the last batch that got in."""
        session = self._session
        try:
            while any(not each.done for each in deliveries):
                session.persist(lambda: self._advance(deliveries), self._settings.delivery_timeout_ms)
        except StreamlearnError as error:
            for each in deliveries:
                if not each.done:
                    each.reason = error
                    each.fail(type(error)(error.message, help=error.help))
        finally:
            if any(not each.done or each.error is not None for each in deliveries):
                self._producer = None

    def _advance(self, deliveries: list[_Delivery]) -> None:
        """Send the batch in hand of every unfinished delivery, as many as fit into one request a leader.

        Raises:
            TryAgain: None of them got any further.
        """
        session, moved = self._session, 0
        session.verify_now_and_then()
        sent: dict[int, dict[int, bytes]] = {}
        flying: dict[int, _Delivery] = {}
        reason: Exception = TryAgain("sending failed")
        left_bytes: dict[int, int] = {}
        for each in (each for each in deliveries if not each.done):
            try:
                leader = session.leader(each.partition)
            except TryAgain as error:
                reason = error
                continue
            self._pack(each)
            room = left_bytes.setdefault(leader, session.access.request_bytes_max)
            if len(each.batch) <= room or leader not in sent:
                sent.setdefault(leader, {})[each.partition] = each.batch
                left_bytes[leader] = room - len(each.batch)
                flying[each.partition] = each
        before = {partition: each.unsure for partition, each in flying.items()}
        for each in flying.values():
            each.unsure = True  # until there is an answer
        answers = session.link.produce((session.name, session.facts.topic_id), sent) if sent else {}
        for partition, each in flying.items():
            try:
                self._take(each, answers[partition], before[partition])
                moved += 1
            except (LinkDown, TryAgain) as error:
                each.reason = reason = error
        if not moved:
            raise TryAgain(str(reason)) from reason

    def _pack(self, delivery: _Delivery) -> None:
        """Pack the batch in hand; one in doubt stays as it was sent, so that the broker knows it again."""
        numbers = delivery.packed_for if delivery.unsure else self._numbers(delivery.partition)
        if numbers != delivery.packed_for or not delivery.batch:
            part = delivery.outgoing.slice(*delivery.cuts[delivery.cut])
            delivery.batch = native.pack_kafka_batch(numbers, part.timestamps_ms, part.keys, part.values)
            delivery.packed_for = numbers

    def _numbers(self, partition: int) -> tuple[int, int, int]:
        """Producer id, its epoch, and the next sequence number of a partition."""
        if self._producer is None:
            code, producer_id, epoch = self._session.link.producer_id()
            self._session.check(code)
            self._producer = (producer_id, epoch)
            self._sequences.clear()
        return (*self._producer, self._sequences.setdefault(partition, 0))

    def _take(self, delivery: _Delivery, produced: Produced | LinkDown, was_unsure: bool) -> None:
        """See what became of a batch.

        Raises:
            LinkDown: Nobody knows.
            TryAgain: It is to be sent again.
        """
        if isinstance(produced, LinkDown):
            raise produced
        code = produced.error
        if code == NO_ERROR or (code == DUPLICATE_SEQUENCE and produced.base_offset >= 0):
            self._acknowledged(delivery, produced.base_offset)
            return
        if code in CERTAINLY_REFUSED:
            delivery.unsure = was_unsure
        if code in PRODUCER_STATE_LOST and not delivery.unsure:
            self._producer = None  # the broker forgot this producer; nothing of this batch is in
            raise TryAgain(error_name(code))
        if code in UNKNOWN_TOPIC or (is_passing(code) and code not in PRODUCER_STATE_LOST):
            raise TryAgain(error_name(code))
        reason = f": {produced.reason}" if produced.reason else ""
        where, what = f"{self.url} partition {delivery.partition}", error_name(code)
        message = f"{where}: the broker refused the records: {what}{reason}"
        if code in MESSAGE_TOO_LARGE:
            delivery.fail(Oversize(message, help="the topic's max.message.bytes was lowered; open the topic again"))
        else:
            help = "fix what the broker names; the topic's settings may have changed"
            delivery.fail(NotDelivered(message, help=help))

    def _acknowledged(self, delivery: _Delivery, base: int) -> None:
        start, stop = delivery.cuts[delivery.cut]
        delivery.offsets[start:stop] = np.arange(base, base + stop - start)
        if delivery.packed_for[:2] == self._producer:
            self._sequences[delivery.partition] = (delivery.packed_for[2] + stop - start) % _SEQUENCES
        delivery.cut += 1
        delivery.batch, delivery.unsure = b"", False
