"""Kafka away, silent or back: waits are bounded, errors name the address, work goes on once it is there."""

from __future__ import annotations

import logging
import socket
import struct
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.future import Future

from streamlearn.errors import NotDelivered, TopicError, TopicUnreachable
from streamlearn.testing import wait_until
from streamlearn.topics import (
    AccessSettings,
    Topic,
    WriterSettings,
    create_topic,
    kafka_connections,
    kafka_link,
    open_topic,
)
from streamlearn.topics.kafka_link import KafkaLink, LinkDown
from tests.topics.places import ACCESS, SETTINGS, Place
from tools.services.kafka_metadata import read_cluster
from tools.services.ports import LOOPBACK

pytestmark = pytest.mark.kafka

IMPATIENT = replace(ACCESS, unreachable_after_ms=600, request_timeout_ms=300, answer_wait_ms=100)  # nobody is there
WAIT_S_MAX = 60.0  # many times the bounds, as a machine may stand still, and less than the bounds that are usual


@pytest.fixture
def topic(own_kafka: Any, tmp_path: Path) -> Iterator[Topic]:
    place = Place.of("kafka", tmp_path, own_kafka.address)
    with create_topic(place.new_url(), SETTINGS, ACCESS) as topic:
        yield topic
    place.clean()


def hurry(patched: pytest.MonkeyPatch, *ends: Any) -> None:
    """Let topics, readers and writers, which were opened with patience, give up soon."""
    for end in ends:
        patched.setattr(end._session, "access", IMPATIENT)
        patched.setattr(end._session.link, "_access", IMPATIENT)


def test_a_killed_broker_is_named_within_the_bound_and_work_goes_on_when_it_is_back(
    own_kafka: Any, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, port = own_kafka.address, own_kafka.ports[0]
    cluster = read_cluster(LOOPBACK, port, WAIT_S_MAX)
    with (
        open_topic(topic.url, ACCESS) as opened,
        opened.writer(WriterSettings(delivery_timeout_ms=600)) as writer,
        monkeypatch.context() as patched,
    ):
        patient_writer, reader = topic.writer(), opened.reader()
        patient_writer.append(0, [b"before"])
        with monkeypatch.context() as patient:
            patient.setattr(writer, "_settings", WriterSettings())
            writer.append(0, [b"before too"])
        assert len(reader.read(0, 0, wait_ms=2_000)) > 0
        own_kafka.kill()
        try:
            assert read_cluster(LOOPBACK, port, 0.5) is None
            hurry(patched, writer, reader)
            started_s = time.monotonic()
            with pytest.raises(TopicUnreachable, match=f"{own_kafka.address} did not answer for .* ms") as caught:
                writer.append(0, [b"lost"])
            assert caught.value.help
            writer.send(1, b"lost too")
            with pytest.raises(NotDelivered, match=f"partition 1: 1 .*{own_kafka.address} did not answer"):
                writer.flush()
            with pytest.raises(TopicUnreachable, match=own_kafka.address):
                reader.end(0)
            with pytest.raises(TopicUnreachable, match=own_kafka.address):
                open_topic(topic.url, IMPATIENT)
            with pytest.raises(TopicUnreachable, match=own_kafka.address):
                _read_until_refused(reader, started_s + 4 * WAIT_S_MAX)
            assert time.monotonic() - started_s < 4 * WAIT_S_MAX
        finally:
            own_kafka.restart()
        patched.undo()
        assert (own_kafka.address, read_cluster(LOOPBACK, port, WAIT_S_MAX)) == (address, cluster)
        assert patient_writer.append(0, [b"after"]).tolist() == [2]
        with topic.reader() as patient_reader:
            assert patient_reader.read(0, 0, wait_ms=5_000).values == [b"before", b"before too", b"after"]
        assert wait_until(lambda: _read_or_none(reader, 2), "the record after the kill") == [b"after"]
        patient_writer.close()
        reader.close()


def _read_until_refused(reader: Any, until_s: float) -> None:
    while time.monotonic() < until_s:
        reader.read(0, 2, wait_ms=100)


def _read_or_none(reader: Any, offset: int) -> list[bytes | None]:
    try:
        values: list[bytes | None] = reader.read(0, offset, wait_ms=200).values
    except TopicUnreachable:
        return []
    return values


def test_a_silent_broker_is_given_up_within_the_bound(
    own_kafka: Any, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_topic(topic.url, replace(ACCESS, answer_wait_ms=100)) as opened, opened.reader() as reader:
        own_kafka.pause()
        try:
            started_s = time.monotonic()
            assert len(reader.read(0, 0, wait_ms=50)) == 0
            assert time.monotonic() - started_s < WAIT_S_MAX
            hurry(monkeypatch, opened)
            with pytest.raises(TopicUnreachable, match=own_kafka.address):
                opened.settings()
            assert time.monotonic() - started_s < WAIT_S_MAX
        finally:
            own_kafka.resume()


def test_a_read_returns_in_its_time_from_a_silent_broker_and_the_next_takes_the_answer(
    own_kafka: Any, topic: Topic
) -> None:
    patient = replace(ACCESS, answer_wait_ms=50, request_timeout_ms=110_000)
    with open_topic(topic.url, patient) as reopened, reopened.reader() as reader, topic.writer() as writer:
        assert len(reader.read(0, 0, wait_ms=100)) == 0
        writer.append(0, [b"a", b"b"])
        own_kafka.pause()
        try:
            for _ in range(3):
                started_s = time.monotonic()
                assert len(reader.read(0, 0, wait_ms=20)) == 0
                assert time.monotonic() - started_s < WAIT_S_MAX
        finally:
            own_kafka.resume()
        assert wait_until(lambda: reader.read(0, 0, wait_ms=20).values, "the answer") == [b"a", b"b"]


def test_an_append_sent_before_a_silence_is_there_once(own_kafka: Any, topic: Topic) -> None:
    """The broker got the batch but answered late: the batch is sent again, and dropped as a duplicate."""
    with (
        open_topic(topic.url, replace(ACCESS, request_timeout_ms=500)) as hurried,
        hurried.writer() as writer,
    ):
        writer.append(0, [b"0"])
        own_kafka.pause()
        timer = threading.Timer(1.0, own_kafka.resume)
        timer.start()
        try:
            assert writer.append(0, [b"1", b"2"]).tolist() == [1, 2]
        finally:
            timer.join()
        assert writer.append(0, [b"3"]).tolist() == [3]
        with topic.reader() as reader:
            assert reader.end(0) == 4
            assert reader.read(0, 0, wait_ms=2_000).values == [b"0", b"1", b"2", b"3"]


def test_nobody_at_the_address_is_said_within_the_bound(tmp_path: Path) -> None:
    started_s = time.monotonic()
    with pytest.raises(TopicUnreachable, match=r"127\.0\.0\.1:1 did not answer for .* ms \(\d+ tries\)"):
        open_topic("kafka://127.0.0.1:1/events", IMPATIENT)
    assert time.monotonic() - started_s < WAIT_S_MAX


def test_an_answer_that_only_says_that_it_is_large_takes_no_memory() -> None:
    import tracemalloc

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        threading.Thread(target=_claim_much, args=(server,), daemon=True).start()
        tracemalloc.start()
        try:
            with pytest.raises(TopicUnreachable):
                open_topic(f"kafka://127.0.0.1:{port}/events", IMPATIENT)
            assert tracemalloc.get_traced_memory()[1] < 64 << 20
        finally:
            tracemalloc.stop()


def _claim_much(server: socket.socket) -> None:
    """Answer the first request of each connection with the size of a large answer, and nothing after it."""
    with suppress(OSError), ExitStack() as opened:  # the test closes the server
        while True:
            connection = opened.enter_context(server.accept()[0])
            if connection.recv(1_000):
                connection.sendall(struct.pack(">i", AccessSettings().response_bytes_max))


def test_answers_come_whole_however_their_bytes_arrive() -> None:
    from kafka.protocol.metadata import ApiVersionsRequest

    whole = b"".join(struct.pack(">iihi", 10, number, 0, 0) for number in (1, 2, 3))
    for step in (1, 3, 14, 20, len(whole)):
        parser = kafka_connections._Parser(client_id="test", receive_message_max_bytes=100)
        for _ in range(3):
            parser.send_request(ApiVersionsRequest(version=0))
        pieces = [whole[at : at + step] for at in range(0, len(whole), step)]
        assert [number for piece in pieces for number, _ in parser.receive_bytes(piece)] == [1, 2, 3]


@pytest.mark.parametrize(
    "ask",
    [
        lambda link: link.topic("t"),
        lambda link: link.create("t", 1, {}),
        lambda link: link.delete("t"),
        lambda link: link.configs("t"),
        lambda link: link.offset(0, "t", 0, -1),
        lambda link: link.produce(("t", uuid.UUID(int=7)), {0: {0: b""}})[0],
        lambda link: _fetch(link).take(),
    ],
)
@pytest.mark.parametrize("nothing", [[], None])
def test_an_answer_without_what_was_asked_for_is_no_answer(
    ask: Callable[[KafkaLink], Any], nothing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("topics", "responses", "results")
    answer = SimpleNamespace(error_code=0, **dict.fromkeys(names, nothing))
    if nothing == []:
        answer.responses = [SimpleNamespace(partitions=None, partition_responses=None)]
    future = Future()
    future.success(answer)
    link = KafkaLink(("127.0.0.1:1",), IMPATIENT)
    monkeypatch.setattr(link._manager, "run", lambda *_: answer)
    monkeypatch.setattr(link._manager, "call_soon", lambda *_: future)
    try:
        outcome = ask(link)
    except LinkDown as error:
        outcome = error
    finally:
        monkeypatch.undo()
        link.close()
    assert isinstance(outcome, LinkDown)


def test_a_partition_that_was_not_asked_for_is_left_out() -> None:
    other = SimpleNamespace(partition_index=77)
    answer = SimpleNamespace(error_code=0, responses=[SimpleNamespace(partitions=[other])])
    assert kafka_link._fetched(answer, {0: 0}) == {}


def _fetch(link: KafkaLink) -> Any:
    limits: dict[str, Any] = {"leader_epochs": {}, "bytes_max": (1, 1), "wait_ms": 0, "signal": threading.Event()}
    return link.begin_fetch(0, uuid.UUID(int=7), {0: 0}, **limits)


def test_a_broker_that_leaves_out_settings_is_named(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    for configs in ({}, {"cleanup.policy": None}, {"cleanup.policy": "delete", "retention.ms": "soon"}):
        monkeypatch.setattr(KafkaLink, "configs", lambda *_, configs=configs: (0, configs))
        with pytest.raises(TopicError, match="settings of the topic cannot be read"):
            topic.settings()


def test_kafka_pythons_log_is_silent(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(TopicUnreachable):
        open_topic("kafka://127.0.0.1:1/events", IMPATIENT)
    assert capfd.readouterr().err == ""
    assert caplog.records == []


def test_the_log_of_others_who_use_kafka_python_is_not_touched(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(TopicUnreachable):
        open_topic("kafka://127.0.0.1:1/events", IMPATIENT)
    theirs = logging.getLogger("kafka.net.manager")
    assert theirs.isEnabledFor(logging.ERROR)
    theirs.error("of another client")
    assert [record.getMessage() for record in caplog.records] == ["of another client"]


def test_connections_of_others_who_use_kafka_python_are_made_as_before() -> None:
    from kafka.net.inet import KafkaNetSocket

    with pytest.raises(TopicUnreachable):
        open_topic("kafka://127.0.0.1:1/events", IMPATIENT)
    assert KafkaNetSocket.sock_connect.__module__ == "kafka.net.inet"
    assert type(KafkaNetSocket()) is KafkaNetSocket
