"""Settings of a serving node's front: addresses, limits on requests, and deadlines."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from streamlearn.settings.constant import Fixed

__all__ = ["FrontSettings"]


class FrontSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """How a node accepts, queues and refuses requests."""

    listen: Annotated[
        str,
        Meta(
            description="Address of the gRPC server, HOST:PORT; port 0 picks a free port. A host other than loopback "
            "needs a token file."
        ),
    ] = "127.0.0.1:8001"
    http: Annotated[str, Meta(description="Address of the HTTP server (JSON), HOST:PORT; empty turns it off.")] = (
        "127.0.0.1:8000"
    )
    threads: Annotated[
        int,
        Meta(
            ge=1, le=64, description="Threads that decode requests and encode answers. Lanes have threads of their own."
        ),
    ] = 1
    candidates_max: Annotated[
        int,
        Meta(ge=1, le=1_000_000, description="Most candidates in one request. Requests with more are refused."),
    ] = 4_096
    # Most values in one input of one request.
    values_max: Fixed[int] = 262_144
    # Most bytes in one request.
    message_bytes_max: Fixed[int] = 16 << 20
    connections_max: Annotated[
        int,
        Meta(
            ge=1,
            le=100_000,
            description="Most open connections. Beyond it, a new connection replaces one that has not sent the token.",
        ),
    ] = 1_024
    deadline_ms: Annotated[
        int, Meta(ge=1, le=3_600_000, description="Deadline of a request that does not set one.")
    ] = 1_000
    # Longest deadline of a request; a longer one is shortened to it.
    deadline_ms_max: Fixed[int] = 30_000
    # Time that must be left between the predicted end of a request and its deadline for it to be accepted: a margin for
    # wrong predictions and for sending the answer.
    slack_ms: Fixed[int] = 2
    requests_max: Annotated[
        int, Meta(ge=1, le=1_000_000, description="Most requests in the queue. Beyond it, requests are refused.")
    ] = 2_048
    # Most candidates in the queue.
    waiting_candidates_max: Fixed[int] = 131_072
    # Share of both limits on the queue that is reserved for requests of priority 0.
    reserved_percent: Fixed[int] = 10
    degraded_candidates: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000,
            description="If the node is overloaded, score only this many of the first candidates of a request, if "
            "that meets its deadline. The other candidates get no scores, and the answer says how many have one. "
            "With 0 such requests are refused.",
        ),
    ] = 0
    # Most bytes in a request's headers.
    header_bytes_max: Fixed[int] = 16_384
    # How long a request, with its headers, may take to arrive completely.
    arrival_s: Fixed[float] = 10.0
    # How long a connection without requests stays open.
    idle_s: Fixed[float] = 300.0
    # Most answered requests that wait to be scored by a version in shadow.
    shadow_requests_max: Fixed[int] = 256
    # Most free buffers of packed TensorBatches that are kept for reuse.
    slabs_max: Fixed[int] = 8
    ready_s: Annotated[
        float,
        Meta(gt=0, le=86_400, description="How long a node may take to load its first version. After that it ends."),
    ] = 600.0
    drain_s: Annotated[
        float,
        Meta(ge=0, le=3_600, description="How long a node that stops waits for requests in progress."),
    ] = 10.0
