"""Settings of topics: their addresses, and the connection to a broker."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

__all__ = ["KafkaSettings", "TopicsSettings"]


class TopicsSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The topics of the application."""

    root: Annotated[
        str,
        Meta(
            description="Root of all topics: `kafka://host:port[,host:port]` in production, `file:///folder` "
            "embedded. Empty is the folder `.streamlearn/topics` beside app.toml."
        ),
    ] = ""
    impressions: Annotated[str, Meta(description="URL of the impressions topic. Empty is `ROOT/APP.impressions`.")] = ""
    actions: Annotated[str, Meta(description="URL of the actions topic. Empty is `ROOT/APP.actions`.")] = ""
    samples: Annotated[str, Meta(description="URL of the samples topic. Empty is `ROOT/APP.samples`.")] = ""
    progress: Annotated[
        str, Meta(description="URL of ingest's compacted progress topic. Empty is `ROOT/APP.progress`.")
    ] = ""
    dead_letters: Annotated[
        str, Meta(description="URL of the dead-letter topic. Empty is `ROOT/APP.dead-letters`.")
    ] = ""
    time: Annotated[
        Literal["wall", "event"],
        Meta(
            description="The topics' clock. Use `wall` for live traffic and `event` for a replay, where heartbeats "
            "and end marks advance time."
        ),
    ] = "wall"
    reach_s: Annotated[
        float,
        Meta(
            gt=0,
            le=3600,
            description="How long a broker or folder may be unreachable before a call fails with its name. Keep it "
            "above the time that a broker takes to restart.",
        ),
    ] = 90.0
    delivery_timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            le=86_400,
            description="How long delivery of a record is retried before it is reported as failed. An outage shorter "
            "than this loses nothing. Lower it if a late answer is worse than a lost record.",
        ),
    ] = 120.0
    fsync: Annotated[
        Literal["never", "batch"],
        Meta(
            description="For file topics: `batch` syncs records to disk before it acknowledges them, so that they "
            "survive a power failure. With `never` they survive only the death of a process."
        ),
    ] = "never"
    schema_ids: Annotated[
        dict[str, str],
        Meta(
            description="For records framed by a Confluent schema registry: the file of the Avro schema for each "
            "schema id (digits), relative to app.toml."
        ),
    ] = field(default_factory=dict)
    old_schemas: Annotated[
        list[str],
        Meta(
            description="Files of older event schemas, relative to app.toml, whose records are still in the topics. "
            "They stay readable if the new schema follows the evolution rules."
        ),
    ] = field(default_factory=list)


class KafkaSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The connection to a Kafka broker. Its password is read from STREAMLEARN_KAFKA_PASSWORD, never from a file."""

    security_protocol: Annotated[
        Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"],
        Meta(description="The security protocol of your broker's listener."),
    ] = "PLAINTEXT"
    sasl_mechanism: Annotated[
        Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"],
        Meta(description="The SASL mechanism; used with the SASL protocols."),
    ] = "SCRAM-SHA-512"
    sasl_username: Annotated[str, Meta(description="The SASL user; used with the SASL protocols.")] = ""
    ssl_cafile: Annotated[
        str, Meta(description="File of CA certificates, for a broker whose certificate is not signed by a public CA.")
    ] = ""
