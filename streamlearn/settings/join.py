"""Settings of the join of impressions with actions, and of the trainer's marks."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from streamlearn.settings.constant import Fixed

__all__ = ["RECORD_ITEMS_MAX", "JoinSettings", "MarksSettings"]

RECORD_ITEMS_MAX = 1 << 20
"""Most items in one record of events, which all its events show together."""


class JoinSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Limits on the join of impressions with actions."""

    pending_bytes_max: Annotated[int, Meta(ge=1 << 16)] = 4 << 30
    """Most bytes that the join of one lot may hold; at the limit it accepts no events and reading stops. Plan 400 bytes
    plus the event's size for each impression within the longest window."""
    process_bytes_max: Annotated[int, Meta(ge=1 << 16)] = 16 << 30
    """Most bytes that all joins of a worker process may hold, divided equally among its lots. At its share, a lot's
    events wait as they do at `pending_bytes_max`. Set it by the machine's memory."""
    orphan_wait_s: Annotated[float, Meta(ge=0, le=7_776_000)] = 60.0
    """How long, in event time, an action waits for an impression that is later than itself. Raise it if the clocks of
    impressions and actions differ."""
    logged_share: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """The share of requests that serving logs, chosen by a hash of the request id. Actions of other requests are
    counted separately and do not wait."""
    window_slices: Fixed[int] = 64
    """Slices of the shortest window; memory is freed a slice at a time."""
    request_impressions_max: Fixed[int] = 1_024
    """Most impressions of one request that show different items."""
    request_actions_max: Fixed[int] = 1_024
    """Most actions of one request that wait for its impression."""


class MarksSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Limits on the marks: the trainer's record of the labels that it has learned."""

    bytes_max: Annotated[int, Meta(ge=1 << 16)] = 4 << 30
    """Most bytes of marks; at the limit a step is refused. Plan 8 bytes for each record of events. Add 2 bits a label,
    rounded up to a power of two for all labels, and 48 bytes a label that is a number and has corrections, for each
    item shown since the horizon."""
    record_items_max: Fixed[int] = RECORD_ITEMS_MAX
    """Most items in one record of events."""
