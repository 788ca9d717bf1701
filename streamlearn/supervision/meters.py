"""Meters: what prometheus is told of members: their states, restarts, hangs, and how near bounds are."""

from __future__ import annotations

from collections.abc import Sequence

from streamlearn.settings.up import UpSettings
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
            "supervision", "state", "processes", "1 for the current state of the process.", ("process", "state")
        )
        self._restarts = counter("supervision", "restarts", "Restarts of the process.", process)
        self._ratio = gauge(
            "supervision",
            "restarts",
            "ratio",
            "Restarts in the current restart window, as a share of up.restarts_max.",
            process,
        )
        self._hangs = counter(
            "supervision", "hangs", "Times the process was ended because it gave no sign of life for too long.", process
        )
        self._silence = gauge(
            "supervision", "silence", "ratio", "Time without a sign of life, as a share of its limit.", process
        )
        self._lost = counter(
            "supervision", "log_lines_lost", "Log lines of the process that could not be written.", process
        )
        self._before: dict[tuple[str, str], int] = {}

    def tell(self, standings: Sequence[Standing], logs: dict[str, MemberLog], now_s: float) -> None:
        """Tell how all stand."""
        for one in standings:
            name = one.member.name
            for state in State:
                self._states.labels(name, str(state)).set(one.state is state)
            recent = sum(now_s - at_s < self._settings.restarts_window_s for at_s in one.recent_s)
            self._ratio.labels(name).set(recent / max(1, self._settings.restarts_max))
            listens = one.state is State.RUNNING and one.silence_s_max > 0
            self._silence.labels(name).set(one.silent_s / one.silence_s_max if listens else 0.0)
            lost_lines = logs[name].lost_lines
            for counted, total in ((self._restarts, one.restarts), (self._hangs, one.hangs), (self._lost, lost_lines)):
                key = (str(counted), name)
                counted.labels(name).inc(total - self._before.get(key, 0))
                self._before[key] = total
