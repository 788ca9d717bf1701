"""FrontMeters: metrics of waiting requests, padding and the shadow version. `/sizes` and `/shadow` have the details."""

from __future__ import annotations

from typing import Any

from streamlearn.settings.front import FrontSettings
from streamlearn.struct_decoder import from_json
from streamlearn.telemetry import counter, gauge

__all__ = ["FrontMeters", "ShadowMeters"]

_OUTCOMES = ("scored", "dropped", "failed")


class FrontMeters:
    """Figures of a native front, with its bounds in `settings`."""

    def __init__(self, front: Any, settings: FrontSettings) -> None:
        self._front, self._settings = front, settings
        self._requests = gauge("serving", "waiting", "requests", "Requests that wait for a lane")
        self._full = gauge(
            "serving",
            "waiting",
            "ratio",
            "Waiting requests or candidates, whichever is larger, as a share of their limit",
        )
        self._backlog = gauge("serving", "backlog", "seconds", "Predicted time to finish all waiting requests")
        self._busy = gauge("serving", "lanes_busy", "ratio", "Busy lanes as a share of all lanes")
        self._run = counter("serving", "rows", "Rows in the runs of a graph, padding included", ["graph"])
        self._padding = counter("serving", "padding_rows", "Rows of padding in the runs of a graph", ["graph"])
        self._rows = ((0, 0), (0, 0))

    def measure(self, lanes: int) -> None:
        """Set the gauges for a node with this many lanes, and count the rows since the last call."""
        figures, settings = self._front.figures(), self._settings
        self._requests.set(figures.requests)
        full = figures.requests / settings.requests_max, figures.candidates / settings.waiting_candidates_max
        self._full.set(max(full))
        self._backlog.set(figures.backlog_s)
        self._busy.set(figures.lanes_busy / max(lanes, 1))
        rows = self._front.rows()
        for graph, (run, padding), before in zip(("user", "score"), rows, self._rows, strict=True):
            self._run.labels(graph).inc(run - before[0])
            self._padding.labels(graph).inc(padding - before[1])
        self._rows = rows


class ShadowMeters:
    """How far the scores of the shadow version are from those of the active one, as the native front counts it."""

    def __init__(self, front: Any) -> None:
        self._front = front
        self._requests = counter(
            "serving", "shadow_requests", "Answered requests selected for the shadow version", ["outcome"]
        )
        self._waiting = gauge(
            "serving", "shadow_waiting", "requests", "Answered requests that wait for the shadow version"
        )
        help = "Mean difference between the probabilities of the two versions"
        self._mean = gauge("serving", "shadow_difference", "ratio", help, ["output"])
        help_max = "Largest difference between the probabilities of the two versions"
        self._largest = gauge("serving", "shadow_difference_max", "ratio", help_max, ["output"])
        help_order = "Share of requests whose top candidates the two versions order differently"
        self._reordered = gauge("serving", "shadow_reordered", "ratio", help_order, ["output"])
        self._before = dict.fromkeys(_OUTCOMES, 0)

    def measure(self) -> None:
        """Count the shadow requests since the last call, and set the differences."""
        figures: dict[str, Any] = from_json(self._front.shadow(), dict[str, Any])
        for outcome in _OUTCOMES:
            self._requests.labels(outcome).inc(figures[outcome] - self._before[outcome])
            self._before[outcome] = figures[outcome]
        self._waiting.set(figures["waiting"])
        if not figures["compared"]:
            return
        for output, differences in figures["outputs"].items():
            self._mean.labels(output).set(differences["mean_difference"])
            self._largest.labels(output).set(differences["max_difference"])
            self._reordered.labels(output).set(differences["reordered"] / figures["compared"])
