"""Meters: the metrics of a publisher. It decides nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from streamlearn.clock import Clock
from streamlearn.telemetry import counter, gauge, histogram

__all__ = ["Meters"]

_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


class Meters:
    """The metrics of the publisher of this process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._committed_s = clock.monotonic_s()
        self.seconds = histogram(
            "publisher", "stage", "seconds", "Seconds that a version spent in each stage",
            buckets=_SECONDS, labels=["stage"],
        )  # fmt: skip
        self.versions = counter("publisher", "versions", "Versions by outcome", labels=["outcome"])
        for outcome in ("committed", "passed", "unscored", "rejected"):
            self.versions.labels(outcome)  # present from the start: Prometheus sees no rise in a new series
        self.failures = counter("publisher", "failures", "Cuts that failed; their changes go into the next version")
        self.skipped = counter(
            "publisher", "skipped_ticks", "Ticks skipped because the previous version was still being written"
        )
        self.empty = counter("publisher", "empty_ticks", "Ticks skipped because training had learned nothing")
        self.version = gauge("publisher", "committed", "version", "The newest committed version")
        self.bytes = gauge("publisher", "written", "bytes", "Bytes of the newest committed version")
        self.rows = gauge("publisher", "written", "rows", "Rows of the newest committed version")
        self.failed_ratio = gauge(
            "publisher", "failures_in_a_row", "ratio", "Consecutive failures as a share of failures_max"
        )
        self.compactions = counter("publisher", "compactions", "Requests for a base, by outcome", labels=["outcome"])
        self.cleanups = counter("publisher", "cleanups", "Removals of old versions, by outcome", labels=["outcome"])
        since = gauge("publisher", "since_committed", "seconds", "Time since the last version was committed")
        since.set_function(lambda: self._clock.monotonic_s() - self._committed_s)

    def committed(self, version: int, rows: int, size: int) -> None:
        """Record that a version was committed now."""
        self._committed_s = self._clock.monotonic_s()
        self.version.set(version)
        self.rows.set(rows)
        self.bytes.set(size)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure the time of a stage."""
        begin_s = self._clock.monotonic_s()
        try:
            yield
        finally:
            self.seconds.labels(name).observe(self._clock.monotonic_s() - begin_s)
