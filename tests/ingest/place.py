"""A place to read from: both event topics of the small application, filled by its Producer, and plans to read them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from streamlearn.apps import App, AppFolder
from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.events import Producer
from streamlearn.ingest import ReadPlan, begin_run
from streamlearn.ingest.reading.blob import Blob, decode_blob, encode_blob
from streamlearn.ingest.reading.mark import PairMark
from streamlearn.ingest.reading.pair import PairReader
from streamlearn.settings import Settings
from streamlearn.testing import small_folder, small_impression, wait_until
from streamlearn.topics import Topic, TopicSettings, create_topic, delete_topic

T_MS = 1_700_000_000_000
_numbers = itertools.count()

# One record: topic, offset.
Origin = tuple[str, int]


def longest_window_ms(folder: AppFolder) -> int:
    """The longest window of an application's labels."""
    return 1_000 * max(group.window_s for group in folder.app.groups)


@dataclass(frozen=True)
class Place:
    """Both event topics, and the application that reads them."""

    folder: AppFolder
    impressions: Topic
    actions: Topic

    @classmethod
    def make(
        cls,
        root: str,
        partitions: int = 1,
        retention_ms: int = -1,
        app: App | None = None,
        **sections: Mapping[str, Any],
    ) -> Place:
        """New topics under a root, such as `memory://x` or `file:///tmp/x`."""
        urls = {name: f"{root}{name}" for name in ("impressions", "actions", "progress", "dead_letters")}
        said: dict[str, dict[str, Any]] = {"ingest": {}, "topics": {}} | {
            name: dict(value) for name, value in sections.items()
        }
        said["topics"] = {"time": "event"} | urls | said["topics"]
        said["ingest"] = {"lots": 4, "poll_s": 0.01, "fetch_wait_s": 0.01, "idle_s": 0.05} | said["ingest"]
        folder = small_folder(Path("/nowhere"), app, settings=msgspec.convert(said, Settings))
        settings = TopicSettings(partitions=partitions, retention_ms=retention_ms, segment_bytes=1 << 20)
        create_topic(urls["dead_letters"], settings).close()
        return cls(folder, create_topic(urls["impressions"], settings), create_topic(urls["actions"], settings))

    def producer(self, clock: Clock = SYSTEM_CLOCK) -> Producer:
        """Writes events here; each flush ends its packs."""
        return Producer(self.folder, impressions=self.impressions, actions=self.actions, clock=clock)

    def fill(self, requests: int, *, first: int = 0, end: bool = False) -> None:
        """Requests a second of event time apart, each with one action two seconds later, in a record each."""
        with self.producer() as producer:
            for seed in range(first, first + requests):
                given = small_impression(seed) | {"event_time_ms": T_MS + seed * 1000}
                producer.impression(**given)
                item = given["items"][0]["video_id"]
                producer.action(given["request_id"], T_MS + seed * 1000 + 2000, item, "click")
                producer.flush()
            if end:
                producer.end(T_MS + (first + requests) * 1000)

    def plan(self, **settings: Any) -> ReadPlan:
        """A run's plan, without a bound by what is acknowledged unless asked for."""
        plan = begin_run(self.folder)
        progress_url = plan.progress_url if settings.pop("acknowledged", False) else ""
        return replace(plan, progress_url=progress_url, settings=msgspec.structs.replace(plan.settings, **settings))

    def close(self) -> None:
        """Take it down."""
        for topic in (self.impressions, self.actions):
            topic.close()
        for name in ("impressions", "actions", "progress", "dead_letters"):
            url = self.folder.topic_url(name)
            if url.startswith("memory:") and name != "progress":
                delete_topic(url)


def memory_root() -> str:
    """A root nobody has had."""
    return f"memory://test-ingest-{next(_numbers)}-"


@contextmanager
def reading(
    plan: ReadPlan, mark: PairMark | None = None, partition: int = 0, clock: Clock = SYSTEM_CLOCK
) -> Iterator[PairReader]:
    """A reader, closed afterwards."""
    reader = PairReader(plan, partition, mark, clock=clock)
    try:
        yield reader
    finally:
        reader.close()


def origins(blob: Blob) -> list[Origin]:
    """Where a blob's records came from."""
    sections = (("impressions", blob.impressions), ("actions", blob.actions))
    return [(name, offset) for name, section in sections for offset in section.offsets.tolist()]


def take(reader: PairReader) -> Blob:
    """The next blob, waited for."""
    taken = []

    def has_come() -> bool:
        one = reader.take()
        if one is not None:
            taken.append(one)
        return bool(taken)

    wait_until(has_come, "a blob comes")
    return decode_blob(encode_blob(taken[0].blob))


def take_all(reader: PairReader) -> list[Blob]:
    """Every blob up to the end marks."""
    found: list[Blob] = []

    def is_finished() -> bool:
        while (one := reader.take()) is not None:
            found.append(decode_blob(encode_blob(one.blob)))
        return reader.is_finished

    wait_until(is_finished, "both topics end")
    return found


def take_count(reader: PairReader, records: int) -> list[Blob]:
    """Blobs until so many records have come."""
    found: list[Blob] = []
    while sum(map(len, found)) < records:
        found.append(take(reader))
    return found
