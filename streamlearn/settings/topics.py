"""Settings of topics: their addresses, and the connection to a broker."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

__all__ = ["KafkaSettings", "TopicsSettings"]


class TopicsSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The topics of the application."""

    root: str = ""
    """Root of all topics: `kafka://host:port[,host:port]` in production, `file:///folder` embedded. Empty is the folder
    `.streamlearn/topics` beside app.toml."""
    impressions: str = ""
    """URL of the impressions topic. Empty is `ROOT/APP.impressions`."""
    actions: str = ""
    """URL of the actions topic. Empty is `ROOT/APP.actions`."""
    samples: str = ""
    """URL of the samples topic. Empty is `ROOT/APP.samples`. If set, interactions are in
    this URL with `-interactions` after it."""
    progress: str = ""
    """URL of ingest's compacted progress topic. Empty is `ROOT/APP.progress`."""
    dead_letters: str = ""
    """URL of the dead-letter topic. Empty is `ROOT/APP.dead-letters`."""
    time: Literal["wall", "event"] = "wall"
    """The topics' clock. Use `wall` for live traffic and `event` for a replay, where heartbeats and end marks advance
    time."""
    reach_s: Annotated[float, Meta(gt=0, le=3600)] = 90.0
    """How long a broker or folder may be unreachable before a call fails with its name. Keep it above the time that a
    broker takes to restart."""
    delivery_timeout_s: Annotated[float, Meta(gt=0, le=86_400)] = 120.0
    """How long delivery of a record is retried before it is reported as failed. An outage shorter than this loses
    nothing. Lower it if a late answer is worse than a lost record."""
    fsync: Literal["never", "batch"] = "never"
    """For file topics: `batch` syncs records to disk before it acknowledges them, so that they survive a power failure.
    With `never` they survive only the death of a process."""
    schema_ids: dict[str, str] = field(default_factory=dict)
    """For records framed by a Confluent schema registry: the file of the Avro schema for each schema id (digits),
    relative to app.toml."""
    old_schemas: list[str] = field(default_factory=list)
    """Files of older event schemas, relative to app.toml, whose records are still in the topics. They stay readable if
    the new schema follows the evolution rules."""


class KafkaSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The connection to a Kafka broker. Its password is read from STREAMLEARN_KAFKA_PASSWORD, never from a file."""

    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """The security protocol of your broker's listener."""
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    """The SASL mechanism; used with the SASL protocols."""
    sasl_username: str = ""
    """The SASL user; used with the SASL protocols."""
    ssl_cafile: str = ""
    """File of CA certificates, for a broker whose certificate is not signed by a public CA."""
