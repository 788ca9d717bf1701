"""Place: the settings of a loop that runs on one machine, with all its files in one folder."""

from __future__ import annotations

from pathlib import Path

__all__ = ["one_machine_settings"]

# A replay sends a block of requests to nodes at this interval.
_BLOCK_S = 0.05


def one_machine_settings(place: Path, speed: float) -> tuple[str, ...]:
    """Return `--set` settings for a loop in files, on free ports, sized for two processors.

    Args:
        place: The folder for all files.
        speed: Event time per wall time of the replay.
    """
    return (
        f"topics.root=file://{place}/topics",
        "topics.time=event",
        f"versions.store={place}/versions",
        f"registry.url=sqlite://{place}/registry.db",
        f"validation.folder={place}/validation",
        f"features.store=sqlite://{place}/features.db",
        "ingest.runner=prism",
        "publisher.publish_interval_s=3",
        # The version kept for comparison scores requests until the end.
        "replica.versions_kept=64",
        f"replay.heartbeat_s={max(1.0, speed * _BLOCK_S):.0f}",
        "front.listen=127.0.0.1:0",
        "front.http=127.0.0.1:0",
        "front.deadline_ms=20000",
        # Scores of lists whose end an overloaded node leaves out, beside those of requests for what was shown.
        "allowance.candidates_min=4",
        "serving.lanes=1",
        "serving.users_buckets=[4,16]",
        "serving.candidates_buckets=[8,32]",
        "telemetry.listen=",
        "telemetry.log_level=warning",
    )
