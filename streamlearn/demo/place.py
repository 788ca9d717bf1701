"""Place: where the demo's loop keeps what it keeps, and how large its parts are, as settings."""

from __future__ import annotations

from pathlib import Path

__all__ = ["on_one_machine"]

# A replay asks nodes once in so long.
_BLOCK_S = 0.05


def on_one_machine(place: Path, speed: float) -> tuple[str, ...]:
    """What `--set` says of a loop in files, on free ports, and such that two processors do for all of it.

    Args:
        place: A folder for all of it.
        speed: Event time per wall time that is replayed.
    """
    return (
        f"topics.root=file://{place}/topics",
        "topics.time=event",
        f"versions.store={place}/versions",
        f"registry.url=sqlite://{place}/registry.db",
        f"validation.folder={place}/validation",
        "ingest.runner=prism",
        "publisher.publish_interval_s=3",
        # The version that fresh ones are compared with is asked for until the end.
        "replica.versions_kept=64",
        f"replay.heartbeat_s={max(1.0, speed * _BLOCK_S):.0f}",
        "front.listen=127.0.0.1:0",
        "front.http=127.0.0.1:0",
        "front.deadline_ms=20000",
        "serving.lanes=1",
        "serving.users_buckets=[4,16]",
        "serving.candidates_buckets=[8,32]",
        "telemetry.metrics_port=0",
        "telemetry.log_level=warning",
    )
