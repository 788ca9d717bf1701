"""Where topics of a test live: one place per implementation, alike for the contract's tests."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field, replace
from pathlib import Path

from streamlearn.clock import SystemClock
from streamlearn.topics import (
    AccessSettings,
    Reader,
    Records,
    Topic,
    TopicSettings,
    create_topic,
    delete_topic,
    open_topic,
)

__all__ = ["ACCESS", "SETTINGS", "FixedClock", "Place", "read_all", "values_of"]

ACCESS = AccessSettings(
    unreachable_after_ms=120_000, request_timeout_ms=10_000, retry_wait_ms=20, answer_wait_ms=60_000
)  # a broker that is there, on a machine that may stand still
SETTINGS = TopicSettings(partitions=2, retention_ms=-1, record_bytes_max=20_000, segment_bytes=2_000_000)
FADING = replace(SETTINGS, segment_bytes=100, retention_ms=10_000)


class FixedClock(SystemClock):
    """Wall time stands where a test puts it; waiting is real."""

    def __init__(self, wall_ms: int) -> None:
        self.now_ms = wall_ms

    def wall_ms(self) -> int:
        return self.now_ms


@dataclass
class Place:
    kind: str
    root: str
    made: list[str] = field(default_factory=list)
    clock: FixedClock = field(default_factory=lambda: FixedClock(0))

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

    def create_fading(self) -> Topic:
        """A topic with 20 records in partition 0, whose first ones `fade` will delete."""
        self.clock = FixedClock(1_700_000_000_000)
        topic = self.create(FADING if self.kind != "kafka" else SETTINGS, self.clock)
        with topic.writer() as writer:
            for at in range(20):
                writer.append(0, [b"%d" % at], timestamps_ms=[self.clock.now_ms + at * 1_000])
        return topic

    def fade(self, topic: Topic) -> None:
        """Delete some of the topic's oldest records."""
        if self.kind == "kafka":
            _delete_records(topic.url, 7)
        else:
            self.clock.now_ms += 20_000
            topic.maintain()

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


def read_all(reader: Reader, partition: int = 0, offset: int | None = None, max_records: int = 1_000) -> list[Records]:
    """Everything up to the end, read by read."""
    offset, end = reader.earliest(partition) if offset is None else offset, reader.end(partition)
    found = []
    while offset < end:
        records = reader.read(partition, offset, max_records=max_records, wait_ms=2_000)
        assert records.next_offset > offset
        found.append(records)
        offset = records.next_offset
    return found


def values_of(found: list[Records]) -> list[bytes | None]:
    return [value for records in found for value in records.values]
