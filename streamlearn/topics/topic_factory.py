"""Opening, creating and deleting topics by URL: the one place that knows all implementations."""

from __future__ import annotations

from pathlib import Path

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import TopicExists
from streamlearn.topics.settings import AccessSettings, TopicSettings
from streamlearn.topics.topic import Topic
from streamlearn.topics.url import TopicUrl, parse_url

__all__ = ["create_topic", "delete_topic", "open_topic"]


def open_topic(url: str, access: AccessSettings | None = None, *, clock: Clock = SYSTEM_CLOCK) -> Topic:
    """Open a topic that exists.

    Args:
        url: `memory://name`, `file:///dir/name` or `kafka://host:port[,host:port]/name`.
        access: How long to try.
        clock: Stamps records without a time, and ages them.

    Raises:
        UsageError: No such kind of URL.
        TopicMissing: No such topic.
        TopicUnreachable: Nobody answered within `unreachable_after_ms`.
    """
    parsed, access = parse_url(url), access or AccessSettings()
    if parsed.kind == "memory":
        from streamlearn.topics.memory import open_memory_topic

        return open_memory_topic(parsed.name, clock)
    if parsed.kind == "file":
        from streamlearn.topics.file_topic import open_file_topic

        return open_file_topic(Path(parsed.name), access, clock)
    from streamlearn.topics.kafka import open_kafka_topic

    return open_kafka_topic(parsed, access, clock)


def create_topic(
    url: str,
    settings: TopicSettings | None = None,
    access: AccessSettings | None = None,
    *,
    exist_ok: bool = False,
    clock: Clock = SYSTEM_CLOCK,
) -> Topic:
    """Create a topic and open it.

    Args:
        url: As for `open_topic`.
        settings: What it shall be.
        access: How long to try.
        exist_ok: A topic of the same settings is opened as it is; one of others is refused all the same.
        clock: As for `open_topic`.

    Raises:
        TopicExists: It is there already; the message names every setting that differs.
    """
    wanted = settings or TopicSettings()
    try:
        _create(parse_url(url), wanted, access or AccessSettings())
    except TopicExists as exists:
        topic = open_topic(url, access, clock=clock)
        try:
            differences = wanted.differences(topic.settings())
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
    """Delete a topic and all its records.

    Raises:
        TopicMissing: No such topic.
    """
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
