"""Settings of what serving nodes write back: which answered requests become impressions, and how many may wait."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

__all__ = ["ImpressionsSettings"]


class ImpressionsSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """What a serving node writes to the impressions topic, in records as `[events]` says."""

    write_back: Annotated[
        bool,
        Meta(
            description="Whether nodes write what was shown. Turn it on where nobody else writes impressions, with "
            "`topics.time = wall`."
        ),
    ] = False
    share: Annotated[
        float,
        Meta(
            gt=0,
            le=1,
            description="The share of requests that is written, chosen by their ids: the same on every node. Lower it "
            "where fewer impressions teach as well; their actions find no impression then.",
        ),
    ] = 1.0
    waiting_events_max: Annotated[
        int,
        Meta(
            ge=1,
            le=10_000_000,
            description="Answered requests that may wait to be written; beyond them others are dropped and counted. "
            "Replies never wait.",
        ),
    ] = 20_000
    waiting_bytes_max: Annotated[
        int,
        Meta(
            ge=65_536,
            le=64 << 30,
            description="Bytes of them; at the bound others are dropped too. Raise it to lose less while a broker is "
            "away.",
        ),
    ] = 256 << 20
    flush_s: Annotated[
        float,
        Meta(ge=0, le=3_600, description="How long a node that ends goes on writing what waits; the rest is lost."),
    ] = 5.0
