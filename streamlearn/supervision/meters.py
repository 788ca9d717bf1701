"""Meters: what prometheus is told of members: their states, restarts, and how near bounds are."""

from __future__ import annotations

from collections.abc import Sequence

from streamlearn.settings import UpSettings
from streamlearn.supervision.course import Standing, State
from streamlearn.supervision.log import MemberLog
from streamlearn.telemetry import counter, gauge

__all__ = ["Meters"]


class Meters:
    """Metrics of one `streamlearn up`.

    Args:
        settings: The bounds.
    """

    def __init__(self, settings: UpSettings) -> None:
        self._settings = settings
        process = ("process",)
        self._states = gauge(
            "supervision", "state", "processes", "1 for the state a process is in.", ("process", "state")
        )
        self._restarts = counter("supervision", "restarts", "Times it was started again.", process)
        self._ratio = gauge(
            "supervision", "restarts", "ratio", "Restarts within up.restarts_window_s, of up.restarts_max.", process
        )
        self._lost = counter("supervision", "log_lines_lost", "Lines that its log could not be written.", process)
        self._before: dict[tuple[str, str], int] = {}

    def tell(self, standings: Sequence[Standing], logs: dict[str, MemberLog], now_s: float) -> None:
        """Tell how all stand."""
        for one in standings:
            name = one.member.name
            for state in State:
                self._states.labels(name, str(state)).set(one.state is state)
            recent = sum(now_s - at_s < self._settings.restarts_window_s for at_s in one.recent_s)
            self._ratio.labels(name).set(recent / max(1, self._settings.restarts_max))
            for counted, total in ((self._restarts, one.restarts), (self._lost, logs[name].lost_lines)):
                key = (str(counted), name)
                counted.labels(name).inc(total - self._before.get(key, 0))
                self._before[key] = total
