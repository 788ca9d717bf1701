"""Reading a Kafka topic: fetches by topic id, so that another topic of the same name is never read for it."""

from __future__ import annotations

from streamlearn.errors import BadRecord
from streamlearn.native import native
from streamlearn.topics.kafka_link import (
    EARLIEST,
    LATEST,
    NO_ERROR,
    OFFSET_OUT_OF_RANGE,
    Fetched,
    LinkDown,
    decompress,
)
from streamlearn.topics.kafka_session import KafkaSession, TryAgain
from streamlearn.topics.records import Records, empty_records
from streamlearn.topics.topic import Reader

__all__ = ["KafkaReader"]

_FETCH_BYTES_MIN = 65_536


class KafkaReader(Reader):
    """Keeps what a fetch brought beyond what was asked for, one answer per partition."""

    def __init__(self, session: KafkaSession, partitions: tuple[int, ...]) -> None:
        super().__init__(session.url, str(session.facts.topic_id), partitions)
        self._session = session
        self._kept: dict[int, Records] = {}
        self._down_since_ms: float | None = None
        self._tries = 0

    def _read(self, partition: int, offset: int, limits: tuple[int, int], wait_ms: int) -> Records:
        """Records from `offset` on; what a fetch brought beyond the limits is kept for the next read."""
        kept = self._kept.pop(partition, None)
        if kept is not None and len(kept) and _begins_at(kept, offset):
            return self._give(kept, *limits)
        session, deadline_ms = self._session, self._session.now_ms() + wait_ms
        while True:
            left_ms = max(0.0, deadline_ms - session.now_ms())
            try:
                records = self._fetch(partition, offset, limits[1], int(left_ms))
                self._down_since_ms, self._tries = None, 0
            except (LinkDown, TryAgain) as error:
                self._note_down(error)
                records = empty_records(partition, offset)
                session.try_refresh(left_ms)
            if len(records):
                return self._give(records, *limits)
            offset = records.next_offset
            if session.now_ms() >= deadline_ms:
                return records

    def _earliest(self, partition: int) -> int:
        """The broker's log start."""
        return self._offset(partition, EARLIEST)

    def _end(self, partition: int) -> int:
        """The broker's last stable offset: open transactions lie beyond it."""
        return self._offset(partition, LATEST)

    def _offset_for_time(self, partition: int, timestamp_ms: int) -> int:
        """As the broker's index says."""
        found = self._offset(partition, max(timestamp_ms, 0))
        return self._end(partition) if found < 0 else found

    def close(self) -> None:
        """Close the connection."""
        self._session.close()

    def _offset(self, partition: int, timestamp_ms: int) -> int:
        session = self._session

        def attempt() -> int:
            code, offset = session.link.offset(session.leader(partition), session.name, partition, timestamp_ms)
            session.check(code)
            return offset

        offset = session.persist(attempt)
        # The question names the topic; only after the answer is it sure whose offset this is.
        session.persist(session.verify)
        return offset

    def _fetch(self, partition: int, offset: int, max_bytes: int, wait_ms: int) -> Records:
        session = self._session
        bytes_max = min(max(max_bytes, _FETCH_BYTES_MIN), session.access.fetch_bytes_max)
        fetched = session.link.fetch(
            session.leader(partition),
            session.facts.topic_id,
            (partition, offset),
            bytes_max=bytes_max,
            wait_ms=wait_ms,
        )
        if fetched.error == OFFSET_OUT_OF_RANGE:
            self.check_offset(partition, offset, self.earliest(partition), self.end(partition))
            message = "the broker's range moved while it was asked"
            raise TryAgain(message)
        session.check(fetched.error)
        return self._parsed(partition, offset, fetched)

    def _parsed(self, partition: int, offset: int, fetched: Fetched) -> Records:
        try:
            columns, next_offset = native.scan_kafka_batches(fetched.data, offset, fetched.aborted, decompress)
        except ValueError as error:
            message = f"{self.url} partition {partition}: damaged records at offset {offset}: {error}"
            raise BadRecord(message, help="check the broker's disk; or read on from a later position") from error
        if fetched.error == NO_ERROR and fetched.data and next_offset == offset:
            size = len(fetched.data)
            message = f"{self.url} partition {partition}: no whole batch at offset {offset} in {size} bytes"
            raise BadRecord(message, help="check the broker's disk; or read on from a later position")
        return Records(partition, *columns, next_offset)

    def _give(self, records: Records, max_records: int, max_bytes: int) -> Records:
        """The first of the records within the limits; the others are kept for the next read."""
        stop, size = min(len(records), max_records), 0
        for at in range(stop):
            size += len(records.keys[at] or b"") + len(records.values[at] or b"")
            if size > max_bytes and at:
                stop = at
                break
        if stop == len(records):
            return records
        self._kept[records.partition] = records.slice(stop, len(records))
        return records.slice(0, stop)

    def _note_down(self, error: Exception) -> None:
        now_ms = self._session.now_ms()
        self._tries += 1
        if self._down_since_ms is None:
            self._down_since_ms = now_ms
        elif now_ms - self._down_since_ms >= self._session.access.unreachable_after_ms:
            raise self._session.unreachable(now_ms - self._down_since_ms, self._tries, error) from error


def _begins_at(kept: Records, offset: int) -> bool:
    return int(kept.offsets[0]) == offset
