"""ReadPlan: everything that a worker needs to read a run's events, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from streamlearn.apps import AppFolder, load_app
from streamlearn.ingest.output.progress import Lineage
from streamlearn.ingest.reading.watermark import TimeRules
from streamlearn.settings.ingest import IngestSettings
from streamlearn.topics import AccessSettings, WriterSettings

__all__ = ["ReadPlan"]


@dataclass(frozen=True)
class ReadPlan:
    """The topics, position and limits of a run.

    Attributes:
        progress_url: Empty: reading is not bounded by acknowledgements.
        partitions: Of each event topic.
        run: The run's number.
        lineage: How samples are joined; it has the ids of both topics.
        start_ms: T0: older impressions make no rows. None: read everything.
        accept_lost: Whether to begin even if records from `start_ms` on may have been deleted.
        app: The application's folder on the workers. Empty: only the timestamps of records are checked.
        changes: The values of `--set`.
        early_ms: How long before T0 the actions begin: they may precede their impressions.
        context_ms: How long before T0 reading begins: impressions there claim their items, if records remain.
        writing: How the progress topic is written.
        read: What earlier runs have read of the topics; see `Standing.read`.
    """

    impressions_url: str
    actions_url: str
    progress_url: str
    partitions: int
    access: AccessSettings
    run: int
    lineage: Lineage
    start_ms: int | None
    accept_lost: bool
    rules: TimeRules
    settings: IngestSettings
    app: str = ""
    changes: tuple[str, ...] = ()
    early_ms: int = 0
    context_ms: int = 0
    writing: WriterSettings = field(default_factory=WriterSettings)
    read: Mapping[int, tuple[int, int]] = field(default_factory=dict, hash=False)

    def load_app(self) -> AppFolder:
        """Load the application, as each worker does."""
        return load_app(Path(self.app), list(self.changes))

    @property
    def run_key(self) -> tuple[str, int]:
        """The run, among those of this process."""
        return self.progress_url, self.run

    @property
    def read_from_ms(self) -> int | None:
        """The event time from which records are read; None: read everything."""
        return None if self.start_ms is None else self.start_ms - self.context_ms

    def times_ms(self, is_actions: bool) -> tuple[int, int] | None:
        """Return from when on a run needs every record of a topic, and when it begins to read; None: everything."""
        if self.start_ms is None:
            return None
        early_ms, context_ms = (self.early_ms, 0) if is_actions else (0, self.context_ms)
        return self.start_ms - early_ms, self.start_ms - early_ms - context_ms

    @property
    def lead_ms(self) -> int:
        """Event time that one topic may be ahead of the other."""
        return round(self.settings.lead_s * 1000)

    @property
    def fetch_wait_ms(self) -> int:
        """The longest wait of one read without records."""
        return max(1, round(self.settings.fetch_wait_s * 1000))

    @property
    def read_ahead_bytes(self) -> int:
        """The most unacknowledged bytes of one partition."""
        return max(1, self.settings.read_ahead_bytes // self.partitions)
