"""Settings of the impressions that serving nodes write: whether they write them, and how many may wait."""

from __future__ import annotations

from msgspec import Struct

from streamlearn.settings.constant import Fixed

__all__ = ["ImpressionsSettings"]


class ImpressionsSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Impressions that serving nodes write for answered requests, in records as set in `[events]`."""

    write_back: bool = False
    """Whether nodes write an impression for each answered request. Turn it on if no other service writes impressions,
    with `topics.time = wall`."""
    waiting_events_max: Fixed[int] = 20_000
    """Most answered requests that wait to be written."""
    waiting_bytes_max: Fixed[int] = 256 << 20
    """Most bytes of answered requests that wait to be written."""
    flush_s: Fixed[float] = 5.0
    """How long a node that stops continues to write waiting impressions."""
