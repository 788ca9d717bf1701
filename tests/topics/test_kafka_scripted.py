"""Kafka's rare answers, played by a link that says what a script tells it: no broker gives them on demand."""

from __future__ import annotations

import struct
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from streamlearn.errors import NotDelivered, PositionLost, TopicError, TopicUnreachable
from streamlearn.native import native
from streamlearn.testing import ManualClock
from streamlearn.topics import AccessSettings, Position, Reader, TopicSettings, WriterSettings
from streamlearn.topics.kafka_codec import Decompressor
from streamlearn.topics.kafka_link import ErrorCode, Fetched, LinkDown, Produced, TopicFacts
from streamlearn.topics.kafka_reader import KafkaReader
from streamlearn.topics.kafka_session import KafkaSession
from streamlearn.topics.kafka_writer import KafkaWriter
from streamlearn.topics.url import TopicUrl

ACCESS = AccessSettings(retry_wait_ms=1, unreachable_after_ms=150, answer_wait_ms=20, request_timeout_ms=500)
URL = TopicUrl("kafka", "t", ("127.0.0.1:1",))
APPENDING = (0, 6, 7, 20)
"""What a broker may answer once a batch is in its log."""


class SteppingClock(ManualClock):
    """Five milliseconds at each look, so that a slow machine makes nothing late and every wait ends."""

    def monotonic_s(self) -> float:
        self.sleep(0.005)
        return super().monotonic_s()


class Answer:
    """What `Pending` gives, at once or never."""

    def __init__(self, found: Any, done_ms: float, *, done: bool = True) -> None:
        self._found = found
        self.done = done
        self.done_ms = done_ms

    def take(self) -> Any:
        if isinstance(self._found, Exception):
            raise self._found
        return self._found


class ScriptedLink:
    """One broker. `codes` are what it answers to batches, `None` breaks the connection."""

    def __init__(self, leaders: tuple[int, ...], codes: list[int | None] | None = None) -> None:
        self.leaders = leaders
        self.codes = codes or []
        self.clock = SteppingClock()
        self.producers = 0
        self.values: list[bytes | None] = []
        self.requests: list[list[int]] = []
        self.silent = False
        self.fetched = Fetched(0, b"", [])
        self.offsets = {-2: 0, -1: 100}
        self.leader_epochs: list[int] = []
        self._known: dict[bytes, int] = {}

    def connect(self, timeout_ms: float) -> None: ...

    def close(self) -> None: ...

    def topic(self, name: str) -> TopicFacts:
        return TopicFacts(uuid.UUID(int=7), self.leaders)

    def begin_topic(self, name: str, *, connect: bool, signal: threading.Event) -> Answer:
        signal.set()
        return self._answer(self.topic(name))

    def producer_id(self) -> tuple[int, int, int]:
        self.producers += 1
        return 0, self.producers, 0

    def produce(
        self, topic: tuple[str, uuid.UUID], batches: Mapping[int, Mapping[int, bytes]]
    ) -> dict[int, Produced | LinkDown]:
        answers: dict[int, Produced | LinkDown] = {}
        for parts in batches.values():
            self.requests.append(list(parts))
            for partition, batch in parts.items():
                code = self.codes.pop(0) if self.codes else 0
                if code is None or code in APPENDING:
                    self._append(batch)
                base = self._known.get(batch, -1)
                answers[partition] = LinkDown("gone") if code is None else Produced(code, base, "")
        return answers

    def _append(self, batch: bytes) -> None:
        if batch not in self._known:  # the sequence numbers in it are the same
            self._known[batch] = len(self.values)
            columns, _, _ = native.scan_kafka_batches(batch, 0, [], Decompressor(1))
            self.values += columns[3]

    def offset(self, leader: int, name: str, partition: int, timestamp_ms: int) -> tuple[int, int]:
        return 0, self.offsets[timestamp_ms]

    def begin_fetch(
        self, leader: int, topic_id: uuid.UUID, positions: Mapping[int, int], *, leader_epochs: dict[int, int], **_: Any
    ) -> Answer:
        self.requests.append(list(positions))
        self.leader_epochs += leader_epochs.values()
        return self._answer(dict.fromkeys(positions, self.fetched), done=not self.silent)

    def _answer(self, found: Any, *, done: bool = True) -> Answer:
        return Answer(found, self.clock.monotonic_s() * 1000, done=done)


def session_of(link: ScriptedLink, monkeypatch: pytest.MonkeyPatch, access: AccessSettings = ACCESS) -> KafkaSession:
    monkeypatch.setattr("streamlearn.topics.kafka_session.KafkaLink", lambda *_: link)
    session = KafkaSession(URL, access, link.clock)
    session.verify()
    return session


def writer_of(link: ScriptedLink, monkeypatch: pytest.MonkeyPatch, timeout_ms: int = 5_000) -> KafkaWriter:
    session = session_of(link, monkeypatch)
    topic = TopicSettings(partitions=len(link.leaders))
    return KafkaWriter(session, topic, WriterSettings(delivery_timeout_ms=timeout_ms), link.clock)


def read_on(reader: Reader, partitions: tuple[int, ...]) -> None:
    """Read nothing until the reader refuses."""
    deadline_s = time.monotonic() + 120
    while time.monotonic() < deadline_s:
        for partition in partitions:
            assert len(reader.read(partition, 0, wait_ms=5)) == 0


@pytest.mark.parametrize("doubtful", [None, 6, 7, 20])
@pytest.mark.parametrize("lost", [45, 47, 59])
def test_a_batch_in_doubt_is_never_sent_under_another_producer_id(
    monkeypatch: pytest.MonkeyPatch, doubtful: int | None, lost: int
) -> None:
    link = ScriptedLink((0,), [doubtful, lost, 0])
    writer = writer_of(link, monkeypatch)
    with pytest.raises(NotDelivered, match="1 records may or may not have been written") as caught:
        writer.append(0, [b"event"])
    assert caught.value.unsure
    assert link.values == [b"event"]


@pytest.mark.parametrize("refused", [19, 45, 59])
def test_a_batch_that_is_not_in_for_certain_is_sent_again(monkeypatch: pytest.MonkeyPatch, refused: int) -> None:
    link = ScriptedLink((0,), [refused, 59, 0])
    assert writer_of(link, monkeypatch).append(0, [b"event"]).tolist() == [0]
    assert link.values == [b"event"]


@pytest.mark.parametrize("doubtful", [None, 6, 7, 20])
def test_a_batch_in_doubt_is_sent_again_byte_for_byte(monkeypatch: pytest.MonkeyPatch, doubtful: int | None) -> None:
    link = ScriptedLink((0,), [doubtful, 19, doubtful, 0])
    writer = writer_of(link, monkeypatch)
    assert writer.append(0, [b"a"]).tolist() == [0]
    assert writer.append(0, [b"b"]).tolist() == [1]
    assert link.values == [b"a", b"b"]


@pytest.mark.parametrize(("code", "unsure"), [(19, False), (7, True)])
def test_an_append_given_up_says_whether_it_may_be_in(monkeypatch: pytest.MonkeyPatch, code: int, unsure: bool) -> None:
    link = ScriptedLink((0,), [code] * 10_000)
    with pytest.raises(TopicUnreachable) as caught:
        writer_of(link, monkeypatch, 30).append(0, [b"event"])
    assert caught.value.unsure == unsure == ("may or may not have been written" in caught.value.message)


def test_a_flush_asks_a_leader_once_for_all_its_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    link = ScriptedLink((3, 4, 3, 4))
    writer = writer_of(link, monkeypatch)
    for partition in range(4):
        writer.send(partition, b"%d" % partition)
    writer.flush()
    assert sorted(map(sorted, link.requests)) == [[0, 2], [1, 3]]


def test_one_partition_that_is_refused_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    link = ScriptedLink((0, 0, 0), [0, 32, 7, 0])
    writer = writer_of(link, monkeypatch)
    for partition in range(3):
        writer.send(partition, b"%d" % partition)
    with pytest.raises(NotDelivered, match=r"partition 1: 1 \(.*InvalidTimestamp") as caught:
        writer.flush()
    assert [failure[:2] for failure in caught.value.failures] == [(1, 1)]
    assert not caught.value.unsure
    assert link.values == [b"0", b"2"]


def test_a_partition_without_a_leader_is_named_though_another_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    link = ScriptedLink((-1, 0))
    reader = KafkaReader(session_of(link, monkeypatch), (0, 1))
    with pytest.raises(TopicUnreachable, match="partition 0 has no leader"):
        read_on(reader, (0, 1))
    link.leaders = (0, 0)
    deadline_s = time.monotonic() + 120
    while [0] not in link.requests and time.monotonic() < deadline_s:
        try:
            reader.read(0, 0, wait_ms=5)
        except TopicUnreachable:
            continue
    assert [0] in link.requests


def test_a_pause_between_reads_is_no_silence_of_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    link = ScriptedLink((-1,))
    reader = KafkaReader(session_of(link, monkeypatch), (0,))
    reader.read(0, 0)
    link.clock.sleep(3_600)
    link.leaders = (0,)
    assert len(reader.read(0, 0)) == 0


def test_a_topic_that_gets_more_partitions_stops_its_idle_readers_and_writers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    access = replace(ACCESS, check_every_ms=50)
    link = ScriptedLink((0,))
    reader = KafkaReader(session_of(link, monkeypatch, access), (0,))
    session = session_of(link, monkeypatch, access)
    writer = KafkaWriter(session, TopicSettings(), WriterSettings(), link.clock)
    assert len(reader.read(0, 0)) == 0
    link.leaders = (0, 0, 0)
    with pytest.raises(TopicError, match="now has 3 partitions; it had 1 when it was opened") as caught:
        read_on(reader, (0,))
    assert "open it again" in caught.value.help
    with pytest.raises(TopicError, match="now has 3 partitions; it had 1 when it was opened"):
        writer.append(0, [b"a"])


def test_one_fetch_asks_a_leader_for_many_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    link = ScriptedLink((0,) * 5 + (1,) * 3)
    reader = KafkaReader(session_of(link, monkeypatch), tuple(range(8)))
    found = reader.read_many(dict.fromkeys(range(8), 0))
    assert [records.partition for records in found] == list(range(8))
    assert sorted(map(sorted, link.requests)) == [[0, 1, 2, 3, 4], [5, 6, 7]]


def test_a_fetch_names_the_leader_epoch_of_the_record_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    link = ScriptedLink((0,))
    link.fetched = Fetched(0, batch_of(7, 40) + batch_of(9, 42), [])
    reader = KafkaReader(session_of(link, monkeypatch), (0,))
    found = reader.read(0, 40)
    link.fetched = Fetched(0, b"", [])
    assert [len(reader.read(0, offset)) for offset in (found.next_offset, 41, 42, 40)] == [0] * 4
    assert link.leader_epochs == [-1, 9, -1, -1, -1]
    assert [found.leader_epoch_at(offset) for offset in (39, 40, 41, 42, 43)] == [-1, 7, 7, 9, 9]
    assert [found.slice(0, count).leader_epoch for count in (1, 2, 3)] == [7, 7, 9]


def test_a_log_that_parted_before_a_position_is_named_with_both_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    link = ScriptedLink((0,))
    link.fetched = Fetched(0, b"", [], diverges_at=30)
    reader = KafkaReader(session_of(link, monkeypatch), (0,))
    topic_id = str(link.topic("t").topic_id)
    with pytest.raises(PositionLost, match=r"position 40 .* leader epoch 7, .* from offset 30 on"):
        reader.check(Position(topic_id, 0, 40, 7))
    assert link.leader_epochs == [7]


def test_a_broker_that_has_not_heard_of_a_leader_epoch_is_asked_again_within_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    link = ScriptedLink((0,))
    link.fetched = Fetched(ErrorCode.OFFSET_OUT_OF_RANGE, b"", [])
    reader = KafkaReader(session_of(link, monkeypatch), (0,))
    reader.check(Position(str(link.topic("t").topic_id), 0, 0, 7))
    with pytest.raises(TopicUnreachable, match="OffsetOutOfRange"):
        read_on(reader, (0,))
    assert len(link.requests) >= 2


def batch_of(leader_epoch: int, first_offset: int) -> bytes:
    """Two records as a broker keeps them."""
    batch = native.pack_kafka_batch((-1, -1, -1), np.array([1, 2]), None, [b"a", b"b"])
    return struct.pack(">q", first_offset) + batch[8:12] + struct.pack(">i", leader_epoch) + batch[16:]


def test_a_broker_that_answers_empty_at_once_is_asked_again_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    link = ScriptedLink((0,))
    reader = KafkaReader(session_of(link, monkeypatch, replace(ACCESS, retry_wait_ms=100)), (0,))
    assert len(reader.read(0, 0, wait_ms=500)) == 0
    assert 2 <= len(link.requests) <= 7


def test_a_partition_that_a_broker_leaves_out_is_named_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    link = ScriptedLink((0,))
    monkeypatch.setattr(link, "begin_fetch", lambda *_, **__: link._answer({}))
    reader = KafkaReader(session_of(link, monkeypatch), (0,))
    with pytest.raises(TopicUnreachable, match="no answer for the partition"):
        read_on(reader, (0,))


def test_a_silent_broker_is_asked_once_and_named_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    link = ScriptedLink((0,))
    link.silent = True
    reader = KafkaReader(session_of(link, monkeypatch), (0,))
    started_s = link.clock.monotonic_s()
    assert len(reader.read(0, 0)) == 0
    assert len(reader.read(0, 0, wait_ms=10)) == 0
    assert link.clock.monotonic_s() - started_s < ACCESS.unreachable_after_ms / 1000
    assert link.requests == [[0]]
    with pytest.raises(TopicUnreachable, match="no answer"):
        read_on(reader, (0,))
    assert link.requests == [[0]]
