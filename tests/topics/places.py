"""Where topics of a test live: one place per implementation, alike for the contract's tests."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field, replace
from pathlib import Path

from streamlearn.topics import AccessSettings, Topic, TopicSettings, create_topic, delete_topic, open_topic

__all__ = ["ACCESS", "SETTINGS", "FixedClock", "Place"]

ACCESS = AccessSettings(unreachable_after_ms=20_000, request_timeout_ms=10_000, retry_wait_ms=20)
SETTINGS = TopicSettings(partitions=2, retention_ms=-1, record_bytes_max=20_000, segment_bytes=2_000_000)


class FixedClock:
    """Wall time stands where a test puts it; waiting is real."""

    def __init__(self, wall_ms: int) -> None:
        self.now_ms = wall_ms

    def wall_ms(self) -> int:
        return self.now_ms

    def monotonic_s(self) -> float:
        import time

        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        import time

        time.sleep(seconds)


@dataclass
class Place:
    kind: str
    root: str
    made: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, kind: str, folder: Path, address: str = "") -> Place:
        roots = {"memory": "memory://", "file": f"file://{folder}/", "kafka": f"kafka://{address}/"}
        return cls(kind, roots[kind])

    def new_url(self) -> str:
        self.made.append(f"{self.root}t-{uuid.uuid4().hex}")
        return self.made[-1]

    def create(self, settings: TopicSettings = SETTINGS, clock: FixedClock | None = None) -> Topic:
        url = self.new_url()
        if clock is None:
            return create_topic(url, settings, ACCESS)
        return create_topic(url, settings, ACCESS, clock=clock)

    def open(self, topic: Topic) -> Topic:
        return open_topic(topic.url, ACCESS)

    def create_with_lost_start(self) -> Topic:
        """A topic of which partition 0 had 20 records and lost its first ones; the others are read."""
        if self.kind == "kafka":
            topic = self.create()
            with topic.writer() as writer:
                writer.append(0, [b"%d" % at for at in range(20)])
            _delete_records(topic.url, 7)
            return topic
        topic = self.create(replace(SETTINGS, segment_bytes=100, retention_bytes=300))
        with topic.writer() as writer:
            for at in range(20):
                writer.append(0, [b"%d" % at])
        topic.maintain()
        return topic

    def clean(self) -> None:
        from streamlearn.errors import TopicMissing

        for url in self.made:
            try:
                delete_topic(url, ACCESS)
            except TopicMissing:
                continue


def _delete_records(url: str, before_offset: int) -> None:
    from kafka import TopicPartition
    from kafka.admin import KafkaAdminClient

    address, name = url.removeprefix("kafka://").split("/")
    with KafkaAdminClient(bootstrap_servers=address) as admin:
        admin.delete_records({TopicPartition(name, 0): before_offset})
