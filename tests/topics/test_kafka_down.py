"""Kafka away, silent or back: waits are bounded, errors name the address, work goes on once it is there."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from streamlearn.errors import NotDelivered, TopicUnreachable
from streamlearn.topics import Topic, WriterSettings, create_topic, open_topic
from tests.topics.places import ACCESS, SETTINGS, Place

pytestmark = pytest.mark.kafka

IMPATIENT = replace(ACCESS, unreachable_after_ms=600, request_timeout_ms=300, answer_wait_ms=100)
WAIT_S_MAX = 15.0  # many times the bounds, as a machine may stand still, and less than the bounds that are usual


@pytest.fixture
def topic(own_kafka: Any, tmp_path: Path) -> Iterator[Topic]:
    place = Place.of("kafka", tmp_path, own_kafka.address)
    with create_topic(place.new_url(), SETTINGS, ACCESS) as topic:
        yield topic
    place.clean()


def test_a_killed_broker_is_named_within_the_bound_and_work_goes_on_when_it_is_back(
    own_kafka: Any, topic: Topic
) -> None:
    with (
        open_topic(topic.url, IMPATIENT) as hurried,
        hurried.writer(WriterSettings(delivery_timeout_ms=600)) as writer,
    ):
        patient_writer, reader = topic.writer(), hurried.reader()
        patient_writer.append(0, [b"before"])
        writer.append(0, [b"before too"])
        assert len(reader.read(0, 0, wait_ms=2_000)) > 0
        own_kafka.kill()
        try:
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
        assert patient_writer.append(0, [b"after"]).tolist() == [2]
        with topic.reader() as patient_reader:
            assert patient_reader.read(0, 0, wait_ms=5_000).values == [b"before", b"before too", b"after"]
        deadline_s = time.monotonic() + 20
        while not (values := _read_or_none(reader, 2)) and time.monotonic() < deadline_s:
            pass
        assert values == [b"after"]
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


def test_a_silent_broker_is_given_up_within_the_bound(own_kafka: Any, topic: Topic) -> None:
    with open_topic(topic.url, IMPATIENT) as hurried, hurried.reader() as reader:
        own_kafka.pause()
        try:
            started_s = time.monotonic()
            assert len(reader.read(0, 0, wait_ms=50)) == 0
            assert time.monotonic() - started_s < WAIT_S_MAX
            with pytest.raises(TopicUnreachable, match=own_kafka.address):
                hurried.settings()
            assert time.monotonic() - started_s < WAIT_S_MAX
        finally:
            own_kafka.resume()


def test_a_read_returns_in_its_time_from_a_silent_broker_and_the_next_takes_the_answer(
    own_kafka: Any, topic: Topic
) -> None:
    patient = replace(ACCESS, answer_wait_ms=50)
    with open_topic(topic.url, patient) as reopened, reopened.reader() as reader, topic.writer() as writer:
        assert len(reader.read(0, 0, wait_ms=100)) == 0
        writer.append(0, [b"a", b"b"])
        own_kafka.pause()
        try:
            for _ in range(3):
                started_s = time.monotonic()
                assert len(reader.read(0, 0, wait_ms=20)) == 0
                assert time.monotonic() - started_s < ACCESS.request_timeout_ms / 1_000
        finally:
            own_kafka.resume()
        deadline_s = time.monotonic() + 20
        values: list[bytes | None] = []
        while not values and time.monotonic() < deadline_s:
            values = reader.read(0, 0, wait_ms=20).values
        assert values == [b"a", b"b"]


def test_an_append_sent_before_a_silence_is_there_once(own_kafka: Any, topic: Topic) -> None:
    """The broker got the batch but answered late: the batch is sent again, and dropped as a duplicate."""
    with (
        open_topic(topic.url, replace(ACCESS, request_timeout_ms=300)) as hurried,
        hurried.writer() as writer,
    ):
        writer.append(0, [b"0"])
        own_kafka.pause()
        import threading

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
