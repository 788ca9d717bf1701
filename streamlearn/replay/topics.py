"""The topics of a replay, all that are missing made; refused where the two it writes to would not keep history."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from streamlearn.apps import TOPICS, AppFolder
from streamlearn.errors import ConfigError, TopicExists, TopicMissing
from streamlearn.topics import AccessSettings, Topic, TopicSettings, create_topic, open_topic

__all__ = ["open_replay_topics"]

_NAMES = ("impressions", "actions")


@contextmanager
def open_replay_topics(folder: AppFolder, *, append: bool = False) -> Iterator[tuple[Topic, Topic]]:
    """The impressions and the actions topic of an application, open until the context ends; the others exist then.

    Nothing is made before everything that exists has been found fit.

    Args:
        folder: The application.
        append: Whether topics that hold records already will do.

    Raises:
        TopicExists: A topic expires records by age, so that it would lose history at once; or it holds
            records, which `append` does not allow.
        ConfigError: The two topics have, or would have, different numbers of partitions.
        TopicUnreachable: Nobody answered within `topics.reach_s`.
    """
    access = folder.access
    urls = {name: folder.topic_url(name) for name in _NAMES}
    with ExitStack() as stack:
        found = {name: _existing(url, access) for name, url in urls.items()}
        for topic in found.values():
            if topic is not None:
                stack.enter_context(topic)
        _check(folder, found, urls)
        for topic in found.values():
            if topic is not None and not append:
                _require_empty(topic)
        for name, url in urls.items():
            if found[name] is None:
                found[name] = stack.enter_context(create_topic(url, _wanted(folder, name), access))
        impressions, actions = (found[name] for name in _NAMES)
        assert impressions is not None
        assert actions is not None
        for name in TOPICS:
            url = folder.topic_url(name)
            if name not in _NAMES:
                wanted = folder.topic_settings(name, impressions.partitions)
                (_existing(url, access) or create_topic(url, wanted, access)).close()
        yield impressions, actions


def _require_empty(topic: Topic) -> None:
    with topic.reader() as reader:
        records = sum(reader.end(one) - reader.earliest(one) for one in range(topic.partitions))
    if records:
        message = f"{topic.url} already holds {records} records"
        hint = (
            "replayed records would follow their end mark, behind their watermark; delete the topic, choose "
            "another place (--set topics.root=...), or append on purpose (--append)"
        )
        raise TopicExists(message, help=hint)


def _existing(url: str, access: AccessSettings) -> Topic | None:
    try:
        return open_topic(url, access)
    except TopicMissing:
        return None


def _wanted(folder: AppFolder, name: str) -> TopicSettings:
    replay = folder.settings.replay
    wanted = folder.topic_settings(name, replay.partitions)
    return replace(wanted, retention_ms=-1, retention_bytes=replay.retention_bytes)


def _check(folder: AppFolder, found: dict[str, Topic | None], urls: dict[str, str]) -> None:
    partitions = dict.fromkeys(_NAMES, folder.settings.replay.partitions)
    for name, topic in found.items():
        if topic is None:
            continue
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
        told = ", ".join(
            f"{urls[name]} {'has' if found[name] else 'would be made with'} {partitions[name]} partitions"
            for name in _NAMES
        )
        hint = "a request and its actions must be in the same partition: delete the wrong topic, or set "
        raise ConfigError(told, help=f"{hint}replay.partitions to the number of the correct one")
