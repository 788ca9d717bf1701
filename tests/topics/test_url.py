"""URLs of topics."""

from __future__ import annotations

import pytest

from streamlearn.errors import UsageError
from streamlearn.topics import open_topic
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
    with pytest.raises(UsageError, match="is not the URL of a topic") as caught:
        open_topic(url)
    assert "memory://NAME" in caught.value.help


def test_credentials_in_a_url_are_refused_and_not_repeated() -> None:
    with pytest.raises(UsageError) as caught:
        open_topic("kafka://me:secret@host:9092/events")
    assert "secret" not in str(caught.value)
