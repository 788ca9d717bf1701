"""Metrics of near-line retrieval."""

from __future__ import annotations

from dataclasses import asdict

from streamlearn.nearline.nearline_loop import NearlineCounts
from streamlearn.telemetry import counter, gauge

__all__ = ["NearlineMeters"]

_SKIPPED = ("unknown", "wrong", "postponed", "messages_bad")


class NearlineMeters:
    """Counts what a loop has done, and how far it is behind."""

    def __init__(self) -> None:
        self._last = NearlineCounts()
        self._refreshed = counter("nearline", "lists", "Lists that were found for users who acted.")
        help = (
            "Users without a new list: none of their impressions is known, or a node refused the request as wrong, or "
            "nodes failed at it twice; requests that no node could answer at the time; messages that cannot be read."
        )
        self._skipped = counter("nearline", "skipped", help, ["reason"])
        self._behind = gauge("nearline", "behind", "seconds", "Age of the oldest action whose user has no new list.")

    def set(self, counts: NearlineCounts, behind_s: float) -> None:
        """Take the loop's counts so far."""
        now, last = asdict(counts), asdict(self._last)
        self._refreshed.inc(now["refreshed"] - last["refreshed"])
        for reason in _SKIPPED:
            self._skipped.labels(reason).inc(now[reason] - last[reason])
        self._last = NearlineCounts(**now)
        self._behind.set(behind_s)
