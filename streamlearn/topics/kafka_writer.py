"""Writing to a Kafka topic: one idempotent batch in flight, acknowledged by all replicas in sync.

A batch is sent again, byte for byte, until the broker answers; the sequence numbers in it let the broker drop
what it has already. After a failure the writer takes a new producer id: numbers of the old one may be in use.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streamlearn.clock import Clock
from streamlearn.errors import NotDelivered, Oversize, TopicUnreachable
from streamlearn.native import native
from streamlearn.topics.kafka_link import (
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


class KafkaWriter(Writer):
    """Appends by requests of its own; the contract is `Writer`'s."""

    def __init__(self, session: KafkaSession, topic: TopicSettings, settings: WriterSettings, clock: Clock) -> None:
        super().__init__(session.url, topic, settings, clock)
        self._session = session
        self._batch_bytes_max = topic.record_bytes_max + BATCH_OVERHEAD_BYTES
        self._producer: tuple[int, int] | None = None
        self._sequences: dict[int, int] = {}

    def _append(self, partition: int, outgoing: Outgoing) -> NDArray[np.int64]:
        offsets = np.empty(len(outgoing), np.int64)
        done = 0
        for start, stop in self._cuts(outgoing):
            try:
                base = self._deliver_batch(partition, outgoing.slice(start, stop))
            except (NotDelivered, TopicUnreachable) as error:
                self._producer = None
                if not done:
                    raise
                message = f"{error.message}; the first {done} of {len(outgoing)} records are in"
                raise type(error)(message, help=error.help) from error
            except BaseException:
                self._producer = None
                raise
            offsets[start:stop] = np.arange(base, base + stop - start)
            done = stop
        return offsets

    def _close(self) -> None:
        self._session.close()

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

    def _deliver_batch(self, partition: int, outgoing: Outgoing) -> int:
        """Send one batch until it is acknowledged; gives the offset of its first record."""
        session, unsure = self._session, False
        batch, packed_for = b"", None

        def attempt() -> int:
            nonlocal unsure, batch, packed_for
            if packed_for != self._numbers(partition):
                packed_for = self._numbers(partition)
                batch = native.pack_kafka_batch(packed_for, outgoing.timestamps_ms, outgoing.keys, outgoing.values)
            topic = (session.name, session.facts.topic_id)
            leader = session.leader(partition)
            try:
                produced = session.link.produce(leader, topic, partition, batch)
            except LinkDown:
                unsure = True
                raise
            if produced.error in PRODUCER_STATE_LOST and not unsure:
                self._producer = None  # the broker forgot this producer; nothing of this batch is in
                raise TryAgain(error_name(produced.error))
            return self._offset_of(partition, produced, unsure)

        try:
            base = session.persist(attempt, self._settings.delivery_timeout_ms)
        except TopicUnreachable as error:
            if not unsure:
                raise
            message = f"{error.message}; {len(outgoing)} records may or may not be in"
            raise TopicUnreachable(message, help=error.help) from error
        self._sequences[partition] = (self._sequences[partition] + len(outgoing)) % _SEQUENCES
        return base

    def _numbers(self, partition: int) -> tuple[int, int, int]:
        """Producer id, its epoch, and the next sequence number of a partition."""
        if self._producer is None:
            code, producer_id, epoch = self._session.link.producer_id()
            self._session.check(code)
            self._producer = (producer_id, epoch)
            self._sequences.clear()
        return (*self._producer, self._sequences.setdefault(partition, 0))

    def _offset_of(self, partition: int, produced: Produced, unsure: bool) -> int:
        code = produced.error
        if code == NO_ERROR or (code == DUPLICATE_SEQUENCE and produced.base_offset >= 0):
            return produced.base_offset
        if code in UNKNOWN_TOPIC or (is_passing(code) and code not in PRODUCER_STATE_LOST):
            raise TryAgain(error_name(code))
        reason = f": {produced.reason}" if produced.reason else ""
        doubt = "; they may or may not be in" if unsure else ""
        where, what = f"{self.url} partition {partition}", error_name(code)
        message = f"{where}: the broker refused the records: {what}{reason}{doubt}"
        if code in MESSAGE_TOO_LARGE:
            raise Oversize(message, help="the topic's max.message.bytes was lowered; open the topic again")
        raise NotDelivered(message, help="correct what the broker names; the topic's settings may have changed")
