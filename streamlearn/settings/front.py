"""Settings of a serving node's front: addresses, what a request may hold, and how long it may wait."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

__all__ = ["FrontSettings"]


class FrontSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """How requests come in, wait, and are refused."""

    listen: Annotated[
        str,
        Meta(
            description="Where gRPC is served, HOST:PORT; port 0 takes a free one. Any host but a loopback one needs "
            "a token file."
        ),
    ] = "127.0.0.1:8001"
    http: Annotated[str, Meta(description="Where HTTP with JSON is served, HOST:PORT; empty for nowhere.")] = (
        "127.0.0.1:8000"
    )
    threads: Annotated[
        int, Meta(ge=1, le=64, description="Threads that decode requests and encode answers, beside lanes.")
    ] = 1
    candidates_max: Annotated[
        int,
        Meta(ge=1, le=1_000_000, description="Candidates of one request; one with more is refused."),
    ] = 4_096
    values_max: Annotated[
        int, Meta(ge=1, le=1 << 30, description="Values of one input of one request; one with more is refused.")
    ] = 262_144
    message_bytes_max: Annotated[
        int, Meta(ge=1_024, le=1 << 30, description="Bytes of one request; a larger one is refused unread.")
    ] = 16 << 20
    connections_max: Annotated[int, Meta(ge=1, le=100_000, description="Open connections; one more is closed.")] = 1_024
    deadline_ms: Annotated[
        int, Meta(ge=1, le=3_600_000, description="Within how long a request is answered that says nothing of it.")
    ] = 1_000
    deadline_ms_max: Annotated[
        int, Meta(ge=1, le=3_600_000, description="The longest a request may wait, whatever it says.")
    ] = 30_000
    slack_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=60_000,
            description="How long before its deadline a request should be done by prediction to be let in: room for "
            "what takes longer than predicted, and for the way back.",
        ),
    ] = 2
    requests_max: Annotated[
        int, Meta(ge=1, le=1_000_000, description="Requests that may wait; beyond them others are refused.")
    ] = 2_048
    waiting_candidates_max: Annotated[
        int, Meta(ge=1, le=1 << 30, description="Candidates that may wait; beyond them requests are refused.")
    ] = 131_072
    reserved_percent: Annotated[
        int, Meta(ge=0, le=100, description="The share of both that is kept free for requests of priority 0.")
    ] = 10
    degraded_candidates: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000,
            description="A request that would be refused because there is too much to do is cut to its first so many "
            "candidates, if that can be done in time; the others have no scores, and the answer says how many have. "
            "0 refuses it instead.",
        ),
    ] = 0
    header_bytes_max: Annotated[
        int,
        Meta(ge=8_192, le=1 << 20, description="Bytes of a request's headers; one with more is refused."),
    ] = 16_384
    arrival_s: Annotated[
        float,
        Meta(
            gt=0,
            le=3_600,
            description="How long a request may take to arrive whole, its headers too; then it is refused, or its "
            "connection closed.",
        ),
    ] = 10.0
    idle_s: Annotated[
        float,
        Meta(gt=0, le=86_400, description="How long a connection may have no request; then it is closed."),
    ] = 300.0
    shadow_requests_max: Annotated[
        int,
        Meta(
            ge=1,
            le=100_000,
            description="Answered requests that may wait to be scored by a version in shadow; others are not. Lower it "
            "when memory is short.",
        ),
    ] = 256
    slabs_max: Annotated[
        int, Meta(ge=1, le=10_000, description="Memory of packed TensorBatches that is kept for the next, each.")
    ] = 8
    ready_s: Annotated[
        float, Meta(gt=0, le=86_400, description="How long a node may take to answer with its first version.")
    ] = 600.0
    drain_s: Annotated[
        float,
        Meta(ge=0, le=3_600, description="How long a node that ends waits for requests that are under way."),
    ] = 10.0
