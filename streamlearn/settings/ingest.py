"""Settings of ingest: the runner, how events are read, and how far reading may run ahead."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from streamlearn.settings.constant import Fixed

__all__ = ["LOTS_MAX", "IngestSettings"]

LOTS_MAX = 4_096


class IngestSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """How events are read and joined, and how far reading may run ahead of acknowledged samples."""

    runner: Literal["prism", "flink", "direct"] = "prism"
    """The Beam runner: `prism` on this machine, `flink` on a cluster. Use `direct` only for bounded backfills: its
    event-time timers are wrong on topics that continue."""
    lots: Annotated[int, Meta(ge=1, le=LOTS_MAX)] = 16
    """Number of hash classes (lots) of requests; each is joined on its own. Use a multiple of the workers' cores. For a
    history that is read at once, use at most as many as the samples topic has partitions. Choose it once, because
    progress is stored by lot."""
    out_of_orderness_s: Annotated[float, Meta(ge=0, le=86_400)] = 30.0
    """How much older than the newest event of its partition an event may be, in event time. Raise it if impressions are
    counted as late; lower it for fresher samples. For late actions, lengthen the `window_s` of their label group
    instead."""
    ahead_s_max: Annotated[float, Meta(gt=0, le=10 * 365 * 86_400)] = 86_400.0
    """How far ahead of the topics' clock an event may be before it becomes a dead letter. The clock is wall time with
    `topics.time = wall`, otherwise the latest earlier event of the partition. Raise it for histories with longer gaps
    and no heartbeats."""
    dead_share_max: Annotated[float, Meta(ge=0, le=1)] = 0.05
    """The largest acceptable share of dead letters among events. Above it, `ingest` and `backfill` end with status 3,
    and a running ingest logs it. Raise it if many dead letters are expected, such as late actions."""
    idle_s: Annotated[float, Meta(gt=0, le=3_600)] = 5.0
    """Wall time after which a partition without new records no longer holds back the watermark. Keep it above your
    producers' retry time. Used only with `topics.time = wall`."""
    lead_s: Annotated[float, Meta(gt=0, le=30 * 86_400)] = 60.0
    """How far, in event time, one topic of a partition is read ahead of the other. Raise it if producers write topics
    in larger blocks."""
    lead_bytes: Fixed[int] = 64 << 20
    """How many bytes one topic of a partition is read ahead of the other."""
    read_ahead_bytes: Annotated[int, Meta(ge=1 << 20, le=1 << 40)] = 512 << 20
    """Most bytes that were read but whose samples are not yet acknowledged, over all partitions; at the limit reading
    waits. It must hold the traffic of `out_of_orderness_s` plus `flush_s`."""
    stretch_s: Annotated[float, Meta(ge=1, le=10 * 365 * 86_400)] = 86_400.0
    """Event time that a backfill joins in one pass (a stretch). A worker holds a lot's events of a stretch about four
    times, and those of one longest window around it without features. If that does not fit, lower it or use more lots.
    Keep it well above the longest window."""
    read_back_bytes: Fixed[int] = 64 << 20
    """Most bytes of impressions that a worker keeps after reading them again, for rows that are due after the shortest
    window."""
    blob_bytes: Annotated[int, Meta(ge=4_096, le=64 << 20)] = 1 << 20
    """Bytes of records in one element of the pipeline. Larger elements cost less per record but wait longer. A larger
    record goes alone."""
    prefetch_bytes: Fixed[int] = 4 << 20
    """Bytes of each topic of a partition that are fetched in advance."""
    fetch_wait_s: Fixed[float] = 0.5
    """How long a broker may wait for records before it returns an empty answer."""
    poll_s: Annotated[float, Meta(gt=0, le=60)] = 0.05
    """How soon a partition without new records is polled again. While it stays empty, the interval grows to four times
    this (at most 0.2 s), then to a twentieth of the silence (at most 4 s). Lower it for fresher samples; raise it for
    many quiet partitions."""
    flush_s: Annotated[float, Meta(gt=0, le=3_600)] = 2.0
    """How often progress is written, also for idle lots. With a lower value, less is read again after a restart."""
    tick_s: Annotated[float, Meta(gt=0, le=3_600)] = 0.5
    """Samples are emitted at multiples of this event time. Lower it for fresher samples; raise it for fewer, larger
    messages."""
    bundle_blobs_max: Fixed[int] = 40
    """Elements after which a runner may commit what a partition has read."""
    bundle_s_max: Fixed[float] = 1.0
    """Seconds after which a runner may commit what a partition has read."""
    job_endpoint: str = ""
    """With `runner = flink`: HOST:PORT of Beam's job server for your Flink cluster."""
    artifact_endpoint: str = ""
    """With `runner = flink`: HOST:PORT of Beam's artifact service. Empty uses the one that the job server names."""
    environment: Literal["LOOPBACK", "PROCESS", "DOCKER", "EXTERNAL"] = "LOOPBACK"
    """Where workers run: `LOOPBACK` is in the process that starts the pipeline; the others are Beam's own and run on
    the cluster's machines."""
    environment_config: str = ""
    """The value of Beam's `--environment_config` for that environment."""
    parallelism: Annotated[int, Meta(ge=1, le=10_000)] = 1
    """With `runner = flink`: how many instances of each step run in parallel."""
    checkpoint_s: Annotated[float, Meta(gt=0, le=86_400)] = 60.0
    """With `runner = flink`: how often state is checkpointed. With a lower value, less work is repeated after a
    failure."""
    bundle_ms_max: Fixed[int] = 100
    """With `runner = flink`: how long a bundle stays open."""
    prism_location: str = ""
    """With `runner = prism`: path or URL of the Prism binary. Empty uses the one that `make fetch` built, or lets
    Beam download its own, which listens on all networks."""
