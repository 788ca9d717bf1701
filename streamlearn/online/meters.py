"""Metrics of folding."""

from __future__ import annotations

from streamlearn.online.fold import FoldCounts
from streamlearn.telemetry import counter, gauge

__all__ = ["FoldMeters"]

_OUTCOMES = ("folded", "repeated", "unknown")
_BAD = {"message": "messages_bad", "state": "states_bad"}


class FoldMeters:
    """Counts what a loop has folded, and how far it is behind."""

    def __init__(self) -> None:
        self._last = FoldCounts()
        self._outcomes = counter(
            "fold",
            "interactions",
            "Interactions: folded, repeated (as after a restart of ingest), or without a user.",
            ["outcome"],
        )
        self._bad = counter("fold", "unreadable", "Messages and stored states that cannot be read.", ["what"])
        self._behind = gauge("fold", "behind", "records", "Messages of interactions that are not folded yet.")

    def set(self, counts: FoldCounts, behind: int) -> None:
        """Take the loop's counts so far."""
        for name in _OUTCOMES:
            self._outcomes.labels(name).inc(max(0, getattr(counts, name) - getattr(self._last, name)))
        for what, name in _BAD.items():
            self._bad.labels(what).inc(max(0, getattr(counts, name) - getattr(self._last, name)))
        self._last = counts
        self._behind.set(behind)
