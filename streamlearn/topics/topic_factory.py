"""Opening, creating and deleting topics by URL: the one module that knows all implementations."""

from __future__ import annotations

from pathlib import Path

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import TopicExists
from streamlearn.topics.settings import AccessSettings, TopicSettings
from streamlearn.topics.topic import Topic
from streamlearn.topics.url import TopicUrl, parse_url

__all__ = ["create_topic", "delete_topic", "open_topic"]


def open_topic(url: str, access: AccessSettings | None = None, *, clock: Clock = SYSTEM_CLOCK) -> Topic:
    """Open a topic at `memory://NAME`, `file:///DIR/NAME` or `kafka://HOST:PORT[,HOST:PORT]/NAME`.

    `clock` stamps records without a time, and decides their age.

    Raises:
        UsageError: The URL is invalid.
        TopicMissing: The topic does not exist.
        TopicUnreachable: No broker answered within `unreachable_after_ms`.
    """
    parsed, access = parse_url(url), access or AccessSettings()
    if parsed.kind == "memory":
        from streamlearn.topics.memory import MemoryTopic

        return MemoryTopic(parsed.name, clock)
    if parsed.kind == "file":
        from streamlearn.topics.file_folder import open_folder
        from streamlearn.topics.file_topic import FileTopic

        return FileTopic(open_folder(Path(parsed.name)), access, clock)
    from streamlearn.topics.kafka import KafkaTopic

    return KafkaTopic(parsed, access, clock)


def create_topic(
    url: str,
    settings: TopicSettings | None = None,
    access: AccessSettings | None = None,
    *,
    exist_ok: bool = False,
    clock: Clock = SYSTEM_CLOCK,
) -> Topic:
    """Create a topic and open it; see `open_topic`.

    `exist_ok` opens a topic that exists with the same settings; one with other settings is an error all the same.

    Raises:
        TopicExists: The topic exists; the message names every setting that differs.
    """
    settings = settings or TopicSettings()
    try:
        _create(parse_url(url), settings, access or AccessSettings())
    except TopicExists as exists:
        topic = open_topic(url, access, clock=clock)
        try:
            differences = settings.differences(topic.settings())
        except BaseException:
            topic.close()
            raise
        if exist_ok and not differences:
            return topic
        topic.close()
        message = f"{topic.url} exists already, with {differences or 'the same settings'}"
        help = "open it as it is (exist_ok, if its settings are equal), or delete it and its records first"
        raise TopicExists(message, help=help) from exists
    return open_topic(url, access, clock=clock)


def delete_topic(url: str, access: AccessSettings | None = None) -> None:
    """Delete a topic and all its records; raises TopicMissing if it does not exist."""
    parsed = parse_url(url)
    if parsed.kind == "memory":
        from streamlearn.topics.memory import delete_memory_topic

        delete_memory_topic(parsed.name)
    elif parsed.kind == "file":
        from streamlearn.topics.file_folder import delete_file_topic

        delete_file_topic(Path(parsed.name))
    else:
        from streamlearn.topics.kafka import delete_kafka_topic

        delete_kafka_topic(parsed, access or AccessSettings())


def _create(parsed: TopicUrl, settings: TopicSettings, access: AccessSettings) -> None:
    if parsed.kind == "memory":
        from streamlearn.topics.memory import create_memory_topic

        create_memory_topic(parsed.name, settings)
    elif parsed.kind == "file":
        from streamlearn.topics.file_folder import create_file_topic

        create_file_topic(Path(parsed.name), settings)
    else:
        from streamlearn.topics.kafka import create_kafka_topic

        create_kafka_topic(parsed, settings, access)
