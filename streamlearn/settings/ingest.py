"""Settings of ingest: how events are read, how far reading may run ahead, into how many lots they are cut."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

__all__ = ["IngestSettings"]


class IngestSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """How events are read, cut into lots, and how far reading may run ahead of what is acknowledged."""

    runner: Annotated[
        Literal["prism", "flink", "direct"],
        Meta(
            description="What runs the pipeline: `prism` on this machine, `flink` on a cluster; `direct` for bounded "
            "backfills alone, since its event-time timers are wrong on topics that go on."
        ),
    ] = "prism"
    lots: Annotated[
        int,
        Meta(
            ge=1,
            le=4_096,
            description="Into how many classes requests are hashed, each joined by itself. A multiple of the workers' "
            "cores; choose it once, since what was acknowledged is known by lot.",
        ),
    ] = 16
    out_of_orderness_s: Annotated[
        float,
        Meta(
            ge=0,
            le=86_400,
            description="Event time. How much later than a newer event an older one of the same partition may come. "
            "Raise it when events are counted as late, lower it to have samples sooner.",
        ),
    ] = 30.0
    ahead_s_max: Annotated[
        float,
        Meta(
            gt=0,
            le=10 * 365 * 86_400,
            description="How far ahead of the topics' clock an event may be before it is impossible and goes to the "
            "dead letters: the wall with `topics.time = wall`, else what its partition has reached. Raise it for "
            "histories with longer gaps and no heartbeats.",
        ),
    ] = 86_400.0
    idle_s: Annotated[
        float,
        Meta(
            gt=0,
            le=3_600,
            description="Wall time without records, at the end of a partition, after which it holds back no others. "
            "Keep it above the time in which your producers try again; only with `topics.time = wall`.",
        ),
    ] = 5.0
    lead_s: Annotated[
        float,
        Meta(
            gt=0,
            le=30 * 86_400,
            description="Event time. How far one topic of a partition is read ahead of the other. Raise it when topics "
            "are written in larger blocks than that.",
        ),
    ] = 60.0
    lead_bytes: Annotated[
        int,
        Meta(
            ge=65_536,
            le=16 << 30,
            description="Bytes that one topic of a partition is read ahead of the other; at the bound it waits. Raise "
            "it when `streamlearn_ingest_lead_waits_total` grows while nothing is stalled.",
        ),
    ] = 64 << 20
    read_ahead_bytes: Annotated[
        int,
        Meta(
            ge=1 << 20,
            le=1 << 40,
            description="Bytes that were read and whose samples are not acknowledged, of all partitions; at the bound "
            "reading waits. It must hold what comes within `out_of_orderness_s` and `flush_s`.",
        ),
    ] = 512 << 20
    stretch_s: Annotated[
        float,
        Meta(
            ge=1,
            le=10 * 365 * 86_400,
            description="Event time that a backfill joins at once, one stretch after another. A worker holds a lot's "
            "events of a stretch about four times, and of what lies a longest window around it all but the features: "
            "lower it, or have more lots, where that does not fit; keep it well above the longest window.",
        ),
    ] = 86_400.0
    read_back_bytes: Annotated[
        int,
        Meta(
            ge=1 << 20,
            le=64 << 30,
            description="Bytes of impressions that a worker keeps after it has read them again, for rows that are due "
            "after the shortest window; at the bound those used longest ago are let go of. Raise it when "
            "`streamlearn_ingest_read_back_fetches_total` grows with every flush.",
        ),
    ] = 64 << 20
    blob_bytes: Annotated[
        int,
        Meta(
            ge=4_096,
            le=64 << 20,
            description="Bytes of the records that go through the pipeline as one element. Larger ones cost less each "
            "and wait longer; a single larger record goes alone.",
        ),
    ] = 1 << 20
    prefetch_bytes: Annotated[
        int,
        Meta(
            ge=4_096,
            le=1 << 30,
            description="Bytes of each topic of a partition that are fetched before they are asked for; at the bound "
            "fetching waits. Raise it for brokers far away.",
        ),
    ] = 4 << 20
    fetch_wait_s: Annotated[
        float,
        Meta(
            gt=0,
            le=60,
            description="How long a broker may wait for records before it answers that there are none. Raise it to "
            "ask less often, at the cost of a slower stop.",
        ),
    ] = 0.5
    poll_s: Annotated[
        float,
        Meta(
            gt=0,
            le=60,
            description="How soon partitions without records are looked at again; while nothing comes that grows "
            "to four times as long, but not beyond 0.2 s. Lower it for fresher samples, raise it where partitions are "
            "many and quiet.",
        ),
    ] = 0.05
    flush_s: Annotated[
        float,
        Meta(
            gt=0,
            le=3_600,
            description="How often progress is written, idle lots included. Lower it to read less again after a start.",
        ),
    ] = 2.0
    tick_s: Annotated[
        float,
        Meta(
            gt=0,
            le=3_600,
            description="Event time. Samples that are due are given out at multiples of it. Lower it for fresher "
            "samples, raise it for larger and fewer messages.",
        ),
    ] = 0.5
    bundle_blobs_max: Annotated[
        int,
        Meta(
            ge=1,
            le=100_000,
            description="Elements after which a runner may commit what a partition has read. Raise it on slow runners.",
        ),
    ] = 40
    bundle_s_max: Annotated[
        float,
        Meta(
            gt=0,
            le=600,
            description="And seconds after which it may. Lower it to have timers fire sooner.",
        ),
    ] = 1.0
    job_endpoint: Annotated[
        str, Meta(description="With `runner = flink`: host:port of Beam's job server for your Flink.")
    ] = ""
    artifact_endpoint: Annotated[
        str, Meta(description="With `runner = flink`: host:port of its artifacts, where it is not the job's own.")
    ] = ""
    environment: Annotated[
        Literal["LOOPBACK", "PROCESS", "DOCKER", "EXTERNAL"],
        Meta(
            description="Where the workers run: `LOOPBACK` in the process that starts the pipeline, the others as Beam "
            "has them, on the cluster's machines."
        ),
    ] = "LOOPBACK"
    environment_config: Annotated[
        str, Meta(description="What Beam's `--environment_config` says of that environment.")
    ] = ""
    parallelism: Annotated[
        int,
        Meta(ge=1, le=10_000, description="With `runner = flink`: how many of each step run at once."),
    ] = 1
    checkpoint_s: Annotated[
        float,
        Meta(
            gt=0,
            le=86_400,
            description="With `runner = flink`: how often state is checkpointed. Lower it to do less again after a "
            "failure.",
        ),
    ] = 60.0
    bundle_ms_max: Annotated[
        int,
        Meta(
            ge=1,
            le=600_000,
            description="With `runner = flink`: how long a bundle stays open; without a bound nothing flows.",
        ),
    ] = 100
    prism_location: Annotated[
        str,
        Meta(
            description="With `runner = prism`: the binary, or where to fetch it. Empty takes the one that `make "
            "fetch` keeps, and lets Beam download its own where there is none."
        ),
    ] = ""
