"""Meters: what a publisher says of itself to prometheus. It decides nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from streamlearn.clock import Clock
from streamlearn.telemetry import counter, gauge, histogram

__all__ = ["Meters"]

_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


class Meters:
    """The metrics of the publisher of this process.

    Args:
        clock: What time is taken by.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._committed_s = clock.monotonic_s()
        self.seconds = histogram(
            "publisher", "stage", "seconds", "Time of a version by stage", buckets=_SECONDS, labels=["stage"]
        )
        self.versions = counter("publisher", "versions", "Versions by what became of them", labels=["outcome"])
        for outcome in ("committed", "passed", "rejected"):
            self.versions.labels(outcome)  # there from the start: a rise from nothing is none to Prometheus
        self.failures = counter("publisher", "failures", "Cuts that failed, and their interval with them")
        self.skipped = counter("publisher", "skipped_ticks", "Ticks at which the version before was still written")
        self.empty = counter("publisher", "empty_ticks", "Ticks at which nothing had been learned")
        self.version = gauge("publisher", "committed", "version", "The newest committed version")
        self.bytes = gauge("publisher", "written", "bytes", "Bytes of the newest committed version")
        self.rows = gauge("publisher", "written", "rows", "Rows of the newest committed version")
        self.failed_ratio = gauge("publisher", "failures_in_a_row", "ratio", "Share of failures_max that failed")
        self.compactions = counter("publisher", "compactions", "Bases asked for, by outcome", labels=["outcome"])
        since = gauge("publisher", "since_committed", "seconds", "Time since a version was committed")
        since.set_function(lambda: self._clock.monotonic_s() - self._committed_s)

    def committed(self, version: int, rows: int, size: int) -> None:
        """A version was committed now."""
        self._committed_s = self._clock.monotonic_s()
        self.version.set(version)
        self.rows.set(rows)
        self.bytes.set(size)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Take the time of a stage."""
        begin_s = self._clock.monotonic_s()
        try:
            yield
        finally:
            self.seconds.labels(name).observe(self._clock.monotonic_s() - begin_s)
