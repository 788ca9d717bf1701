"""Reading a Kafka topic: fetches by topic id, so that another topic of the same name is never read for it.

At most one fetch is on its way to a leader. A read takes what has come, asks for what has not, and never waits
longer than it may: an answer that comes later is taken by the next read. A fetch names the leader epoch of the record
before it, so that the broker notices a log that was truncated and has grown again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from streamlearn.errors import BadRecord, Oversize, PositionLost
from streamlearn.native import native
from streamlearn.topics.kafka_codec import Decompressor
from streamlearn.topics.kafka_link import (
    EARLIEST,
    LATEST,
    NO_ERROR,
    OFFSET_OUT_OF_RANGE,
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

_FETCH_BYTES_MIN = 65_536
_BATCH_HEAD_BYTES = 12
_LOOK_S_MAX, _FLIGHT_LOOK_S_MAX = 0.05, 0.5


@dataclass(frozen=True, slots=True)
class _Flight:
    """A fetch on its way, and the look that began it."""

    pending: Pending[dict[int, Fetched]]
    positions: dict[int, int]
    look: int


@dataclass(frozen=True, slots=True)
class _Kept:
    """What a fetch brought from an offset on and no read has taken yet."""

    offset: int
    records: Records
    stable_end: int


@dataclass(slots=True)
class _Silence:
    """From when to when a partition was asked for in vain; time in which nobody asked proves nothing."""

    since_ms: float
    last_ms: float
    look: int = 0
    tries: int = 0
    reason: Exception | None = None


class KafkaReader(Reader):
    """The contract is `Reader`'s; `read_many` asks each leader once for all its partitions."""

    def __init__(self, session: KafkaSession, partitions: tuple[int, ...]) -> None:
        super().__init__(session.url, str(session.facts.topic_id), partitions)
        self._session = session
        self._signal = threading.Event()
        self._flights: dict[int, _Flight] = {}
        self._answers: dict[int, tuple[int, Fetched, int]] = {}  # partition -> offset, answer, look
        self._kept: dict[int, _Kept] = {}
        self._epochs: dict[int, tuple[int, int]] = {}  # partition -> offset, leader epoch of the record before it
        self._silences: dict[int, _Silence] = {}
        self._troubled: set[int] = set()  # partitions that are not asked for until the topic was looked at again
        self._looking: Pending[TopicFacts | None] | None = None
        self._look_after_ms = 0.0
        self._looks = 0

    def check(self, position: Position) -> None:
        """Also refuse a position in a log that was truncated before it and has grown again."""
        super().check(position)
        if position.leader_epoch >= 0:
            self._epochs[position.partition] = (position.offset, position.leader_epoch)
            self._look({position.partition: position.offset}, (1, _FETCH_BYTES_MIN), 0)

    def _read(self, partition: int, offset: int, limits: tuple[int, int], wait_ms: int) -> Records:
        return self._read_many({partition: offset}, limits, wait_ms)[0]

    def _read_many(self, positions: Mapping[int, int], limits: tuple[int, int], wait_ms: int) -> list[Records]:
        wanted = dict(positions)
        self._look(wanted, limits, wait_ms)
        given = [self._give(partition, offset, limits) for partition, offset in wanted.items()]
        self._fetch_ahead(given, limits)
        return given

    def _look(self, wanted: dict[int, int], limits: tuple[int, int], wait_ms: int) -> None:
        """Wait for records of one partition, and pass over offsets that have none."""
        session = self._session
        self._looks += 1
        deadline_ms = session.now_ms() + wait_ms
        bound_ms = deadline_ms + session.access.answer_wait_ms
        seen: set[int] = set()  # partitions that this look has found empty, or without a leader
        while wanted:
            self._signal.clear()
            seen |= self._collect(wanted)
            if any(self._has(partition, offset) for partition, offset in wanted.items()):
                break
            now_ms = session.now_ms()
            self._complain(wanted, now_ms)
            until_ms = deadline_ms if seen.issuperset(wanted) else bound_ms
            if now_ms >= until_ms:
                break
            seen |= self._ask(wanted, limits, max(0, int(deadline_ms - now_ms)))
            look_s = _LOOK_S_MAX if self._troubled or not self._flights else _FLIGHT_LOOK_S_MAX
            self._signal.wait(min((until_ms - now_ms) / 1000, look_s))

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

    def _has(self, partition: int, offset: int) -> bool:
        kept = self._kept.get(partition)
        return kept is not None and kept.offset == offset

    def _ask(self, wanted: Mapping[int, int], limits: tuple[int, int], wait_ms: int) -> set[int]:
        """Send what is not on its way yet; gives the partitions for which there is nobody to ask."""
        session, leaderless = self._session, set()
        by_leader: dict[int, dict[int, int]] = {}
        asked_ms = session.now_ms() + wait_ms
        for partition, offset in wanted.items():
            self._silences.setdefault(partition, _Silence(asked_ms, asked_ms))
            leader = session.facts.leaders[partition]
            if leader < 0:
                self._troubled.add(partition)
                leaderless.add(partition)
            elif leader not in self._flights and partition not in self._troubled:
                by_leader.setdefault(leader, {})[partition] = offset
        for leader, positions in by_leader.items():
            self._begin(leader, positions, limits, wait_ms)
        due = bool(self._troubled) or session.is_due()
        if due and self._looking is None and session.now_ms() >= self._look_after_ms:
            self._looking = session.begin_look(connect=bool(self._troubled), signal=self._signal)
        return leaderless

    def _begin(self, leader: int, positions: dict[int, int], limits: tuple[int, int], wait_ms: int) -> None:
        """Ask one leader; partitions take turns at the front, for a broker fills its answer from there."""
        session = self._session
        turn = self._looks % len(positions)
        order = list(positions)[turn:] + list(positions)[:turn]
        most = session.access.fetch_bytes_max
        each = min(max(limits[1], _FETCH_BYTES_MIN), most)
        pending = session.link.begin_fetch(
            leader,
            session.facts.topic_id,
            {partition: positions[partition] for partition in order},
            leader_epochs={partition: self._epoch(partition, offset) for partition, offset in positions.items()},
            bytes_max=(each, min(each * len(positions), most)),
            wait_ms=wait_ms,
            signal=self._signal,
        )
        self._flights[leader] = _Flight(pending, positions, self._looks)

    def _fetch_ahead(self, given: Iterable[Records], limits: tuple[int, int]) -> None:
        """Ask for what follows where a broker is known to have more: it travels while its reader works."""
        by_leader: dict[int, dict[int, int]] = {}
        for records in given:
            kept = self._kept.get(records.partition)
            if kept is not None and kept.offset == records.next_offset and not len(kept.records):
                del self._kept[records.partition]
                leader = self._session.facts.leaders[records.partition]
                if kept.stable_end > kept.offset and leader >= 0 and leader not in self._flights:
                    by_leader.setdefault(leader, {})[records.partition] = kept.offset
        for leader, positions in by_leader.items():
            self._begin(leader, positions, limits, 0)

    def _collect(self, wanted: dict[int, int]) -> set[int]:
        """Take the answers that have come; gives the partitions that are empty at this very look."""
        self._collect_look()
        for leader, flight in list(self._flights.items()):
            if not flight.pending.done:
                continue
            del self._flights[leader]
            try:
                answers = flight.pending.take()
            except LinkDown as error:
                self._trouble(flight.positions, error, flight.pending.done_ms)
                continue
            for partition, fetched in answers.items():
                if fetched.error == NO_ERROR:
                    self._silences.pop(partition, None)
                self._answers[partition] = (flight.positions[partition], fetched, flight.look)
        empty = set()
        for partition in self._answers.keys() & wanted.keys():
            offset, fetched, look = self._answers.pop(partition)
            if offset == wanted[partition]:
                self._use(partition, wanted, fetched)
                if look == self._looks and partition not in self._silences:
                    empty.add(partition)
        return empty

    def _collect_look(self) -> None:
        if self._looking is None or not self._looking.done:
            return
        looking, self._looking = self._looking, None
        self._look_after_ms = self._session.now_ms() + self._session.access.retry_wait_ms
        try:
            self._session.learn(looking.take())
        except (LinkDown, TryAgain) as error:
            self._trouble(list(self._troubled), error, looking.done_ms)
            return
        leaders = self._session.facts.leaders
        troubled, self._troubled = self._troubled, set()
        for partition in troubled:
            if leaders[partition] < 0:
                self._trouble([partition], TryAgain(f"partition {partition} has no leader"), looking.done_ms)

    def _use(self, partition: int, wanted: dict[int, int], fetched: Fetched) -> None:
        """Keep the records of an answer, or see what is wrong with it."""
        offset = wanted[partition]
        if fetched.error == OFFSET_OUT_OF_RANGE:
            self.check_offset(partition, offset, self.earliest(partition), self.end(partition))
        if fetched.diverges_at >= 0:
            raise self._truncated(partition, offset, fetched.diverges_at)
        try:
            if fetched.error == OFFSET_OUT_OF_RANGE:
                # The range moved while it was asked; or the broker has not yet heard of an epoch that another led.
                raise TryAgain(error_name(fetched.error))
            self._session.check(fetched.error)
        except TryAgain as error:
            self._trouble([partition], error, self._session.now_ms())
            return
        records = self._parsed(partition, offset, fetched)
        if len(records):
            self._kept[partition] = _Kept(offset, records, fetched.stable_end)
        else:
            wanted[partition] = records.next_offset
            self._note_epoch(records)

    def _parsed(self, partition: int, offset: int, fetched: Fetched) -> Records:
        budget = self._session.access.decompressed_bytes_max
        where = f"{self.url} partition {partition}"
        data = fetched.data
        try:
            try:
                found = native.scan_kafka_batches(data, offset, fetched.aborted, Decompressor(budget))
            except Oversize:
                # Each may be small enough by itself: the first alone is read, the next read goes on behind it.
                data = _first_batch(data)
                found = native.scan_kafka_batches(data, offset, fetched.aborted, Decompressor(budget))
        except ValueError as error:
            message = f"{where}: damaged records at offset {offset}: {error}"
            raise BadRecord(message, help="check the broker's disk, or read on from a later position") from error
        except Oversize as error:
            message = f"{where}: records at offset {offset}: {error.message}"
            raise Oversize(message, help=error.help) from error
        columns, next_offset, leader_epochs = found
        if data and next_offset == offset:
            message = f"{where}: incomplete batch at offset {offset} in {len(data)} bytes"
            raise BadRecord(message, help="check the broker's disk, or read on from a later position")
        return Records(partition, *columns, next_offset, leader_epochs)

    def _give(self, partition: int, offset: int, limits: tuple[int, int]) -> Records:
        """What is kept from an offset on, within the limits; the others are kept for the next read."""
        kept = self._kept.pop(partition, None)
        if kept is None or kept.offset != offset:
            return empty_records(partition, offset, [(0, self._epoch(partition, offset))])
        records = kept.records
        stop, size = min(len(records), limits[0]), 0
        for at in range(stop):
            size += len(records.keys[at] or b"") + len(records.values[at] or b"")
            if size > limits[1] and at:
                stop = at
                break
        given, rest = records.slice(0, stop), records.slice(stop, len(records))
        self._kept[partition] = _Kept(given.next_offset, rest, kept.stable_end)
        self._note_epoch(given)
        return given

    def _epoch(self, partition: int, offset: int) -> int:
        """The leader epoch of the record before an offset; -1 where it is not known."""
        known_offset, epoch = self._epochs.get(partition, (offset, -1))
        return epoch if known_offset == offset else -1

    def _note_epoch(self, records: Records) -> None:
        if records.leader_epochs:
            self._epochs[records.partition] = (records.next_offset, records.leader_epoch)

    def _truncated(self, partition: int, offset: int, diverges_at: int) -> PositionLost:
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

    def _trouble(self, partitions: Iterable[int], error: Exception, at_ms: float) -> None:
        """Note that partitions were asked for in vain; they are asked for again after a look at the topic."""
        at_ms = min(self._session.now_ms(), at_ms)
        for partition in partitions:
            silence = self._silences.setdefault(partition, _Silence(at_ms, at_ms))
            silence.since_ms = min(silence.since_ms, at_ms)
            silence.last_ms, silence.look, silence.reason = at_ms, self._looks, error
            silence.tries += 1
            self._meter.retried()
            self._troubled.add(partition)

    def _complain(self, wanted: Iterable[int], now_ms: float) -> None:
        """Refuse to go on when a partition was asked for in vain for longer than the bound, at this look too."""
        in_flight = {partition for flight in self._flights.values() for partition in flight.positions}
        for partition in wanted:
            silence = self._silences.get(partition)
            if silence is None or not (partition in in_flight or silence.look == self._looks):
                continue
            spent_ms = (now_ms if partition in in_flight else silence.last_ms) - silence.since_ms
            if spent_ms >= self._session.access.unreachable_after_ms:
                reason = silence.reason or LinkDown("no answer")
                raise self._session.unreachable(spent_ms, max(silence.tries, 1), reason) from reason


def _first_batch(data: bytes) -> bytes:
    size = int.from_bytes(data[8:_BATCH_HEAD_BYTES], "big")
    return data[: _BATCH_HEAD_BYTES + size]
