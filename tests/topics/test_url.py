"""URLs of topics."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from streamlearn.errors import TopicUnreachable, UsageError
from streamlearn.testing import wait_until
from streamlearn.topics import AccessSettings, create_topic, open_topic
from streamlearn.topics.kafka_link import KafkaLink
from streamlearn.topics.url import TopicUrl, parse_url


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("memory://events", TopicUrl("memory", "events")),
        ("file:///data/topics/events", TopicUrl("file", "/data/topics/events")),
        ("file://localhost/data/my%20topics/e.v-1", TopicUrl("file", "/data/my topics/e.v-1")),
        ("kafka://one:9092,[::1]:9093/events", TopicUrl("kafka", "events", ("one:9092", "[::1]:9093"))),
    ],
)
def test_a_url_names_an_implementation_and_a_topic(url: str, wanted: TopicUrl) -> None:
    assert parse_url(url) == wanted


@pytest.mark.parametrize(
    "url",
    [
        "",
        "events",
        "memory://",
        "memory://a/b",
        "file://data/events",
        "file:///",
        "file:///data/..",
        "kafka://host/events",
        "kafka://host:0/events",
        "kafka://host:99999/events",
        "kafka://:9092/events",
        "kafka://host:9092/",
        "kafka://host:9092/a/b",
        "kafka://host:9092/" + "a" * 250,
        "http://host/events",
    ],
)
def test_what_is_no_url_of_a_topic_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="is not a topic URL") as caught:
        open_topic(url)
    assert "memory://NAME" in caught.value.help


@pytest.mark.parametrize(
    "url",
    [
        "kafka://me:secret@host:9092/events",
        "kafka://me:se#secret@host:9092/events",
        "kafka://me:se/secret@host:9092/events",
        "kafka://me:se?secret@host:9092/events",
        "kafka://me:secret%40host:9092/events",
        "file://me:se/secret@host/events",
        "http://me:secret@host/events",
        "me:secret@host",
    ],
)
def test_credentials_in_a_url_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(UsageError, match="must not contain credentials") as caught:
        open_topic(url)
    assert "secret" not in str(caught.value)


def test_a_folder_may_have_any_name() -> None:
    assert parse_url("file:///data/me@home/events") == TopicUrl("file", "/data/me@home/events")


def test_a_folder_the_file_system_refuses_is_said_to_be_unreachable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for url in ("file:///proc/nope/t", f"file://{tmp_path}/file/t"):
        with pytest.raises(TopicUnreachable, match=url) as caught:
            create_topic(url)
        assert caught.value.help


def test_who_waits_for_a_broker_is_told_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("streamlearn.topics.kafka._SAID_AFTER_S", 0.01)
    access = AccessSettings(unreachable_after_ms=300, request_timeout_ms=100, retry_wait_ms=50)
    connect = KafkaLink.connect

    def connect_when_told(link: KafkaLink, timeout_ms: float) -> None:
        wait_until(lambda: caplog.records, "who waits to be told")
        connect(link, timeout_ms)

    monkeypatch.setattr(KafkaLink, "connect", connect_when_told)
    with caplog.at_level(logging.WARNING, "streamlearn.topics.kafka"), pytest.raises(TopicUnreachable):
        open_topic("kafka://127.0.0.1:1/shop.samples", access)
    assert [record.getMessage() for record in caplog.records] == ["waiting for the broker at 127.0.0.1:1 (up to 0.3 s)"]
