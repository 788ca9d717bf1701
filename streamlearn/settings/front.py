"""Settings of a serving node's front: addresses, limits on requests, and deadlines."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from streamlearn.settings.constant import Fixed

__all__ = ["AllowanceSettings", "FrontSettings"]


class FrontSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """How a node accepts, queues and refuses requests."""

    listen: str = "127.0.0.1:8001"
    """Address of the gRPC server, HOST:PORT; port 0 picks a free port. A host other than loopback needs a token
    file."""
    http: str = "127.0.0.1:8000"
    """Address of the HTTP server (JSON), HOST:PORT; empty turns it off."""
    threads: Annotated[int, Meta(ge=1, le=64)] = 1
    """Threads that decode requests and encode answers. Lanes have threads of their own."""
    candidates_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 4_096
    """Most candidates in one request. Requests with more are refused."""
    values_max: Fixed[int] = 262_144
    """Most values in one input of one request."""
    message_bytes_max: Fixed[int] = 16 << 20
    """Most bytes in one request."""
    connections_max: Annotated[int, Meta(ge=1, le=100_000)] = 1_024
    """Most open connections. Beyond it, a new connection replaces one that has not sent the token."""
    deadline_ms: Annotated[int, Meta(ge=1, le=3_600_000)] = 1_000
    """Deadline of a request that does not set one."""
    deadline_ms_max: Fixed[int] = 30_000
    """Longest deadline of a request; a longer one is shortened to it."""
    slack_ms: Fixed[int] = 2
    """Least time that must be left between the predicted end of a request and its deadline for it to be accepted. It
    grows while answers are late."""
    requests_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 2_048
    """Most requests in the queue. Beyond it, requests are refused."""
    waiting_candidates_max: Fixed[int] = 131_072
    """Most candidates in the queue."""
    reserved_percent: Fixed[int] = 10
    """Share of both limits on the queue that is reserved for requests of priority 0."""
    shed_by_user: bool = False
    """While overload lasts, refuse all requests of some users, others each hour, instead of some requests of all users.
    A user is a `route_key`."""
    split_pieces_max: Annotated[int, Meta(ge=0, le=16)] = 0
    """Most pieces of a request that one node could not score by its deadline: other nodes of the application score
    pieces of it at the same time. 0 or 1 turns it off. Use it for requests of 1,000 candidates or more, on all nodes
    alike."""
    header_bytes_max: Fixed[int] = 16_384
    """Most bytes in a request's headers."""
    arrival_s: Fixed[float] = 10.0
    """How long a request, with its headers, may take to arrive completely."""
    idle_s: Fixed[float] = 300.0
    """How long a connection without requests stays open."""
    shadow_requests_max: Fixed[int] = 256
    """Most answered requests that wait to be scored by a version in shadow."""
    slabs_max: Fixed[int] = 8
    """Most free buffers of packed TensorBatches that are kept for reuse."""
    ready_s: Annotated[float, Meta(gt=0, le=86_400)] = 600.0
    """How long a node may take to load its first version. After that it ends."""
    drain_s: Annotated[float, Meta(ge=0, le=3_600)] = 10.0
    """How long a node that stops, and that other machines reach, goes on answering although it is not ready; and how
    long it then waits for requests in progress. Also how long one that must drop its tables before it loads others
    reports that it drains, before it refuses requests. Keep it above the time that a load balancer needs to notice."""


class AllowanceSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """How much of each request an overloaded node scores."""

    candidates_min: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    """Turns it on: an overloaded node scores only as many of the first candidates of a request as are worth their time,
    but at least this many, and refuses requests that are not worth it. Callers must send the best candidates first. The
    answer says how many are scored; the others have no score. With 0, overload refuses whole requests."""
    shown: Annotated[int, Meta(ge=1, le=1_000)] = 8
    """How many candidates of an answer callers show. The sum of that many best scores is the value of an answer."""
    short_history_percent: Annotated[int, Meta(ge=0, le=100)] = 0
    """Turns on cuts of histories, for models with two of `serving.lengths`: how much of the value of an answer remains
    if only the shorter length is read. With 0 histories are never cut."""
    class_segment: str = ""
    """Segment of requests whose values have curves of their own, for example the page: what a next candidate adds is
    learned for up to 16 values apart. Empty: one curve for all requests."""
    value_max: Fixed[float] = 10.0
    """Largest `value` of a request. A larger one counts as this."""
