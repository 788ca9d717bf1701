"""Settings of versions: the store, the registry, and who follows them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

__all__ = ["RegistrySettings", "ReplicaSettings", "VersionSettings"]


class VersionSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Where versions are written to and read from."""

    store: Annotated[
        str,
        Meta(
            description="URL of the store: a folder, `file:///FOLDER`, `s3://BUCKET/FOLDER` or any other fsspec knows. "
            "Empty is the folder `.streamlearn/versions` beside app.toml; STREAMLEARN_STORE is laid over it."
        ),
    ] = ""
    file_bytes_max: Annotated[
        int,
        Meta(
            ge=65_536,
            le=1 << 30,
            description="No file of a version becomes larger. Lower it where memory is small, raise it for fewer "
            "requests to an object store.",
        ),
    ] = 64 << 20
    fetch_threads: Annotated[
        int, Meta(ge=1, le=64, description="Files that are fetched and verified at once when versions are loaded.")
    ] = 4


class RegistrySettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Where nodes and operators meet."""

    url: Annotated[
        str,
        Meta(
            description="`redis://HOST:PORT[/DB]` in production, `sqlite:///FILE` on one machine. Empty is the file "
            "`.streamlearn/registry.db` beside app.toml; STREAMLEARN_REGISTRY is laid over it. A password belongs into "
            "STREAMLEARN_REGISTRY_PASSWORD."
        ),
    ] = ""
    reach_s: Annotated[
        float,
        Meta(gt=0, le=3_600, description="How long one call to the registry may take before it counts as away."),
    ] = 2.0
    poll_ms: Annotated[
        int,
        Meta(
            ge=1,
            le=60_000,
            description="How often a SQLite registry is looked at. Lower it for faster rollbacks, raise it for "
            "less work.",
        ),
    ] = 50
    node_ttl_s: Annotated[
        float,
        Meta(
            gt=0,
            le=86_400,
            description="A node that was not heard of for so long is no node any more. Keep it above three beats.",
        ),
    ] = 15.0
    acks_max: Annotated[int, Meta(ge=1, le=1_000_000, description="Moves of the pointer whose acks are kept.")] = 1_000
    move_acks_max: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000_000,
            description="Acks of one move that are kept: the first. A node that starts again and again "
            "is another one each time. Keep it above the nodes there are.",
        ),
    ] = 10_000
    connections_max: Annotated[
        int,
        Meta(
            ge=2,
            le=10_000,
            description="Connections of one process to Redis. A call waits for a free one, for `reach_s` at most; "
            "whoever waits for a move keeps one for as long.",
        ),
    ] = 32
    notes_max: Annotated[int, Meta(ge=1, le=1_000_000, description="Lines of the audit log that are kept.")] = 10_000


class ReplicaSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """How a serving node follows versions."""

    versions_kept: Annotated[
        int,
        Meta(
            ge=1,
            le=64,
            description="Versions older than the active one that a node can go back to at once. More cost memory for "
            "every row that changed between them.",
        ),
    ] = 3
    beat_s: Annotated[
        float,
        Meta(
            gt=0,
            le=3_600,
            description="How often a node says that it is alive, and looks for new versions in the store.",
        ),
    ] = 3.0
    store_poll_s: Annotated[
        float,
        Meta(gt=0, le=3_600, description="How often the pointer in the store is looked at while the registry is away."),
    ] = 1.0
    stale_s: Annotated[
        float,
        Meta(
            gt=0,
            le=31_536_000,
            description="A node that is behind the pointer for so long, or hears nothing of it, says that it is stale.",
        ),
    ] = 300.0
    retry_first_ms: Annotated[
        int, Meta(ge=1, le=3_600_000, description="The wait before a version that could not be staged is tried again.")
    ] = 200
    retry_ms_max: Annotated[int, Meta(ge=1, le=3_600_000, description="The longest such wait; it doubles.")] = 30_000
    memory_bytes_max: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 50,
            description="Memory that tables may take while two copies of them are there; beyond it a node drains "
            "first. 0 takes what the machine has free.",
        ),
    ] = 0
    drain_s: Annotated[
        float,
        Meta(
            ge=0,
            le=3_600,
            description="How long a node that must give its tables up first says that it drains before it refuses. "
            "Keep it above what a load balancer needs to see it.",
        ),
    ] = 5.0
    close_s: Annotated[
        float,
        Meta(gt=0, le=3_600, description="How long a node that ends waits for what it is staging to stop."),
    ] = 30.0
    stage_threads: Annotated[int, Meta(ge=1, le=128, description="Threads that share the staging of one file.")] = 1
