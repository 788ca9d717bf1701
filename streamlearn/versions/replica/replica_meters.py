"""ReplicaMeters: the metrics of a node that follows versions."""

from __future__ import annotations

from streamlearn.telemetry import AGES_S, counter, gauge, histogram

__all__ = ["ReplicaMeters"]


class ReplicaMeters:
    """The metrics of the nodes of this process; with several nodes, a gauge has the value of the last one to set it."""

    def __init__(self) -> None:
        self.staged = gauge("serving", "staged", "versions", "Versions staged and ready to answer")
        self.staged_max = gauge("serving", "staged_max", "versions", "Limit of versions kept staged")
        self.active = gauge("serving", "active", "version", "The version that answers")
        self.behind = gauge("serving", "behind", "seconds", "Time for which the node has been behind the pointer")
        self.aside = gauge(
            "serving", "aside", "processes", "1 while another application answers the node's callers, else 0"
        )
        self.readers = gauge("serving", "reading", "requests", "Readers that hold a version")
        self.freshness = histogram(
            "serving", "freshness", "seconds", "Age of the served version: now minus the event time it learned up to",
            AGES_S,
        )  # fmt: skip
        self.rows = counter("serving", "staged_rows", "Rows and keys staged and verified")
        self.seconds = counter("serving", "staging_seconds", "Time spent staging versions")
        self.moves = counter("serving", "moves", "Moves of the pointer carried out")
        self.rebuilds = counter("serving", "rebuilds", "Tables rebuilt from a base")
        self.passed = counter("serving", "passed_over", "Versions staged but dropped before they answered")
        self.defects = counter("serving", "defects", "Defects found in versions", ["defect"])
