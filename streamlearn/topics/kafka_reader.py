"""The reader of a Kafka topic. It fetches by topic id, so it never reads another topic of the same name.

At most one fetch per leader is in flight. A read returns the records that have arrived, requests the others, and never
waits longer than it may; the next read takes a later answer. A fetch names the leader epoch of the record before its
offset, so that the broker notices a log that was truncated and has grown again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from streamlearn.errors import BadRecord, PositionLost
from streamlearn.topics.kafka_batches import BatchDecoder
from streamlearn.topics.kafka_link import (
    EARLIEST,
    LATEST,
    ErrorCode,
    Fetched,
    LinkDown,
    Pending,
    TopicFacts,
    error_name,
)
from streamlearn.topics.kafka_session import KafkaSession, TryAgain
from streamlearn.topics.records import Position, Records, empty_records
from streamlearn.topics.topic import Reader

__all__ = ["KafkaReader"]

_LOG = logging.getLogger(__name__)
_FETCH_BYTES_MIN = 65_536
_WAIT_S_MAX, _FLIGHT_WAIT_S_MAX = 0.05, 0.5


@dataclass(frozen=True, slots=True)
class _Flight:
    """A fetch in flight."""

    pending: Pending[dict[int, Fetched]]
    positions: dict[int, int]
    read_number: int  # the read that began it
    began_ms: float
    wait_ms: int

    def is_hasty(self, answers: Iterable[Fetched]) -> bool:
        """Whether the broker answered without records or errors, long before the time that it was to wait for them."""
        is_empty = not any(fetched.data or fetched.error for fetched in answers)
        return is_empty and self.pending.done_ms - self.began_ms < self.wait_ms / 2


@dataclass(frozen=True, slots=True)
class _Buffer:
    """Fetched records, from an offset on, that no read has returned yet."""

    offset: int
    records: Records
    stable_end: int
    held_bytes: int  # memory of records that were compressed


@dataclass(slots=True)
class _Silence:
    """The time for which requests for a partition got no answer; time without a request does not count."""

    since_ms: float
    last_ms: float
    read_number: int = 0
    tries: int = 0
    reason: Exception | None = None


class KafkaReader(Reader):
    """A `Reader` whose `read_many` sends each leader one request for all its partitions."""

    def __init__(self, session: KafkaSession, partitions: tuple[int, ...]) -> None:
        super().__init__(session.url, str(session.facts.topic_id), partitions)
        self._session = session
        self._signal = threading.Event()
        self._flights: dict[int, _Flight] = {}
        self._answers: dict[int, tuple[int, Fetched, int]] = {}  # partition -> offset, answer, read number
        self._paused_until_ms: dict[int, float] = {}  # of leaders that answered in haste
        self._buffers: dict[int, _Buffer] = {}
        self._decoder = BatchDecoder(session.access)
        self._held_bytes = 0  # of all buffers, as of the last decision
        self._epochs: dict[int, tuple[int, int]] = {}  # partition -> offset, leader epoch of the record before it
        self._silences: dict[int, _Silence] = {}
        self._failed: set[int] = set()  # partitions that wait for new metadata before the next request
        self._metadata: Pending[TopicFacts | None] | None = None
        self._metadata_after_ms = 0.0
        self._read_number = 0

    def check(self, position: Position) -> None:
        """Also refuse a position in a log that was truncated before it and has grown again."""
        super().check(position)
        if position.leader_epoch >= 0:
            self._epochs[position.partition] = (position.offset, position.leader_epoch)
            self._wait({position.partition: position.offset}, (1, _FETCH_BYTES_MIN), 0)

    def _read(self, partition: int, offset: int, limits: tuple[int, int], wait_ms: int) -> Records:
        return self._read_many({partition: offset}, limits, wait_ms)[0]

    def _read_many(self, positions: Mapping[int, int], limits: tuple[int, int], wait_ms: int) -> list[Records]:
        wanted = dict(positions)
        self._wait(wanted, limits, wait_ms)
        batches = [self._take(partition, offset, limits) for partition, offset in wanted.items()]
        self._fetch_ahead(batches, limits)
        return batches

    def _wait(self, wanted: dict[int, int], limits: tuple[int, int], wait_ms: int) -> None:
        """Wait for records of any partition, and advance `wanted` past offsets without records."""
        session = self._session
        self._read_number += 1
        deadline_ms = session.now_ms() + wait_ms
        bound_ms = deadline_ms + session.access.answer_wait_ms
        idle: set[int] = set()  # partitions that this read has found empty, or without a leader
        while wanted:
            self._signal.clear()
            idle |= self._collect(wanted)
            if any(self._has(partition, offset) for partition, offset in wanted.items()):
                break
            now_ms = session.now_ms()
            self._refuse_silence(wanted, now_ms)
            until_ms = deadline_ms if idle.issuperset(wanted) else bound_ms
            if now_ms >= until_ms:
                break
            idle |= self._request(wanted, limits, max(0, int(deadline_ms - now_ms)))
            wait_s_max = _WAIT_S_MAX if self._failed or not self._flights else _FLIGHT_WAIT_S_MAX
            self._signal.wait(min((until_ms - now_ms) / 1000, wait_s_max))

    def _earliest(self, partition: int) -> int:
        return self._offset(partition, EARLIEST)

    def _end(self, partition: int) -> int:
        """Return the broker's last stable offset; open transactions lie beyond it."""
        return self._offset(partition, LATEST)

    def _offset_for_time(self, partition: int, timestamp_ms: int) -> int:
        offset = self._offset(partition, max(timestamp_ms, 0))
        return self._end(partition) if offset < 0 else offset

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
        session.persist(session.verify)  # the request names the topic, not its id
        return offset

    def _has(self, partition: int, offset: int) -> bool:
        buffer = self._buffers.get(partition)
        return buffer is not None and buffer.offset == offset

    def _request(self, wanted: Mapping[int, int], limits: tuple[int, int], wait_ms: int) -> set[int]:
        """Request what is not in flight yet, and return the partitions without a leader."""
        session, leaderless = self._session, set()
        by_leader: dict[int, dict[int, int]] = {}
        now_ms = session.now_ms()
        due_ms = now_ms + wait_ms
        for partition, offset in wanted.items():
            self._silences.setdefault(partition, _Silence(due_ms, due_ms))
            leader = session.facts.leaders[partition]
            if leader < 0:
                self._failed.add(partition)
                leaderless.add(partition)
            elif self._paused_until_ms.get(leader, 0) > now_ms:
                continue
            elif leader not in self._flights and partition not in self._failed:
                by_leader.setdefault(leader, {})[partition] = offset
        for leader, positions in by_leader.items():
            self._begin(leader, positions, limits, wait_ms)
        due = bool(self._failed) or session.is_due()
        if due and self._metadata is None and session.now_ms() >= self._metadata_after_ms:
            self._metadata = session.begin_verify(connect=bool(self._failed), signal=self._signal)
        return leaderless

    def _begin(self, leader: int, positions: dict[int, int], limits: tuple[int, int], wait_ms: int) -> None:
        """Send a fetch to one leader; partitions take turns as the first, from which a broker fills its answer."""
        session = self._session
        turn = self._read_number % len(positions)
        order = list(positions)[turn:] + list(positions)[:turn]
        total_bytes_max = session.access.fetch_bytes_max
        bytes_max = min(max(limits[1], _FETCH_BYTES_MIN), total_bytes_max)
        pending = session.link.begin_fetch(
            leader,
            session.facts.topic_id,
            {partition: positions[partition] for partition in order},
            leader_epochs={partition: self._epoch(partition, offset) for partition, offset in positions.items()},
            bytes_max=(bytes_max, min(bytes_max * len(positions), total_bytes_max)),
            wait_ms=wait_ms,
            signal=self._signal,
        )
        self._flights[leader] = _Flight(pending, positions, self._read_number, session.now_ms(), wait_ms)

    def _fetch_ahead(self, batches: Iterable[Records], limits: tuple[int, int]) -> None:
        """Request the next records where a broker is known to have more, so they arrive while the caller works."""
        by_leader: dict[int, dict[int, int]] = {}
        for records in batches:
            buffer = self._buffers.get(records.partition)
            if buffer is not None and buffer.offset == records.next_offset and not len(buffer.records):
                del self._buffers[records.partition]
                leader = self._session.facts.leaders[records.partition]
                if buffer.stable_end > buffer.offset and leader >= 0 and leader not in self._flights:
                    by_leader.setdefault(leader, {})[records.partition] = buffer.offset
        for leader, positions in by_leader.items():
            self._begin(leader, positions, limits, 0)

    def _collect(self, wanted: dict[int, int]) -> set[int]:
        """Take the answers that have arrived, and return the partitions that are empty as of this read."""
        self._collect_metadata()
        for leader, flight in list(self._flights.items()):
            if not flight.pending.done:
                continue
            del self._flights[leader]
            try:
                answers = flight.pending.take()
            except LinkDown as error:
                self._note_failure(flight.positions, error, flight.pending.done_ms)
                continue
            if flight.is_hasty(answers.values()):
                self._paused_until_ms[leader] = flight.pending.done_ms + self._session.access.retry_wait_ms
            missing = flight.positions.keys() - answers.keys()
            self._note_failure(missing, LinkDown("no answer for the partition"), flight.pending.done_ms)
            for partition, fetched in answers.items():
                if fetched.error == ErrorCode.NO_ERROR:
                    self._silences.pop(partition, None)
                self._answers[partition] = (flight.positions[partition], fetched, flight.read_number)
        empty = set()
        waiting: dict[int, tuple[int, Fetched, int]] = {}  # what has no room now, in order of arrival
        self._held_bytes = sum(buffer.held_bytes for buffer in self._buffers.values())
        for partition in [partition for partition in self._answers if partition in wanted]:
            answer = self._answers.pop(partition)
            offset, fetched, read_number = answer
            if offset != wanted[partition]:
                continue
            if waiting or not self._accept(partition, wanted, fetched):
                waiting[partition] = answer
            elif read_number == self._read_number and partition not in self._silences:
                empty.add(partition)
        self._answers = waiting | self._answers
        return empty

    def _collect_metadata(self) -> None:
        if self._metadata is None or not self._metadata.done:
            return
        pending, self._metadata = self._metadata, None
        self._metadata_after_ms = self._session.now_ms() + self._session.access.retry_wait_ms
        try:
            self._session.accept(pending.take())
        except (LinkDown, TryAgain) as error:
            self._note_failure(list(self._failed), error, pending.done_ms)
            return
        leaders = self._session.facts.leaders
        failed, self._failed = self._failed, set()
        for partition in failed:
            if leaders[partition] < 0:
                self._note_failure([partition], TryAgain(f"partition {partition} has no leader"), pending.done_ms)

    def _accept(self, partition: int, wanted: dict[int, int], fetched: Fetched) -> bool:
        """Buffer the records of an answer, or handle its error; returns False if its records have no room now."""
        offset = wanted[partition]
        if fetched.error == ErrorCode.OFFSET_OUT_OF_RANGE:
            self.check_offset(partition, offset, self.earliest(partition), self.end(partition))
        if fetched.diverges_at >= 0:
            raise self._truncation(partition, offset, fetched.diverges_at)
        try:
            if fetched.error == ErrorCode.OFFSET_OUT_OF_RANGE:
                # The range changed during the request, or the broker does not know yet of a newer leader's epoch.
                raise TryAgain(error_name(fetched.error))
            self._session.check(fetched.error)
        except TryAgain as error:
            self._note_failure([partition], error, self._session.now_ms())
            return True
        buffer = self._parse(partition, offset, fetched)
        if buffer is None and not any(self._has(*position) for position in wanted.items()):
            self._buffers.clear()  # nobody waits for these records, and they can be fetched again
            self._held_bytes = 0
            buffer = self._parse(partition, offset, fetched)
        if buffer is None:
            return False
        if len(buffer.records):
            self._buffers[partition] = buffer
            self._held_bytes += buffer.held_bytes
        else:
            wanted[partition] = buffer.records.next_offset
            self._note_epoch(buffer.records)
        return True

    def _parse(self, partition: int, offset: int, fetched: Fetched) -> _Buffer | None:
        """Decode an answer; None if its records have no room beside those that are held."""
        where = f"{self.url} partition {partition}"
        try:
            decoded = self._decoder.decode(partition, offset, fetched, self._held_bytes)
        except (ValueError, IndexError) as error:
            message = f"{where}: damaged records at offset {offset}: {error}"
            raise BadRecord(message, help="check the broker's disk, or read on from a later position") from error
        if decoded is None:
            return None
        if fetched.data and decoded.next_offset == offset:
            message = f"{where}: incomplete batch at offset {offset} in {len(fetched.data)} bytes"
            raise BadRecord(message, help="check the broker's disk, or read on from a later position")
        if decoded.lost_from >= 0:
            lost = f"offsets {decoded.lost_from} to {decoded.next_offset - 1}"
            bytes_max = self._session.access.decompressed_bytes_max
            _LOG.error("%s: %s are skipped: their batch expands to more than %d bytes", where, lost, bytes_max)
        columns, epochs = decoded.columns, decoded.leader_epochs
        records = Records(partition, *columns, decoded.next_offset, epochs, fetched.stable_end)
        return _Buffer(offset, records, fetched.stable_end, decoded.held_bytes)

    def _take(self, partition: int, offset: int, limits: tuple[int, int]) -> Records:
        """Return buffered records from an offset on, within the limits; the others stay for the next read."""
        buffer = self._buffers.pop(partition, None)
        if buffer is None or buffer.offset != offset:
            return empty_records(partition, offset, [(0, self._epoch(partition, offset))])
        records = buffer.records
        stop, size = min(len(records), limits[0]), 0
        for at in range(stop):
            size += len(records.keys[at] or b"") + len(records.values[at] or b"")
            if size > limits[1] and at:
                stop = at
                break
        batch = records.slice(0, stop)
        rest = records.slice(stop, len(records))
        self._buffers[partition] = replace(buffer, offset=batch.next_offset, records=rest)
        self._note_epoch(batch)
        return batch

    def _epoch(self, partition: int, offset: int) -> int:
        """Return the leader epoch of the record before an offset; -1 if unknown."""
        known_offset, epoch = self._epochs.get(partition, (offset, -1))
        return epoch if known_offset == offset else -1

    def _note_epoch(self, records: Records) -> None:
        if records.leader_epochs:
            self._epochs[records.partition] = (records.next_offset, records.leader_epoch)

    def _truncation(self, partition: int, offset: int, diverges_at: int) -> PositionLost:
        message = (
            f"{self.url} partition {partition}: position {offset} was read in leader epoch "
            f"{self._epoch(partition, offset)}, but the log has other records from offset {diverges_at} on"
        )
        help = (
            "an unclean leader election lost records that were already read, and other records have their "
            "offsets: set unclean.leader.election.enable=false and min.insync.replicas=2; choose the position "
            "to continue from"
        )
        return PositionLost(message, help=help)

    def _note_failure(self, partitions: Iterable[int], error: Exception, at_ms: float) -> None:
        """Note that requests for partitions failed; new metadata must arrive before the next one."""
        at_ms = min(self._session.now_ms(), at_ms)
        for partition in partitions:
            silence = self._silences.setdefault(partition, _Silence(at_ms, at_ms))
            silence.since_ms = min(silence.since_ms, at_ms)
            silence.last_ms, silence.read_number, silence.reason = at_ms, self._read_number, error
            silence.tries += 1
            self._meter.retried()
            self._failed.add(partition)

    def _refuse_silence(self, wanted: Iterable[int], now_ms: float) -> None:
        """Raise if a partition has been silent for longer than the bound, and still is in this read."""
        in_flight = {partition for flight in self._flights.values() for partition in flight.positions}
        for partition in wanted:
            silence = self._silences.get(partition)
            if silence is None or not (partition in in_flight or silence.read_number == self._read_number):
                continue
            spent_ms = (now_ms if partition in in_flight else silence.last_ms) - silence.since_ms
            if spent_ms >= self._session.access.unreachable_after_ms:
                reason = silence.reason or LinkDown("no answer")
                raise self._session.unreachable(spent_ms, max(silence.tries, 1), reason) from reason
