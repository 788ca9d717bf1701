"""The topics a replay writes to: made as history needs them, refused when they would lose it."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from streamlearn.apps import AppFolder
from streamlearn.errors import ConfigError, TopicExists, TopicMissing
from streamlearn.replay import open_replay_topics
from streamlearn.settings import Settings
from streamlearn.settings.events import ReplaySettings
from streamlearn.settings.topics import TopicsSettings
from streamlearn.testing import small_folder
from streamlearn.topics import TopicSettings, create_topic, open_topic


@pytest.fixture
def folder(tmp_path: Path) -> AppFolder:
    name = uuid.uuid4().hex
    topics = TopicsSettings(impressions=f"memory://{name}.impressions", actions=f"memory://{name}.actions")
    replay = ReplaySettings(partitions=3, retention_bytes=1 << 20)
    return small_folder(tmp_path, settings=Settings(topics=topics, replay=replay))


def test_missing_topics_are_made_to_keep_history(folder: AppFolder) -> None:
    with open_replay_topics(folder) as topics:
        for topic in topics:
            settings = topic.settings()
            assert (topic.partitions, settings.retention_ms, settings.retention_bytes) == (3, -1, 1 << 20)
        ids = [topic.topic_id for topic in topics]
    with open_replay_topics(folder) as topics:
        assert [topic.topic_id for topic in topics] == ids


def test_all_topics_of_the_application_are_there_afterwards(folder: AppFolder) -> None:
    create_topic(folder.topic_url("samples"), TopicSettings(partitions=2)).close()
    with open_replay_topics(folder):
        pass
    counts = {}
    for name in folder.topics:
        with folder.open_topic(name) as topic:
            counts[name] = topic.partitions
    assert counts == {"impressions": 3, "actions": 3, "samples": 2, "dead_letters": 3, "progress": 1}


def test_existing_topics_keep_their_own_number_of_partitions(folder: AppFolder) -> None:
    for name in ("impressions", "actions"):
        create_topic(folder.topic_url(name), TopicSettings(partitions=5, retention_ms=-1)).close()
    with open_replay_topics(folder) as topics:
        assert [topic.partitions for topic in topics] == [5, 5]


@pytest.mark.parametrize("name", ["impressions", "actions"])
def test_a_topic_that_expires_records_is_refused_and_nothing_is_made(folder: AppFolder, name: str) -> None:
    create_topic(folder.topic_url(name), TopicSettings(partitions=3)).close()
    with (
        pytest.raises(TopicExists, match="expires records older than 604800000 ms"),
        open_replay_topics(folder),
    ):
        pass
    other = {"impressions": "actions", "actions": "impressions"}[name]
    with pytest.raises(TopicMissing):
        open_topic(folder.topic_url(other))


def test_topics_of_different_partition_counts_are_refused(folder: AppFolder) -> None:
    for name, partitions in (("impressions", 2), ("actions", 3)):
        create_topic(folder.topic_url(name), TopicSettings(partitions=partitions, retention_ms=-1)).close()
    with pytest.raises(ConfigError, match=r"has 2 partitions.*has 3 partitions"), open_replay_topics(folder):
        pass


def test_a_missing_topic_is_not_made_beside_one_it_would_not_match(folder: AppFolder) -> None:
    create_topic(folder.topic_url("impressions"), TopicSettings(partitions=2, retention_ms=-1)).close()
    with pytest.raises(ConfigError, match="would be made with 3 partitions"), open_replay_topics(folder):
        pass
    with pytest.raises(TopicMissing):
        open_topic(folder.topic_url("actions"))


def test_topics_that_hold_records_are_refused_unless_appending_is_meant(folder: AppFolder) -> None:
    with open_replay_topics(folder) as (impressions, _), impressions.writer() as writer:
        writer.append(1, [b"before"])
    with pytest.raises(TopicExists, match="already holds 1 records") as caught, open_replay_topics(folder):
        pass
    assert "--append" in caught.value.help
    with open_replay_topics(folder, append=True) as topics:
        assert topics[0].partitions == 3
