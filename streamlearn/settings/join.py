"""Settings of the join of impressions with actions, and of the marks of what was learned."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

__all__ = ["JoinSettings", "MarksSettings"]


class JoinSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """What joins may hold."""

    pending_bytes_max: Annotated[
        int,
        Meta(
            ge=1 << 16,
            description="Bytes one lot's join may hold when events are added; at the bound it refuses, and its caller "
            "stops reading. Plan 400 bytes and the bytes of the event for each impression of a longest window.",
        ),
    ] = 4 << 30
    process_bytes_max: Annotated[
        int,
        Meta(
            ge=1 << 16,
            description="Bytes all joins of a worker's process may hold, shared alike among its lots; at its "
            "share a lot's events wait, as at `pending_bytes_max`. Set it by the machine's memory.",
        ),
    ] = 16 << 30
    orphan_wait_s: Annotated[
        float,
        Meta(
            ge=0,
            le=7_776_000,
            description="Event time an action waits for its impression beyond its own. Longer helps where clocks of "
            "impressions and actions differ.",
        ),
    ] = 60.0
    logged_share: Annotated[
        float,
        Meta(
            gt=0,
            le=1,
            description="The share of requests that serving logs, chosen by a hash of the request id. Actions of the "
            "others are counted apart and do not wait.",
        ),
    ] = 1.0
    window_slices: Annotated[
        int,
        Meta(
            ge=1,
            le=4_096,
            description="Parts of the shortest window that memory is let go of by. More of them keep less beyond their "
            "window, and cost some memory each.",
        ),
    ] = 64
    request_impressions_max: Annotated[
        int,
        Meta(
            ge=1,
            le=4_096,
            description="Impressions of one request that show different items; further ones are set aside.",
        ),
    ] = 64
    request_actions_max: Annotated[
        int,
        Meta(
            ge=1,
            le=65_536,
            description="Actions of one request that wait for its impression; further ones are orphans at once.",
        ),
    ] = 1_024


class MarksSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """What the marks of what was learned may hold."""

    bytes_max: Annotated[
        int,
        Meta(
            ge=1 << 16,
            description="Bytes of marks; at the bound a step is refused. Plan 8 bytes a record of events and 2 bits, "
            "rounded up to a power of two for all labels, an item shown since the horizon.",
        ),
    ] = 4 << 30
    record_items_max: Annotated[
        int,
        Meta(ge=1, le=1 << 24, description="Items of one record of events; samples with more are refused."),
    ] = 1 << 20
