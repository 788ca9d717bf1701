"""ShadowMeters: the metrics of a version in shadow; all that is known of it is at a node's `/shadow`."""

from __future__ import annotations

from typing import Any

from streamlearn.struct_decoder import from_json
from streamlearn.telemetry import counter, gauge

__all__ = ["ShadowMeters"]

_OUTCOMES = ("scored", "dropped", "failed")


class ShadowMeters:
    """How far a version in shadow is from the one that answers.

    Args:
        front: The native front.
    """

    def __init__(self, front: Any) -> None:
        self._front = front
        self.requests = counter(
            "serving", "shadow_requests", "Answered requests selected for the shadow version", ["outcome"]
        )
        self.waiting = gauge(
            "serving", "shadow_waiting", "requests", "Answered requests that wait for the shadow version"
        )
        self.mean = gauge(
            "serving",
            "shadow_difference",
            "ratio",
            "Mean difference between the probabilities of the two versions",
            ["output"],
        )
        self.largest = gauge(
            "serving",
            "shadow_difference_max",
            "ratio",
            "Largest difference between the probabilities of the two versions",
            ["output"],
        )
        self.reordered = gauge(
            "serving",
            "shadow_reordered",
            "ratio",
            "Share of requests whose top candidates the two versions order differently",
            ["output"],
        )
        self._before = dict.fromkeys(_OUTCOMES, 0)

    def measure(self) -> None:
        """Count what became of shadow work since it was last measured, and set how far scores are apart."""
        found: dict[str, Any] = from_json(self._front.shadow(), dict[str, Any])
        for outcome in _OUTCOMES:
            self.requests.labels(outcome).inc(found[outcome] - self._before[outcome])
            self._before[outcome] = found[outcome]
        self.waiting.set(found["waiting"])
        if not found["compared"]:
            return
        for output, one in found["outputs"].items():
            self.mean.labels(output).set(one["mean_difference"])
            self.largest.labels(output).set(one["max_difference"])
            self.reordered.labels(output).set(one["reordered"] / found["compared"])
