"""Settings of topics: where they are, and how a broker is spoken to."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

__all__ = ["KafkaSettings", "TopicsSettings"]


class TopicsSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Where the application's topics are."""

    root: Annotated[
        str,
        Meta(
            description="Where topics live: `kafka://host:port[,host:port]` in production, `file:///folder` "
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
            description="The topics' clock: `wall` for live traffic; `event` for a replay, whose heartbeats "
            "and end marks move time."
        ),
    ] = "wall"
    reach_s: Annotated[
        float,
        Meta(
            gt=0,
            le=3600,
            description="How long a broker or folder may stay silent before a call gives up, naming it. Keep it "
            "above the time in which a broker restarts.",
        ),
    ] = 90.0
    request_timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            le=3600,
            description="How long one request to a broker may take before its connection is given up and the "
            "request sent again. Raise it for brokers far away.",
        ),
    ] = 10.0
    delivery_timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            le=86_400,
            description="How long records are tried before they are reported as not delivered. Lower it where "
            "a late answer is worse than a lost record; a broker away for less loses nothing.",
        ),
    ] = 120.0
    answer_wait_s: Annotated[
        float,
        Meta(
            gt=0,
            le=3600,
            description="How much longer than it may wait for records a read waits for a broker's answer; a "
            "later answer is taken by the next read. Raise it when `peek` of a slow broker shows nothing.",
        ),
    ] = 0.1
    check_s: Annotated[
        float,
        Meta(
            gt=0,
            le=86_400,
            description="How often readers and writers look whether a Kafka topic got more partitions.",
        ),
    ] = 30.0
    fetch_bytes_max: Annotated[
        int,
        Meta(
            ge=1_024,
            le=1 << 30,
            description="Bytes asked of a broker, or read of a file, at once. Raise it for fast catching up, lower "
            "it to save memory.",
        ),
    ] = 4 << 20
    request_bytes_max: Annotated[
        int,
        Meta(
            ge=1_024,
            le=1 << 30,
            description="Bytes of records in one request to a broker; keep it below the broker's "
            "socket.request.max.bytes.",
        ),
    ] = 4 << 20
    response_bytes_max: Annotated[
        int,
        Meta(
            ge=1_024,
            le=1 << 30,
            description="A broker's answer larger than this is refused. Raise it when records are larger.",
        ),
    ] = 128 << 20
    decompressed_bytes_max: Annotated[
        int,
        Meta(
            ge=1_024,
            le=1 << 30,
            description="Bytes that one fetch of a partition may become by decompression. Raise it when other "
            "producers compress very large batches, lower it to bound memory.",
        ),
    ] = 512 << 20
    lock_wait_s: Annotated[
        float,
        Meta(
            gt=0,
            le=3600,
            description="File topics: how long to wait for another writer's lock. Raise it when many processes "
            "write, or compaction of a large topic takes long.",
        ),
    ] = 30.0
    fsync: Annotated[
        Literal["never", "batch"],
        Meta(
            description="File topics: `batch` has records on the disk before they are acknowledged, for machines "
            "that may lose power; `never` survives the death of any process."
        ),
    ] = "never"
    schema_ids: Annotated[
        dict[str, str],
        Meta(
            description="For records framed by a Confluent schema registry: its schema id (digits) "
            "to the file of its Avro schema, relative to app.toml."
        ),
    ] = field(default_factory=dict)
    old_schemas: Annotated[
        list[str],
        Meta(
            description="Files of older event schemas still in the topics, relative to app.toml: what they "
            "wrote stays readable while the evolution rules hold."
        ),
    ] = field(default_factory=list)


class KafkaSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """How a broker is spoken to. The password is read from STREAMLEARN_KAFKA_PASSWORD, never from a file."""

    security_protocol: Annotated[
        Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"],
        Meta(description="As your broker's listener says."),
    ] = "PLAINTEXT"
    sasl_mechanism: Annotated[
        Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"],
        Meta(description="Used with the SASL protocols."),
    ] = "SCRAM-SHA-512"
    sasl_username: Annotated[str, Meta(description="Used with the SASL protocols.")] = ""
    ssl_cafile: Annotated[
        str, Meta(description="CA certificates, for a broker whose certificate no public CA signed.")
    ] = ""
