"""A place for events: topics in memory for the small application, and what they hold."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from streamlearn.apps import AppFolder
from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.events import Producer
from streamlearn.settings import EventSettings, Settings
from streamlearn.testing import small_folder
from streamlearn.topics import Topic, TopicSettings, create_topic, delete_topic

_numbers = itertools.count()


class Written(NamedTuple):
    """One record of a topic."""

    partition: int
    key: bytes | None
    time_ms: int
    value: bytes


@dataclass(frozen=True)
class Place:
    """Both topics of events."""

    impressions: Topic
    actions: Topic

    def producer(self, clock: Clock = SYSTEM_CLOCK, time: str = "event", **events: Any) -> Producer:
        """A producer that lingers for ever unless told otherwise."""
        return Producer(self.folder(time, **events), impressions=self.impressions, actions=self.actions, clock=clock)

    def folder(self, time: str = "event", **events: Any) -> AppFolder:
        """The small application with these settings of events, its topics here."""
        settings = msgspec.convert(
            {
                "events": {"linger_ms": 60_000} | events,
                "topics": {"impressions": self.impressions.url, "actions": self.actions.url, "time": time},
            },
            Settings,
        )
        return small_folder(Path("/nowhere"), settings=settings)

    def settings(self) -> EventSettings:
        """The default settings."""
        return EventSettings()


def written(topic: Topic) -> list[Written]:
    """Every record, partition after partition."""
    found = []
    with topic.reader() as reader:
        for partition in range(topic.partitions):
            offset = 0
            while offset < reader.end(partition):
                records = reader.read(partition, offset)
                for key, time_ms, value in zip(
                    records.keys, records.timestamps_ms.tolist(), records.values, strict=True
                ):
                    assert value is not None
                    found.append(Written(partition, key, time_ms, value))
                offset = records.next_offset
    return found


def values(topic: Topic) -> list[bytes]:
    """The value of every record."""
    return [record.value for record in written(topic)]


def new_topic(partitions: int = 4, **settings: Any) -> Topic:
    """A topic no test has had."""
    url = f"memory://test-events-{next(_numbers)}"
    return create_topic(url, TopicSettings(partitions=partitions, **settings))


def places(partitions: int = 4) -> Iterator[Place]:
    """One place, taken down afterwards."""
    place = Place(new_topic(partitions), new_topic(partitions))
    yield place
    for topic in (place.impressions, place.actions):
        topic.close()
        delete_topic(topic.url)
