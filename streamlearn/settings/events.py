"""Settings of events, samples and replays."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from streamlearn.settings.constant import Fixed

__all__ = ["ITEM_ID_BYTES_MAX", "EventSettings", "ReplaySettings", "SampleSettings"]

ITEM_ID_BYTES_MAX = 256
"""Most bytes of an item id that is a text, in applications with a library of items."""


class EventSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The size of the records that the Producer writes, and limits on events that a reader accepts."""

    record_events_max: Annotated[int, Meta(ge=1, le=100_000)] = 500
    """Most events in one record. Use 1 for consumers that cannot read packed records."""
    record_bytes_max: Annotated[int, Meta(ge=1_024, le=64 << 20)] = 900_000
    """Most bytes in one record. Keep it below the broker's message.max.bytes. Larger records go to the dead-letter
    topic."""
    linger_ms: Annotated[int, Meta(ge=0, le=60_000)] = 50
    """How long the Producer waits to fill a record. With 0 it sends each event at once."""
    ahead_s_max: Fixed[float] = 600.0
    """How far an event may be ahead of this machine's clock with `topics.time = wall`."""
    items_max: Fixed[int] = 4_096
    """Most items in one impression, and most values in one slot."""
    unsent_bytes_max: Fixed[int] = 64 << 20
    """Most unacknowledged bytes that the Producer holds."""


class SampleSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Limits on a SampleBatch that a reader of samples accepts."""

    message_bytes_max: Fixed[int] = 16 << 20
    """Most bytes in one SampleBatch."""
    message_rows_max: Annotated[int, Meta(ge=1, le=10_000_000)] = 100_000
    """Most rows in one SampleBatch. Larger ones are refused."""


class ReplaySettings(Struct, frozen=True, forbid_unknown_fields=True):
    """How `streamlearn replay` writes history into topics."""

    partitions: Annotated[int, Meta(ge=1, le=10_000)] = 4
    """Partitions of the topics that it creates."""
    retention_bytes: Fixed[int] = 8 << 30
    """Retention of each partition of the topics that it creates."""
    heartbeat_s: Annotated[float, Meta(gt=0, le=3600)] = 10.0
    """Interval between two heartbeats on each partition, in event time."""
