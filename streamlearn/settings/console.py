"""Settings of the console: where it is served, how often it looks, and what a visitor may ask of it."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

__all__ = ["ConsoleSettings"]


class ConsoleSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The page on which people watch a model's versions and nodes, and move its pointer."""

    listen: Annotated[
        str,
        Meta(
            description="Where the page is served, HOST:PORT; port 0 takes a free one. Any host but a loopback one "
            "needs a token file."
        ),
    ] = "127.0.0.1:8002"
    refresh_s: Annotated[
        float,
        Meta(
            ge=0.05,
            le=3_600,
            description="How often the pointer and the nodes are looked at while somebody watches, however many "
            "watch; pages ask as often.",
        ),
    ] = 1.0
    versions_s: Annotated[
        float,
        Meta(
            ge=0,
            le=3_600,
            description="How often the store's versions are listed while somebody watches. Raise it on an object "
            "store with tens of thousands of versions; a version that is served is seen at once all the same.",
        ),
    ] = 5.0
    idle_s: Annotated[
        float,
        Meta(gt=0, le=86_400, description="When nobody has asked for so long, nothing is looked at any more."),
    ] = 30.0
    versions_max: Annotated[
        int, Meta(ge=1, le=5_000, description="Versions that are shown: the newest. More make answers longer.")
    ] = 300
    moves_max: Annotated[
        int,
        Meta(
            ge=1,
            le=10_000,
            description="Moves of the pointer that are shown: the newest. Each is read from the store once.",
        ),
    ] = 200
    late_s: Annotated[
        float,
        Meta(
            gt=0,
            le=31_536_000,
            description="Without a new version for so long, or with one that had learned only up to so long before "
            "now, the page says that training is late. Keep it at several times `publisher.publish_interval_s`.",
        ),
    ] = 300.0
    gone_s: Annotated[
        float,
        Meta(
            ge=0,
            le=31_536_000,
            description="How long a node that is not heard of any more is still shown, as gone; at most 1,000.",
        ),
    ] = 900.0
    move_wait_s: Annotated[
        float,
        Meta(ge=0, le=600, description="How long nodes are waited for after a move of the pointer; 0 does not wait."),
    ] = 10.0
    connections_max: Annotated[
        int,
        Meta(
            ge=1,
            le=10_000,
            description="Open connections, each with a thread; one more is refused with status 503.",
        ),
    ] = 64
    arrival_s: Annotated[
        float,
        Meta(
            gt=0,
            le=3_600,
            description="How long a request may take to arrive whole, and an answer to be taken; then its connection "
            "is closed.",
        ),
    ] = 10.0
    header_bytes_max: Annotated[
        int,
        Meta(ge=1_024, le=1 << 20, description="Bytes of a request's headers; one with more is refused."),
    ] = 16_384
    body_bytes_max: Annotated[
        int, Meta(ge=256, le=1 << 20, description="Bytes of a request's body; a larger one is refused unread.")
    ] = 8_192
