"""The topics of a replay: it creates missing ones, and refuses existing ones that would not keep history."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from streamlearn.apps import AppFolder
from streamlearn.errors import ConfigError, TopicExists, TopicMissing
from streamlearn.topics import AccessSettings, Topic, TopicSettings, create_topic, open_topic

__all__ = ["open_replay_topics"]

_NAMES = ("impressions", "actions")


@contextmanager
def open_replay_topics(folder: AppFolder, *, append: bool = False) -> Iterator[tuple[Topic, Topic]]:
    """Open the impressions and the actions topic of an application, and create all its missing topics.

    It checks all existing topics before it creates any. `append` allows topics that already hold records.

    Raises:
        TopicExists: A topic expires records by age, so it would lose history at once; or it holds
            records, which `append` does not allow.
        ConfigError: The two topics have, or would have, different numbers of partitions.
        TopicUnreachable: A topic did not answer within `topics.reach_s`.
    """
    access = folder.access
    urls = {name: folder.topic_url(name) for name in _NAMES}
    with ExitStack() as stack:
        existing: dict[str, Topic] = {}
        for name, url in urls.items():
            if topic := _open_existing(url, access):
                existing[name] = stack.enter_context(topic)
        _check(folder, existing, urls)
        if not append:
            for topic in existing.values():
                _require_empty(topic)
        impressions, actions = (
            existing.get(name) or stack.enter_context(create_topic(url, _settings(folder, name), access))
            for name, url in urls.items()
        )
        for name in folder.topics:
            url = folder.topic_url(name)
            if name not in _NAMES:
                settings = folder.topic_settings(name, impressions.partitions)
                (_open_existing(url, access) or create_topic(url, settings, access)).close()
        yield impressions, actions


def _require_empty(topic: Topic) -> None:
    with topic.reader() as reader:
        records = sum(reader.end(partition) - reader.earliest(partition) for partition in range(topic.partitions))
    if records:
        message = f"{topic.url} already holds {records} records"
        hint = (
            "replayed records would follow their end mark, behind their watermark; delete the topic, choose "
            "another place (--set topics.root=...), or append on purpose (--append)"
        )
        raise TopicExists(message, help=hint)


def _open_existing(url: str, access: AccessSettings) -> Topic | None:
    try:
        return open_topic(url, access)
    except TopicMissing:
        return None


def _settings(folder: AppFolder, name: str) -> TopicSettings:
    settings = folder.settings.replay
    topic = folder.topic_settings(name, settings.partitions)
    return replace(topic, retention_ms=-1, retention_bytes=settings.retention_bytes)


def _check(folder: AppFolder, existing: dict[str, Topic], urls: dict[str, str]) -> None:
    partitions = dict.fromkeys(_NAMES, folder.settings.replay.partitions)
    for name, topic in existing.items():
        settings = topic.settings()
        if not settings.keeps_history():
            message = f"{topic.url} expires records older than {settings.retention_ms} ms"
            hint = (
                "replayed records carry their event time, so the topic would delete them at once; set its "
                "retention.ms to -1, delete it, or choose other topics in [topics]"
            )
            raise TopicExists(message, help=hint)
        partitions[name] = topic.partitions
    if len(set(partitions.values())) > 1:
        message = ", ".join(
            f"{urls[name]} {'has' if name in existing else 'would be made with'} {partitions[name]} partitions"
            for name in _NAMES
        )
        hint = "a request and its actions must be in the same partition: delete the wrong topic, or set "
        raise ConfigError(message, help=f"{hint}replay.partitions to the number of the correct one")
