"""Settings of the parameter server."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from streamlearn.settings.constant import Fixed

__all__ = ["PsSettings"]


class PsSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The parameter server: its shards and their clients."""

    addresses: list[str] = field(default_factory=list)
    """Addresses of the shards, in order: `HOST:PORT`, or `unix:/PATH` on one host. If empty, the trainer keeps the
    tables in its own process."""
    listen: list[str] = field(default_factory=lambda: ["127.0.0.1:0"])
    """Addresses at which a shard listens; `--listen` overrides it. Port 0 picks a free port."""
    threads: Annotated[int, Meta(ge=1, le=128)] = 1
    """Threads with which a shard answers and does long work. Use one for each core."""
    encoding: Literal["float32", "float16"] = "float32"
    """Number format of rows and gradients on the network. `float16` halves the traffic and rounds both."""
    tls_ca: str = ""
    """File with the CA certificates, in PEM, that signed the shards' certificates. Empty turns TLS off."""
    tls_server_name: str = "localhost"
    """The host name that the shards' certificates must match."""
    connect_wait_ms_max: Fixed[int] = 5_000
    """Timeout of one attempt to connect to a shard."""
    reply_wait_ms_max: Fixed[int] = 10_000
    """How long a shard may be silent while an answer is due before the connection counts as lost."""
    retry_wait_ms_max: Annotated[int, Meta(ge=1, le=86_400_000)] = 60_000
    """How long a pull or push is retried before it fails. Keep it above the time that a shard takes to restart."""
    backoff_first_ms: Fixed[int] = 10
    """The first backoff before a client reconnects to a shard."""
    backoff_ms_max: Fixed[int] = 2_000
    """The longest backoff before a client reconnects to a shard."""
    in_flight_blocks_max: Fixed[int] = 4
    """Most blocks of one call that are in progress on one shard."""
    calls_max: Fixed[int] = 64
    """Most calls in progress on one client."""
    pull_block_keys: Fixed[int] = 16_384
    """Keys in one pull request."""
    push_block_keys: Fixed[int] = 8_192
    """Keys in one push request."""
    frame_bytes_max: Fixed[int] = 64 << 20
    """Most bytes in one request. Larger ones are refused."""
    connections_max: Fixed[int] = 1_024
    """Most connections to a shard."""
    hello_wait_ms_max: Fixed[int] = 5_000
    """How long a client may take to identify itself."""
    idle_ms_max: Fixed[int] = 60_000
    """How long a connection without requests stays open."""
    frame_wait_ms_max: Fixed[int] = 30_000
    """How long a request may take to arrive completely."""
    write_wait_ms_max: Fixed[int] = 10_000
    """How long a client may read nothing of its answer."""
    token_wait_ms: Fixed[int] = 100
    """Delay before a client with a wrong token is refused."""
    in_flight_bytes_max: Fixed[int] = 256 << 20
    """Most bytes of requests in progress on one shard."""
    in_flight_wait_ms_max: Fixed[int] = 1_000
    """How long a request waits for room within that limit."""
    clients_max: Fixed[int] = 256
    """Most clients that push in one epoch."""
    window_pushes_max: Fixed[int] = 1_024
    """Most pushes of one client that a shard accepts after a missing one, and most answers that it remembers."""
    orders_max: Fixed[int] = 64
    """Most unanswered orders to a shard."""
    exports_left_max: Fixed[int] = 2
    """Most abandoned exports that still wait for their store."""
    export_end_wait_s_max: Fixed[float] = 10.0
    """How long a shard waits for an abandoned export to stop, which it does between two pieces."""
    order_wait_s_max: Fixed[float] = 30.0
    """How long shards may take to seal, commit, expire or abandon a version."""
    export_wait_s_max: Fixed[float] = 600.0
    """How long shards may take to write the files of a version."""
    restore_wait_s_max: Fixed[float] = 3_600.0
    """How long shards may take to load a version."""
    drain_ms_max: Fixed[int] = 10_000
    """How long a shard that stops may take to finish requests in progress."""
