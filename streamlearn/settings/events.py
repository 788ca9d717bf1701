"""Settings of events, samples and replays."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

__all__ = ["EventSettings", "ReplaySettings", "SampleSettings"]


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
