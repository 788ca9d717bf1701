"""FrontMeters: the metrics of what waits in a front; versions' own figures are in the protocol's statistics."""

from __future__ import annotations

from typing import Any

from streamlearn.settings.front import FrontSettings
from streamlearn.telemetry import gauge

__all__ = ["FrontMeters"]


class FrontMeters:
    """Figures of a front.

    Args:
        front: The native front.
        settings: Its bounds.
    """

    def __init__(self, front: Any, settings: FrontSettings) -> None:
        self._front, self._settings = front, settings
        self.requests = gauge("serving", "waiting", "requests", "Requests that wait for a lane")
        self.full = gauge(
            "serving",
            "waiting",
            "ratio",
            "Waiting requests or candidates, whichever is larger, as a share of their limit",
        )
        self.backlog = gauge("serving", "backlog", "seconds", "Predicted time to finish all waiting requests")
        self.busy = gauge("serving", "lanes_busy", "ratio", "Busy lanes as a share of all lanes")

    def measure(self, lanes: int) -> None:
        """Set them.

        Args:
            lanes: How many lanes there are.
        """
        requests, candidates, busy, backlog_s = self._front.figures()
        settings = self._settings
        self.requests.set(requests)
        self.full.set(max(requests / settings.requests_max, candidates / settings.waiting_candidates_max))
        self.backlog.set(backlog_s)
        self.busy.set(busy / max(lanes, 1))
