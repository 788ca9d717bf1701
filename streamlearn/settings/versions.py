"""Settings of versions: the store, the registry, and how nodes follow versions."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from streamlearn.settings.constant import Fixed

__all__ = ["RegistrySettings", "ReplicaSettings", "VersionSettings"]


class VersionSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The store of versions, and their signatures."""

    store: str = ""
    """URL of the store: a folder, `file:///FOLDER`, `s3://BUCKET/FOLDER`, or any other that fsspec supports. Empty is
    the folder `.streamlearn/versions` beside app.toml. STREAMLEARN_STORE overrides it."""
    file_bytes_max: Fixed[int] = 64 << 20
    """Most bytes in one file of a version."""
    fetch_threads: Fixed[int] = 4
    """Files that are fetched and verified in parallel when versions are loaded."""
    request_timeout_ms: Fixed[int] = 30_000
    """Timeout of one request to an object store, after which it is retried."""
    attempts_max: Fixed[int] = 5
    """Attempts of one request to an object store before it fails."""
    entries_max: Fixed[int] = 1_000_000
    """Most entries in a folder of the store. Folders with more are not listed."""
    trusted_keys: str = ""
    """File with one or more Ed25519 public keys in PEM. If set, versions that none of these keys signed are refused
    before anything else of them is read. Set it if others can write to the store. Empty accepts all versions."""
    signing_key: str = ""
    """File with the Ed25519 private key, in PEM, with which the trainer, `compact` and `import` sign versions. Nodes do
    not need it. If empty, versions are not signed."""


class RegistrySettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The registry, which connects nodes and operators."""

    url: str = ""
    """URL of the registry: `redis://HOST:PORT[/DB]` in production, `sqlite:///FILE` on one machine. Empty is the file
    `.streamlearn/registry.db` beside app.toml. STREAMLEARN_REGISTRY overrides it. Put a password into
    STREAMLEARN_REGISTRY_PASSWORD."""
    reach_s: Fixed[float] = 2.0
    """Timeout of one call to the registry."""
    poll_ms: Fixed[int] = 50
    """Interval at which a SQLite registry is polled."""
    node_ttl_s: Fixed[float] = 15.0
    """How long a node without a heartbeat still counts as a node."""
    silent_s: Fixed[float] = 900.0
    """How long after its last heartbeat a node that did not leave is named as silent."""
    acks_max: Fixed[int] = 1_000
    """Moves of the pointer whose acks are kept."""
    move_acks_max: Fixed[int] = 10_000
    """Most acks of one move that are kept: the first."""
    connections_max: Fixed[int] = 32
    """Most connections of one process to Redis."""
    notes_max: Fixed[int] = 10_000
    """Most lines of the audit log that are kept."""


class ReplicaSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """How a serving node follows versions."""

    versions_kept: Annotated[int, Meta(ge=1, le=64)] = 3
    """How many versions before the active one a node keeps in memory, so that it can go back to them at once. Each
    costs memory for every row that changed."""
    beat_s: Annotated[float, Meta(gt=0, le=3_600)] = 3.0
    """How often a node sends its heartbeat and looks for new versions in the store."""
    store_poll_s: Fixed[float] = 1.0
    """Interval at which the pointer in the store is polled while the registry is unreachable."""
    stale_s: Fixed[float] = 300.0
    """A node reports that it is stale if it is behind the pointer, or cannot read it, for this long."""
    retry_first_ms: Fixed[int] = 200
    """The first backoff before a version that could not be staged is retried."""
    retry_ms_max: Fixed[int] = 30_000
    """The longest backoff before a version that could not be staged is retried."""
    memory_bytes_max: Fixed[int] = 0
    """Most memory that tables may take while two copies of them exist."""
    drain_s: Fixed[float] = 5.0
    """How long tables that must be dropped before others are loaded are kept; a node has its `front.drain_s` here."""
    close_s: Fixed[float] = 30.0
    """How long a node that stops waits for staging in progress."""
    stage_threads: Fixed[int] = 1
    """Threads that stage one file together."""
