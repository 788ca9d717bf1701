"""Settings of topics: how a topic is created, how a writer writes, and how long an implementation retries."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Literal

from streamlearn.errors import ConfigError
from streamlearn.settings.topics import KafkaSettings

__all__ = ["IN_SYNC_SAFE", "REPLICAS_SAFE", "AccessSettings", "Durability", "TopicSettings", "WriterSettings"]

REPLICAS_SAFE = 3
IN_SYNC_SAFE = 2
"""With these numbers of replicas and in-sync replicas, one broker may be lost while another is down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """The settings of a topic, in every implementation.

    Attributes:
        partitions: Number of partitions; impressions and actions need the same number.
        retention_ms: Records whose timestamp is older are deleted; -1 keeps them forever. The record's own timestamp
            counts: records of 2022 that are replayed into a topic with a bound are soon deleted.
        retention_bytes: A partition beyond this size loses its oldest segments; -1 has no bound.
        compacted: Keep the last record of each key; a record whose value is None deletes its key. Every
            record needs a key.
        tombstones_keep_ms: How long a deletion stays readable in a compacted topic, so that readers see it.
        record_bytes_max: Most bytes of a record's key and value together.
        segment_bytes: A partition's log is cut into files of about this size; retention and compaction work
            on whole closed ones. Kafka 4.1 refuses less than 1 MiB.
    """

    partitions: int = 1
    retention_ms: int = 7 * 86_400_000
    retention_bytes: int = -1
    compacted: bool = False
    tombstones_keep_ms: int = 86_400_000
    record_bytes_max: int = 1_048_576
    segment_bytes: int = 64 * 1_048_576

    def __post_init__(self) -> None:
        bounds = {
            "partitions": (1, 10_000),
            "retention_ms": (-1, 2**62),
            "retention_bytes": (-1, 2**62),
            "tombstones_keep_ms": (0, 2**62),
            "record_bytes_max": (1, 2**29),
            "segment_bytes": (1, 2**31 - 1),
        }
        _check_bounds(self, bounds)

    def keeps_history(self) -> bool:
        """Return whether records stay however old their event time is."""
        return self.retention_ms == -1

    def differences(self, other: TopicSettings) -> str:
        """Return the fields in which `other` differs, as `name: this value -> other value`, or an empty string."""
        own, others = asdict(self), asdict(other)
        return ", ".join(f"{name}: {own[name]} -> {others[name]}" for name in own if own[name] != others[name])


@dataclass(frozen=True, slots=True, kw_only=True)
class Durability:
    """The replication that decides how many brokers may fail before records are lost."""

    replicas: int  # the fewest of any partition
    in_sync_min: int  # replicas that have a record, at least, before it is acknowledged
    unclean: bool  # whether a replica that lacks acknowledged records may become leader, which loses them

    @property
    def is_thin(self) -> bool:
        """Whether a single broker may acknowledge a record although there are enough replicas for two."""
        return self.replicas >= REPLICAS_SAFE and self.in_sync_min < IN_SYNC_SAFE


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterSettings:
    """How a writer writes.

    fsync, for file topics only: with "never", acknowledged records survive kill -9 of any process, but not the loss of
    power; with "batch", every append is on the disk before it is acknowledged.
    """

    fsync: Literal["never", "batch"] = "never"
    delivery_timeout_ms: int = 120_000  # how long an append is retried before it is reported as not delivered
    send_records_max: int = 1_000  # `send` appends the records of a partition once it has collected this many,
    send_bytes_max: int = 524_288  # or this many bytes of them
    buffer_bytes_max: int = 32 * 1_048_576  # most bytes collected over all partitions; at the bound `send` appends

    def __post_init__(self) -> None:
        if self.fsync not in ("never", "batch"):
            message = f"fsync is {self.fsync!r}"
            raise ConfigError(message, help='use "never" or "batch"')
        names = ("delivery_timeout_ms", "send_records_max", "send_bytes_max", "buffer_bytes_max")
        _check_bounds(self, dict.fromkeys(names, (1, 2**40)))


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSettings:
    """How long an implementation retries before it reports a topic as unreachable, and its bounds on memory."""

    unreachable_after_ms: int = 90_000  # a broker that has not answered for this long is reported as unreachable
    request_timeout_ms: int = 10_000  # longest time of one request to a broker, apart from its wait for records
    answer_wait_ms: int = 100  # how much longer than its `wait_ms` a read waits for a broker's answer
    check_every_ms: int = 30_000  # how often readers and writers check that their topic was not replaced
    retry_wait_ms: int = 100  # the pause between two attempts
    lock_wait_ms: int = 30_000  # file topics: how long to wait for another writer's lock of a partition
    fetch_bytes_max: int = 4 * 1_048_576  # most bytes requested from a broker, or read from a file, at once
    request_bytes_max: int = 4 * 1_048_576  # most bytes of record batches in one request; a larger batch goes alone
    response_bytes_max: int = 128 * 1_048_576  # a larger answer is refused before memory is allocated for it
    record_bytes_max: int = 16 * 1_048_576  # a compressed record that is larger may come cut
    decompressed_bytes_max: int = 512 * 1_048_576  # most bytes that a batch may expand to; the rest of it is skipped
    kafka: KafkaSettings = field(default_factory=KafkaSettings)

    def __post_init__(self) -> None:
        _check_bounds(self, {name: (1, 2**30) for name in asdict(self) if name != "kafka"})


def _check_bounds(settings: object, bounds: dict[str, tuple[int, int]]) -> None:
    for name, (least, most) in bounds.items():
        value = getattr(settings, name)
        if not least <= value <= most:
            message = f"{name} is {value}, outside [{least}, {most}]"
            raise ConfigError(message, help="correct it; `streamlearn.topics.settings` describes each setting")
