"""Settings of events, samples and replays."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from streamlearn.settings.constant import Fixed

__all__ = ["EventSettings", "ReplaySettings", "SampleSettings"]


class EventSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The size of the records that the Producer writes, and limits on events that a reader accepts."""

    record_events_max: Annotated[
        int,
        Meta(
            ge=1,
            le=100_000,
            description="Most events in one record. Use 1 for consumers that cannot read packed records.",
        ),
    ] = 500
    record_bytes_max: Annotated[
        int,
        Meta(
            ge=1_024,
            le=64 << 20,
            description="Most bytes in one record. Keep it below the broker's message.max.bytes. Larger records go "
            "to the dead-letter topic.",
        ),
    ] = 900_000
    linger_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=60_000,
            description="How long the Producer waits to fill a record. With 0 it sends each event at once.",
        ),
    ] = 50
    # How far an event may be ahead of this machine's clock with `topics.time = wall`.
    ahead_s_max: Fixed[float] = 600.0
    # Most items in one impression, and most values in one slot.
    items_max: Fixed[int] = 4_096
    # Most unacknowledged bytes that the Producer holds.
    unsent_bytes_max: Fixed[int] = 64 << 20


class SampleSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Limits on a SampleBatch that a reader of samples accepts."""

    # Most bytes in one SampleBatch.
    message_bytes_max: Fixed[int] = 16 << 20
    message_rows_max: Annotated[
        int, Meta(ge=1, le=10_000_000, description="Most rows in one SampleBatch. Larger ones are refused.")
    ] = 100_000


class ReplaySettings(Struct, frozen=True, forbid_unknown_fields=True):
    """How `streamlearn replay` writes history into topics."""

    partitions: Annotated[int, Meta(ge=1, le=10_000, description="Partitions of the topics that it creates.")] = 4
    # Retention of each partition of the topics that it creates.
    retention_bytes: Fixed[int] = 8 << 30
    heartbeat_s: Annotated[
        float,
        Meta(gt=0, le=3600, description="Interval between two heartbeats on each partition, in event time."),
    ] = 10.0
