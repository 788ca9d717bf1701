"""ReplicaMeters: the metrics of a node that follows versions."""

from __future__ import annotations

from streamlearn.telemetry import AGES_S, counter, gauge, histogram

__all__ = ["ReplicaMeters"]


class ReplicaMeters:
    """Figures of the nodes of this process; with several, the gauges are those of the last one that said."""

    def __init__(self) -> None:
        self.staged = gauge("serving", "staged", "versions", "Versions that could answer at once")
        self.staged_max = gauge("serving", "staged_max", "versions", "The most of them that are kept on purpose")
        self.active = gauge("serving", "active", "version", "The version that answers")
        self.behind = gauge("serving", "behind", "seconds", "Since when the node is behind the pointer")
        self.readers = gauge("serving", "reading", "requests", "Readers that hold a version")
        self.freshness = histogram(
            "serving",
            "freshness",
            "seconds",
            "How old what is answered from is: now less the event time learned",
            AGES_S,
        )
        self.rows = counter("serving", "staged_rows", "Rows and keys staged, verified")
        self.seconds = counter("serving", "staging_seconds", "Time spent staging them")
        self.moves = counter("serving", "moves", "Moves of the pointer that were acted on")
        self.rebuilds = counter("serving", "rebuilds", "Tables built anew from a base")
        self.passed = counter("serving", "passed_over", "Versions that were staged and let go without an answer")
        self.defects = counter("serving", "defects", "What was wrong with versions", ["defect"])
