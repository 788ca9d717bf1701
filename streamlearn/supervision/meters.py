"""Meters: metrics of members: their states, restarts and hangs, and how near their limits are."""

from __future__ import annotations

from collections.abc import Sequence

from streamlearn.settings.up import UpSettings
from streamlearn.supervision.course import Standing, State
from streamlearn.supervision.log import MemberLog
from streamlearn.telemetry import counter, gauge

__all__ = ["Meters"]


class Meters:
    """Metrics of one `streamlearn up`."""

    def __init__(self, settings: UpSettings) -> None:
        self._settings = settings
        process = ("process",)
        help_state = "1 for the current state of the process."
        self._states = gauge("supervision", "state", "processes", help_state, ("process", "state"))
        self._restarts = counter("supervision", "restarts", "Restarts of the process.", process)
        help_ratio = "Restarts in the current restart window, as a share of up.restarts_max."
        self._ratio = gauge("supervision", "restarts", "ratio", help_ratio, process)
        help_hangs = "Times the process was ended because it gave no sign of life for too long."
        self._hangs = counter("supervision", "hangs", help_hangs, process)
        help_silence = "Time without a sign of life, as a share of its limit."
        self._silence = gauge("supervision", "silence", "ratio", help_silence, process)
        help_lost = "Log lines of the process that could not be written."
        self._lost = counter("supervision", "log_lines_lost", help_lost, process)
        self._before: dict[tuple[str, str], int] = {}
        self._shown: dict[str, State] = {}

    def tell(self, standings: Sequence[Standing], logs: dict[str, MemberLog], now_s: float) -> None:
        """Set the metrics of all members; `now_s` is on the course's clock."""
        for standing in standings:
            name = standing.member.name
            if self._shown.get(name) is not standing.state:  # `tell` is called twice a second
                self._shown[name] = standing.state
                for state in State:
                    self._states.labels(name, str(state)).set(standing.state is state)
            recent = sum(now_s - at_s < self._settings.restarts_window_s for at_s in standing.recent_s)
            self._ratio.labels(name).set(recent / max(1, self._settings.restarts_max))
            is_limited = standing.state is State.RUNNING and standing.silence_s_max > 0
            self._silence.labels(name).set(standing.silent_s / standing.silence_s_max if is_limited else 0.0)
            counts = ((self._restarts, standing.restarts), (self._hangs, standing.hangs))
            for metric, total in (*counts, (self._lost, logs[name].lost_lines)):
                key = (str(metric), name)
                metric.labels(name).inc(total - self._before.get(key, 0))
                self._before[key] = total
