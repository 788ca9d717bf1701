"""Settings of the parameter server."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

__all__ = ["PsSettings"]


class PsSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The parameter server: its shards, and those who ask them."""

    addresses: Annotated[
        list[str],
        Meta(
            description="Of the shards, in order: `HOST:PORT`, or `unix:/PATH` on one host. Empty keeps the tables in "
            "the trainer's process."
        ),
    ] = field(default_factory=list)
    listen: Annotated[
        list[str],
        Meta(description="Where a shard listens; `--listen` is laid over it. Port 0 takes any that is free."),
    ] = field(default_factory=lambda: ["127.0.0.1:0"])
    threads: Annotated[
        int,
        Meta(ge=1, le=128, description="Threads of a shard that answer, and that share long work. One a core."),
    ] = 1
    encoding: Annotated[
        Literal["float32", "float16"],
        Meta(description="How rows and gradients travel. `float16` halves the traffic and rounds both."),
    ] = "float32"
    tls_ca: Annotated[
        str, Meta(description="Certificates, in PEM, of the authority that signed the shards'. Empty is no TLS.")
    ] = ""
    tls_server_name: Annotated[str, Meta(description="The name that shards' certificates are of.")] = "localhost"
    connect_wait_ms_max: Annotated[
        int, Meta(ge=1, le=3_600_000, description="How long one attempt to reach a shard may take.")
    ] = 5_000
    reply_wait_ms_max: Annotated[
        int,
        Meta(
            ge=1,
            le=3_600_000,
            description="How long a shard that owes an answer may be silent before the connection counts as lost.",
        ),
    ] = 10_000
    retry_wait_ms_max: Annotated[
        int,
        Meta(
            ge=1,
            le=86_400_000,
            description="How long a pull or push is tried before it fails. Keep it above the time a shard restarts in.",
        ),
    ] = 60_000
    backoff_first_ms: Annotated[
        int, Meta(ge=1, le=3_600_000, description="The wait before a lost shard is tried again; it doubles.")
    ] = 10
    backoff_ms_max: Annotated[int, Meta(ge=1, le=3_600_000, description="The longest such wait.")] = 2_000
    in_flight_blocks_max: Annotated[
        int, Meta(ge=1, le=64, description="Blocks of one call that one shard works on at once.")
    ] = 4
    calls_max: Annotated[int, Meta(ge=1, le=65_536, description="Calls of one client at once; one more waits.")] = 64
    pull_block_keys: Annotated[
        int, Meta(ge=1, le=1 << 20, description="Keys of one request to pull; larger calls are several.")
    ] = 16_384
    push_block_keys: Annotated[
        int, Meta(ge=1, le=1 << 20, description="Keys of one request to push; larger calls are several.")
    ] = 8_192
    frame_bytes_max: Annotated[
        int, Meta(ge=65_536, le=1 << 30, description="A larger request is refused. Raise it for very wide rows.")
    ] = 64 << 20
    connections_max: Annotated[
        int, Meta(ge=1, le=65_536, description="Connections to a shard at once; one more is closed.")
    ] = 1_024
    hello_wait_ms_max: Annotated[
        int, Meta(ge=1, le=3_600_000, description="How long a caller may take to say who it is.")
    ] = 5_000
    idle_ms_max: Annotated[
        int, Meta(ge=1, le=86_400_000, description="How long a caller may be silent before a shard closes it.")
    ] = 60_000
    frame_wait_ms_max: Annotated[
        int, Meta(ge=1, le=3_600_000, description="How long a request may take to arrive whole; then it is closed.")
    ] = 30_000
    write_wait_ms_max: Annotated[
        int, Meta(ge=1, le=3_600_000, description="How long a caller may take no byte of its answer.")
    ] = 10_000
    token_wait_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=60_000,
            description="How long who says a wrong token waits for its refusal. It slows whoever tries many.",
        ),
    ] = 100
    in_flight_bytes_max: Annotated[
        int, Meta(ge=1 << 20, le=1 << 40, description="Bytes of requests a shard takes in at once; others wait.")
    ] = 256 << 20
    in_flight_wait_ms_max: Annotated[
        int,
        Meta(
            ge=1,
            le=3_600_000,
            description="How long a request waits for room among those bytes; then it is refused and closed.",
        ),
    ] = 1_000
    clients_max: Annotated[
        int, Meta(ge=1, le=65_536, description="Clients that push in one epoch; a push of one more is refused.")
    ] = 256
    window_pushes_max: Annotated[
        int,
        Meta(
            ge=1,
            le=1 << 22,
            description="Pushes of one client that a shard takes ahead of one that is missing, and answers that it "
            "remembers. It is never less than `calls_max` times `in_flight_blocks_max`.",
        ),
    ] = 1_024
    orders_max: Annotated[
        int, Meta(ge=1, le=65_536, description="Orders to a shard that are not answered; one more is refused as busy.")
    ] = 64
    exports_left_max: Annotated[
        int,
        Meta(
            ge=1,
            le=64,
            description="Exports that were given up while their store did not answer. Each keeps a thread, and may "
            "keep rows of before a restore, until it does; at the bound another export is refused.",
        ),
    ] = 2
    export_end_wait_s_max: Annotated[
        float,
        Meta(
            gt=0,
            le=3_600,
            description="How long a shard waits for the export of a version that is given up to end, which it does "
            "between two pieces. Then the version stays sealed until it is given up again.",
        ),
    ] = 10.0
    order_wait_s_max: Annotated[
        float,
        Meta(gt=0, le=86_400, description="How long shards may take to seal, commit, expire or give up a version."),
    ] = 30.0
    export_wait_s_max: Annotated[
        float, Meta(gt=0, le=864_000, description="How long shards may take to write the files of a version.")
    ] = 600.0
    restore_wait_s_max: Annotated[
        float, Meta(gt=0, le=864_000, description="How long shards may take to load a version.")
    ] = 3_600.0
    drain_ms_max: Annotated[
        int, Meta(ge=0, le=3_600_000, description="How long a shard that is stopped may finish what it has begun.")
    ] = 10_000
