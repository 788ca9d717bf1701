"""Settings of the parameter server."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from streamlearn.settings.constant import Fixed

__all__ = ["PsSettings"]


class PsSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The parameter server: its shards and their clients."""

    addresses: Annotated[
        list[str],
        Meta(
            description="Addresses of the shards, in order: `HOST:PORT`, or `unix:/PATH` on one host. If empty, the "
            "trainer keeps the tables in its own process."
        ),
    ] = field(default_factory=list)
    listen: Annotated[
        list[str],
        Meta(description="Addresses at which a shard listens; `--listen` overrides it. Port 0 picks a free port."),
    ] = field(default_factory=lambda: ["127.0.0.1:0"])
    threads: Annotated[
        int,
        Meta(ge=1, le=128, description="Threads with which a shard answers and does long work. Use one for each core."),
    ] = 1
    encoding: Annotated[
        Literal["float32", "float16"],
        Meta(
            description="Number format of rows and gradients on the network. `float16` halves the traffic and rounds "
            "both."
        ),
    ] = "float32"
    tls_ca: Annotated[
        str,
        Meta(
            description="File with the CA certificates, in PEM, that signed the shards' certificates. Empty turns "
            "TLS off."
        ),
    ] = ""
    tls_server_name: Annotated[str, Meta(description="The host name that the shards' certificates must match.")] = (
        "localhost"
    )
    # Timeout of one attempt to connect to a shard.
    connect_wait_ms_max: Fixed[int] = 5_000
    # How long a shard may be silent while an answer is due before the connection counts as lost.
    reply_wait_ms_max: Fixed[int] = 10_000
    retry_wait_ms_max: Annotated[
        int,
        Meta(
            ge=1,
            le=86_400_000,
            description="How long a pull or push is retried before it fails. Keep it above the time that a shard "
            "takes to restart.",
        ),
    ] = 60_000
    # The first backoff before a client reconnects to a shard.
    backoff_first_ms: Fixed[int] = 10
    # The longest backoff before a client reconnects to a shard.
    backoff_ms_max: Fixed[int] = 2_000
    # Most blocks of one call that are in progress on one shard.
    in_flight_blocks_max: Fixed[int] = 4
    # Most calls in progress on one client.
    calls_max: Fixed[int] = 64
    # Keys in one pull request.
    pull_block_keys: Fixed[int] = 16_384
    # Keys in one push request.
    push_block_keys: Fixed[int] = 8_192
    # Most bytes in one request. Larger ones are refused.
    frame_bytes_max: Fixed[int] = 64 << 20
    # Most connections to a shard.
    connections_max: Fixed[int] = 1_024
    # How long a client may take to identify itself.
    hello_wait_ms_max: Fixed[int] = 5_000
    # How long a connection without requests stays open.
    idle_ms_max: Fixed[int] = 60_000
    # How long a request may take to arrive completely.
    frame_wait_ms_max: Fixed[int] = 30_000
    # How long a client may read nothing of its answer.
    write_wait_ms_max: Fixed[int] = 10_000
    # Delay before a client with a wrong token is refused.
    token_wait_ms: Fixed[int] = 100
    # Most bytes of requests in progress on one shard.
    in_flight_bytes_max: Fixed[int] = 256 << 20
    # How long a request waits for room within that limit.
    in_flight_wait_ms_max: Fixed[int] = 1_000
    # Most clients that push in one epoch.
    clients_max: Fixed[int] = 256
    # Most pushes of one client that a shard accepts after a missing one, and most answers that it remembers.
    window_pushes_max: Fixed[int] = 1_024
    # Most unanswered orders to a shard.
    orders_max: Fixed[int] = 64
    # Most abandoned exports that still wait for their store.
    exports_left_max: Fixed[int] = 2
    # How long a shard waits for an abandoned export to stop, which it does between two pieces.
    export_end_wait_s_max: Fixed[float] = 10.0
    # How long shards may take to seal, commit, expire or abandon a version.
    order_wait_s_max: Fixed[float] = 30.0
    # How long shards may take to write the files of a version.
    export_wait_s_max: Fixed[float] = 600.0
    # How long shards may take to load a version.
    restore_wait_s_max: Fixed[float] = 3_600.0
    # How long a shard that stops may take to finish requests in progress.
    drain_ms_max: Fixed[int] = 10_000
