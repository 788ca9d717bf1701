"""Settings of versions: the store, the registry, and how nodes follow versions."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from streamlearn.settings.constant import Fixed

__all__ = ["RegistrySettings", "ReplicaSettings", "VersionSettings"]


class VersionSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The store of versions, and their signatures."""

    store: Annotated[
        str,
        Meta(
            description="URL of the store: a folder, `file:///FOLDER`, `s3://BUCKET/FOLDER`, or any other that "
            "fsspec supports. Empty is the folder `.streamlearn/versions` beside app.toml. STREAMLEARN_STORE "
            "overrides it."
        ),
    ] = ""
    # Most bytes in one file of a version.
    file_bytes_max: Fixed[int] = 64 << 20
    # Files that are fetched and verified in parallel when versions are loaded.
    fetch_threads: Fixed[int] = 4
    # Timeout of one request to an object store, after which it is retried.
    request_timeout_ms: Fixed[int] = 30_000
    # Attempts of one request to an object store before it fails.
    attempts_max: Fixed[int] = 5
    # Most entries in a folder of the store. Folders with more are not listed.
    entries_max: Fixed[int] = 1_000_000
    trusted_keys: Annotated[
        str,
        Meta(
            description="File with one or more Ed25519 public keys in PEM. If set, versions that none of these keys "
            "signed are refused before anything else of them is read. Set it if others can write to the store. "
            "Empty accepts all versions."
        ),
    ] = ""
    signing_key: Annotated[
        str,
        Meta(
            description="File with the Ed25519 private key, in PEM, with which the trainer, `compact` and `import` "
            "sign versions. Nodes do not need it. If empty, versions are not signed."
        ),
    ] = ""


class RegistrySettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The registry, which connects nodes and operators."""

    url: Annotated[
        str,
        Meta(
            description="URL of the registry: `redis://HOST:PORT[/DB]` in production, `sqlite:///FILE` on one "
            "machine. Empty is the file `.streamlearn/registry.db` beside app.toml. STREAMLEARN_REGISTRY overrides "
            "it. Put a password into STREAMLEARN_REGISTRY_PASSWORD."
        ),
    ] = ""
    # Timeout of one call to the registry.
    reach_s: Fixed[float] = 2.0
    # Interval at which a SQLite registry is polled.
    poll_ms: Fixed[int] = 50
    # How long a node without a heartbeat still counts as a node.
    node_ttl_s: Fixed[float] = 15.0
    # Moves of the pointer whose acks are kept.
    acks_max: Fixed[int] = 1_000
    # Most acks of one move that are kept: the first.
    move_acks_max: Fixed[int] = 10_000
    # Most connections of one process to Redis.
    connections_max: Fixed[int] = 32
    # Most lines of the audit log that are kept.
    notes_max: Fixed[int] = 10_000


class ReplicaSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """How a serving node follows versions."""

    versions_kept: Annotated[
        int,
        Meta(
            ge=1,
            le=64,
            description="How many versions before the active one a node keeps in memory, so that it can go back to "
            "them at once. Each costs memory for every row that changed.",
        ),
    ] = 3
    beat_s: Annotated[
        float,
        Meta(
            gt=0,
            le=3_600,
            description="How often a node sends its heartbeat and looks for new versions in the store.",
        ),
    ] = 3.0
    # Interval at which the pointer in the store is polled while the registry is unreachable.
    store_poll_s: Fixed[float] = 1.0
    # A node reports that it is stale if it is behind the pointer, or cannot read it, for this long.
    stale_s: Fixed[float] = 300.0
    # The first backoff before a version that could not be staged is retried.
    retry_first_ms: Fixed[int] = 200
    # The longest backoff before a version that could not be staged is retried.
    retry_ms_max: Fixed[int] = 30_000
    # Most memory that tables may take while two copies of them exist.
    memory_bytes_max: Fixed[int] = 0
    drain_s: Annotated[
        float,
        Meta(
            ge=0,
            le=3_600,
            description="How long a node that must drop its tables before it loads others reports that it drains, "
            "before it refuses requests. Keep it above the time that a load balancer needs to notice.",
        ),
    ] = 5.0
    # How long a node that stops waits for staging in progress.
    close_s: Fixed[float] = 30.0
    # Threads that stage one file together.
    stage_threads: Fixed[int] = 1
