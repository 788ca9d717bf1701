"""ReadPlan: all that a worker needs to read a run's events, as plain data that travels to it."""

from __future__ import annotations

from dataclasses import dataclass

from streamlearn.ingest.output.progress import Lineage
from streamlearn.ingest.reading.watermark import TimeRules
from streamlearn.topics import AccessSettings

__all__ = ["ReadLimits", "ReadPlan"]


@dataclass(frozen=True)
class ReadLimits:
    """The bounds of reading; see the settings of the same names.

    Attributes:
        blob_bytes: Of the records of one element.
        prefetch_bytes: Of each topic of a partition.
        fetch_wait_ms: Of one read without records.
        idle_s: Without records for so long, a partition's end is looked at.
        lead_ms: Event time that one topic may be ahead of the other.
        lead_bytes: Bytes that it may be.
        read_ahead_bytes: Unacknowledged, of one partition.
        poll_s: How often a partition without records is looked at.
        bundle_blobs_max: Elements of one bundle.
        bundle_s_max: Seconds of one bundle.
        acknowledged_every_s: How often the progress topic is looked at.
    """

    blob_bytes: int
    prefetch_bytes: int
    fetch_wait_ms: int
    idle_s: float
    lead_ms: int
    lead_bytes: int
    read_ahead_bytes: int
    poll_s: float
    bundle_blobs_max: int
    bundle_s_max: float
    acknowledged_every_s: float


@dataclass(frozen=True)
class ReadPlan:
    """What a run reads, and from where.

    Attributes:
        impressions_url: Of the impressions topic.
        actions_url: Of the actions topic.
        progress_url: Of the progress topic; empty: what is read is not bounded by what is acknowledged.
        partitions: Of both event topics.
        access: How topics are reached.
        run: The run's number.
        lineage: What its samples are joined by; it has the ids of both topics.
        start_ms: T0: nothing older is needed. None: everything there is.
        accept_lost: Whether to begin where records from `start_ms` on may have been deleted.
        rules: What time is.
        limits: Bounds.
        app: The application's folder, on the workers; empty: records are judged by their stamps alone.
        changes: What `--set` says.
    """

    impressions_url: str
    actions_url: str
    progress_url: str
    partitions: int
    access: AccessSettings
    run: int
    lineage: Lineage
    start_ms: int | None
    accept_lost: bool
    rules: TimeRules
    limits: ReadLimits
    app: str = ""
    changes: tuple[str, ...] = ()
