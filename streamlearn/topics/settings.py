"""Settings of topics: what a topic is created with, how a writer writes, how long an implementation tries."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

from streamlearn.errors import ConfigError

__all__ = [
    "IN_SYNC_SAFE",
    "REPLICAS_SAFE",
    "AccessSettings",
    "Durability",
    "KafkaSecurity",
    "TopicSettings",
    "WriterSettings",
]

REPLICAS_SAFE = 3
IN_SYNC_SAFE = 2
"""With these numbers of replicas and in-sync replicas, one broker may be lost while another is down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """What a topic is, wherever it lives.

    Attributes:
        partitions: Number of partitions; impressions and actions need the same number.
        retention_ms: Records whose timestamp is older are deleted; -1 keeps them for ever. Judged by the
            record's own timestamp: records of 2022 replayed into a topic with a bound are soon gone.
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
        """Whether a record stamped with any old event time stays until its size or its key puts it out."""
        return self.retention_ms == -1

    def differences(self, other: TopicSettings) -> str:
        """The fields in which `other` differs, as `name: this value -> other value`, or an empty string."""
        mine, theirs = asdict(self), asdict(other)
        return ", ".join(f"{name}: {mine[name]} -> {theirs[name]}" for name in mine if mine[name] != theirs[name])


@dataclass(frozen=True, slots=True, kw_only=True)
class Durability:
    """How many brokers may be lost before records are.

    Attributes:
        replicas: The fewest of a partition.
        in_sync_min: How many of them have a record before it is acknowledged, at the least.
        unclean: Whether a replica that lacks acknowledged records may become leader; they are lost then.
    """

    replicas: int
    in_sync_min: int
    unclean: bool

    @property
    def is_thin(self) -> bool:
        """Whether one broker alone may have acknowledged a record, though there are replicas enough for two."""
        return self.replicas >= REPLICAS_SAFE and self.in_sync_min < IN_SYNC_SAFE


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterSettings:
    """How a writer writes.

    Attributes:
        fsync: File topics only. "never": what was acknowledged survives kill -9 of any process, but not the
            loss of power. "batch": every append is on the disk before it is acknowledged.
        delivery_timeout_ms: How long an append is tried before it is reported as not delivered.
        send_records_max: `send` collects up to this many records of a partition before it appends them.
        send_bytes_max: And up to this many bytes of them.
        buffer_bytes_max: Most bytes collected over all partitions; at the bound `send` appends them first.
    """

    fsync: Literal["never", "batch"] = "never"
    delivery_timeout_ms: int = 120_000
    send_records_max: int = 1_000
    send_bytes_max: int = 524_288
    buffer_bytes_max: int = 32 * 1_048_576

    def __post_init__(self) -> None:
        if self.fsync not in ("never", "batch"):
            message = f"fsync is {self.fsync!r}"
            raise ConfigError(message, help='use "never" or "batch"')
        names = ("delivery_timeout_ms", "send_records_max", "send_bytes_max", "buffer_bytes_max")
        _check_bounds(self, dict.fromkeys(names, (1, 2**40)))


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSecurity:
    """How Kafka's brokers are spoken to; the password is read from the environment when connecting.

    Attributes:
        protocol: As the broker's listener says.
        sasl_mechanism: Used with the SASL protocols.
        sasl_username: Used with the SASL protocols.
        ssl_cafile: CA certificates; the system's when empty.
    """

    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: str = "SCRAM-SHA-512"
    sasl_username: str = ""
    ssl_cafile: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSettings:
    """How long an implementation tries before it says that a topic cannot be reached.

    Attributes:
        unreachable_after_ms: A broker that has not answered for this long is reported as unreachable.
        request_timeout_ms: How long one request to a broker may take, apart from its wait for records.
        answer_wait_ms: How much longer than its `wait_ms` a read waits for a broker's answer. What comes later
            is given by the next read.
        check_every_ms: How often readers and writers look whether their topic is still what it was.
        retry_wait_ms: The pause between two attempts.
        lock_wait_ms: File topics: how long to wait for another writer's lock of a partition.
        fetch_bytes_max: Most bytes asked of a broker, or read from a file, at once.
        request_bytes_max: Most bytes of record batches in one request; a larger batch goes alone.
        response_bytes_max: A broker's answer larger than this is refused before memory is taken for it.
        decompressed_bytes_max: Most bytes that one fetch of a partition may become by decompression.
        kafka: How Kafka's brokers are spoken to.
    """

    unreachable_after_ms: int = 90_000
    request_timeout_ms: int = 10_000
    answer_wait_ms: int = 100
    check_every_ms: int = 30_000
    retry_wait_ms: int = 100
    lock_wait_ms: int = 30_000
    fetch_bytes_max: int = 4 * 1_048_576
    request_bytes_max: int = 4 * 1_048_576
    response_bytes_max: int = 128 * 1_048_576
    decompressed_bytes_max: int = 512 * 1_048_576
    kafka: KafkaSecurity = KafkaSecurity()

    def __post_init__(self) -> None:
        names = [name for name in asdict(self) if name != "kafka"]
        _check_bounds(self, dict.fromkeys(names, (1, 2**30)))


def _check_bounds(
    settings: TopicSettings | WriterSettings | AccessSettings, bounds: dict[str, tuple[int, int]]
) -> None:
    for name, (least, most) in bounds.items():
        value = getattr(settings, name)
        if not least <= value <= most:
            message = f"{name} is {value}, outside [{least}, {most}]"
            raise ConfigError(message, help="correct it; `streamlearn.topics.settings` describes each setting")
