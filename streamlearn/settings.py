"""The settings there are: one section a part, each field with its unit in its name and when to change it.

How they are read from TOML, `--set` and defaults is `config`'s business.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

__all__ = [
    "EventSettings",
    "KafkaSettings",
    "PsSettings",
    "ReplaySettings",
    "SampleSettings",
    "Settings",
    "TableSettings",
    "TelemetrySettings",
    "TopicsSettings",
    "VersionSettings",
]


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


class EventSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """What the Producer puts into one record, and what a reader accepts."""

    record_events_max: Annotated[
        int,
        Meta(
            ge=1,
            le=100_000,
            description="Events packed into one record. 1 writes each alone, for consumers without packs.",
        ),
    ] = 500
    record_bytes_max: Annotated[
        int,
        Meta(
            ge=1_024,
            le=64 << 20,
            description="Bytes of one record; keep it below the broker's message.max.bytes. Larger records "
            "go to the dead-letter topic.",
        ),
    ] = 900_000
    linger_ms: Annotated[
        int,
        Meta(ge=0, le=60_000, description="How long the Producer waits to fill a record. 0 sends each event."),
    ] = 50
    ahead_s_max: Annotated[
        float,
        Meta(
            gt=0,
            le=3000,
            description="How far ahead of this machine's clock an event may be with `topics.time = wall`. A stock "
            "broker refuses records stamped more than an hour ahead, with every event in them.",
        ),
    ] = 600.0
    items_max: Annotated[int, Meta(ge=1, le=65_536, description="Items of one impression, and values of one slot.")] = (
        4_096
    )
    unsent_bytes_max: Annotated[
        int,
        Meta(
            ge=1 << 20,
            le=4 << 30,
            description="Bytes the Producer holds that no topic has acknowledged; at the bound it blocks.",
        ),
    ] = 64 << 20


class SampleSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """What a reader of samples accepts."""

    message_bytes_max: Annotated[
        int, Meta(ge=1_024, le=256 << 20, description="Bytes of one SampleBatch; larger ones are refused.")
    ] = 16 << 20
    message_rows_max: Annotated[
        int, Meta(ge=1, le=10_000_000, description="Rows of one SampleBatch; larger ones are refused.")
    ] = 100_000


class ReplaySettings(Struct, frozen=True, forbid_unknown_fields=True):
    """How `streamlearn replay` feeds history into topics."""

    partitions: Annotated[int, Meta(ge=1, le=10_000, description="Partitions of topics it creates.")] = 4
    retention_bytes: Annotated[
        int,
        Meta(
            ge=1 << 20,
            description="Bytes a partition keeps in topics it creates; they never expire by age, "
            "for a broker would delete history at once.",
        ),
    ] = 8 << 30
    heartbeat_s: Annotated[
        float,
        Meta(gt=0, le=3600, description="Event time between two heartbeats on every partition."),
    ] = 10.0


class TableSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """What the tables of the features are made of. Trainer and shards must agree on all of it."""

    rows_max: Annotated[
        int,
        Meta(
            ge=1,
            le=1 << 31,
            description="The most rows of each table on one shard, images of versions included. It takes address "
            "space alone until rows are written; raise it well before it is reached.",
        ),
    ] = 100_000_000
    optimizer: Annotated[
        Literal["sgd", "adagrad", "rowwise_adagrad", "adam", "ftrl"],
        Meta(description="How rows learn. `rowwise_adagrad` takes half the memory and traffic of `adagrad`."),
    ] = "adagrad"
    rate: Annotated[float, Meta(gt=0, le=1_000, description="The optimizer's learning rate.")] = 0.05
    seed: Annotated[
        int, Meta(ge=0, le=(1 << 63) - 1, description="Of rows that were never stored. Never change it for a model.")
    ] = 0
    tick_ms: Annotated[
        int,
        Meta(
            ge=1,
            le=86_400_000,
            description="The grain of a row's last use; ages are told up to 2^23 of them. Raise it where rows are "
            "kept for longer than that.",
        ),
    ] = 60_000
    admission_window_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 50,
            description="How long keys without a row are counted before they are admitted. 0 admits every key at once.",
        ),
    ] = 0
    admission_width_counters: Annotated[
        int,
        Meta(ge=64, le=1 << 24, description="Counters of a part for that; twice the keys a part meets in a window."),
    ] = 4_096


class VersionSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Where versions are written to and read from."""

    store: Annotated[
        str,
        Meta(
            description="URL of the store: a folder, `file:///FOLDER`, `s3://BUCKET/FOLDER` or any other fsspec knows. "
            "Empty is the folder `.streamlearn/versions` beside app.toml; STREAMLEARN_STORE is laid over it."
        ),
    ] = ""
    file_bytes_max: Annotated[
        int,
        Meta(
            ge=65_536,
            le=1 << 30,
            description="No file of a version becomes larger. Lower it where memory is small, raise it for fewer "
            "requests to an object store.",
        ),
    ] = 64 << 20
    fetch_threads: Annotated[
        int, Meta(ge=1, le=64, description="Files that are fetched and verified at once when versions are loaded.")
    ] = 4


class PsSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The parameter server: its shards, and those who ask them."""

    addresses: Annotated[
        list[str],
        Meta(
            description="Of the shards, in order: `HOST:PORT`, or `unix:/PATH` on one host. Empty keeps the tables in "
            "the trainer's process."
        ),
    ] = field(default_factory=list)
    listen: Annotated[
        list[str],
        Meta(description="Where a shard listens; `--listen` is laid over it. Port 0 takes any that is free."),
    ] = field(default_factory=lambda: ["127.0.0.1:0"])
    threads: Annotated[
        int,
        Meta(ge=1, le=128, description="Threads of a shard that answer, and that share long work. One a core."),
    ] = 1
    encoding: Annotated[
        Literal["float32", "float16"],
        Meta(description="How rows and gradients travel. `float16` halves the traffic and rounds both."),
    ] = "float32"
    tls_ca: Annotated[
        str, Meta(description="Certificates, in PEM, of the authority that signed the shards'. Empty is no TLS.")
    ] = ""
    tls_server_name: Annotated[str, Meta(description="The name that shards' certificates are of.")] = "localhost"
    connect_wait_ms_max: Annotated[
        int, Meta(ge=1, le=3_600_000, description="How long one attempt to reach a shard may take.")
    ] = 5_000
    reply_wait_ms_max: Annotated[
        int,
        Meta(
            ge=1,
            le=3_600_000,
            description="How long a shard that owes an answer may be silent before the connection counts as lost.",
        ),
    ] = 10_000
    retry_wait_ms_max: Annotated[
        int,
        Meta(
            ge=1,
            le=86_400_000,
            description="How long a pull or push is tried before it fails. Keep it above the time a shard restarts in.",
        ),
    ] = 60_000
    backoff_first_ms: Annotated[
        int, Meta(ge=1, le=3_600_000, description="The wait before a lost shard is tried again; it doubles.")
    ] = 10
    backoff_ms_max: Annotated[int, Meta(ge=1, le=3_600_000, description="The longest such wait.")] = 2_000
    in_flight_blocks_max: Annotated[
        int, Meta(ge=1, le=64, description="Blocks of one call that one shard works on at once.")
    ] = 4
    calls_max: Annotated[int, Meta(ge=1, le=65_536, description="Calls of one client at once; one more waits.")] = 64
    pull_block_keys: Annotated[
        int, Meta(ge=1, le=1 << 20, description="Keys of one request to pull; larger calls are several.")
    ] = 16_384
    push_block_keys: Annotated[
        int, Meta(ge=1, le=1 << 20, description="Keys of one request to push; larger calls are several.")
    ] = 8_192
    frame_bytes_max: Annotated[
        int, Meta(ge=65_536, le=1 << 30, description="A larger request is refused. Raise it for very wide rows.")
    ] = 64 << 20
    connections_max: Annotated[
        int, Meta(ge=1, le=65_536, description="Connections to a shard at once; one more is closed.")
    ] = 1_024
    hello_wait_ms_max: Annotated[
        int, Meta(ge=1, le=3_600_000, description="How long a caller may take to say who it is.")
    ] = 5_000
    idle_ms_max: Annotated[
        int, Meta(ge=1, le=86_400_000, description="How long a caller may be silent before a shard closes it.")
    ] = 60_000
    write_wait_ms_max: Annotated[
        int, Meta(ge=1, le=3_600_000, description="How long a caller may take no byte of its answer.")
    ] = 10_000
    in_flight_bytes_max: Annotated[
        int, Meta(ge=1 << 20, le=1 << 40, description="Bytes of requests a shard takes in at once; others wait.")
    ] = 256 << 20
    clients_max: Annotated[
        int, Meta(ge=1, le=65_536, description="Clients that push in one epoch; a push of one more is refused.")
    ] = 256
    order_wait_s_max: Annotated[
        float,
        Meta(gt=0, le=86_400, description="How long shards may take to seal, commit, expire or give up a version."),
    ] = 30.0
    export_wait_s_max: Annotated[
        float, Meta(gt=0, le=864_000, description="How long shards may take to write the files of a version.")
    ] = 600.0
    restore_wait_s_max: Annotated[
        float, Meta(gt=0, le=864_000, description="How long shards may take to load a version.")
    ] = 3_600.0
    drain_ms_max: Annotated[
        int, Meta(ge=0, le=3_600_000, description="How long a shard that is stopped may finish what it has begun.")
    ] = 10_000


class TelemetrySettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Logs and metrics."""

    log_format: Annotated[
        Literal["human", "json"], Meta(description="`json` writes one object a line, for collectors.")
    ] = "human"
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="The least level that is written.")
    ] = "info"
    metrics_port: Annotated[
        int,
        Meta(ge=0, le=65_535, description="Prometheus metrics on this loopback port. 0 serves none."),
    ] = 0


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    """Everything app.toml may say."""

    topics: TopicsSettings = TopicsSettings()
    kafka: KafkaSettings = KafkaSettings()
    events: EventSettings = EventSettings()
    samples: SampleSettings = SampleSettings()
    replay: ReplaySettings = ReplaySettings()
    tables: TableSettings = TableSettings()
    versions: VersionSettings = VersionSettings()
    ps: PsSettings = PsSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
