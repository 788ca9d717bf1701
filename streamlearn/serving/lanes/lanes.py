"""Lanes: threads that take work from a source and have it scored, one execution at a time each."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from streamlearn.niceness import give_way
from streamlearn.serving.graphs.execution_meters import ExecutionMeters
from streamlearn.serving.lanes.lane_kind import LanePlace, Work

__all__ = ["Lanes", "Source"]

_LOG = logging.getLogger("streamlearn.serving.Lanes")
_Score = Callable[[Any, Work], npt.NDArray[np.float32]]


class Source(Protocol):
    """The source of work. All lanes call its methods at the same time."""

    def take(self, lane: int) -> Work | None:
        """Wait for the next work of a lane and return it; None ends the lane."""

    def leave(self, lane: int) -> None:
        """Note that a lane restarts. It takes nothing until it calls `take` again, which may be never."""

    def give(self, work: Work, scores: npt.NDArray[np.float32]) -> None:
        """Receive the scores of work that was taken, float32[candidates, labels], with the rows of padding."""

    def fail(self, work: Work, error: Exception) -> None:
        """Receive work that was taken and could not be scored; other work is not affected."""


class Lanes:
    """Running lanes; they end when their source returns None.

    Work that is taken is given back or failed, once. If the source raises, or a place cannot be entered, the lane
    restarts. It ends after more than `failures_max` such failures in a row without scores in between. There is a lane
    for each of `places`, and its thread has the niceness `nice`. `score` scores work at a place, as `Executables.score`
    does.
    """

    def __init__(
        self, source: Source, score: _Score, places: Sequence[LanePlace], failures_max: int, *, nice: int = 0
    ) -> None:
        self._source, self._score, self._failures_max, self._nice = source, score, failures_max, nice
        self._meters = ExecutionMeters()
        self._taken_s: list[float | None] = [None] * len(places)
        self._threads = [
            threading.Thread(target=self._lane, args=(number, place), name=f"lane-{number}", daemon=True)
            for number, place in enumerate(places)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def alive(self) -> int:
        """The number of lanes that have not ended."""
        return sum(thread.is_alive() for thread in self._threads)

    @property
    def held_s(self) -> float:
        """The longest time that a lane has had its present work."""
        now_s = time.monotonic()
        return max((now_s - taken_s for taken_s in self._taken_s if taken_s is not None), default=0.0)

    def join(self, wait_s_max: float) -> bool:
        """Wait for the end of all lanes and return whether they ended."""
        for thread in self._threads:
            thread.join(wait_s_max / len(self._threads))
        return not self.alive

    def _lane(self, number: int, place: LanePlace) -> None:
        give_way(self._nice)
        failures = 0
        while failures <= self._failures_max:
            try:
                with place.entered():
                    while (is_scored := self._next(number, place)) is not None:
                        failures = 0 if is_scored else failures
            except Exception:
                failures += 1
                self._source.leave(number)
                self._meters.lane_failures.inc()
                _LOG.exception("restarting a lane on %s, restart %d of %d", place.name, failures, self._failures_max)
            else:
                return
        _LOG.error("giving up a lane on %s: it failed %d times in a row", place.name, failures)

    def _next(self, number: int, place: LanePlace) -> bool | None:
        """Take and score the next work, and keep no reference to it. Return whether it was scored; None at the end."""
        work = self._source.take(number)
        if work is None:
            return None
        self._taken_s[number] = time.monotonic()
        try:
            scores = self._score(place, work)
        except Exception as error:
            self._meters.executions.labels("failed").inc()
            self._source.fail(work, error)
            return False
        finally:
            self._taken_s[number] = None
        self._meters.executions.labels("scored").inc()
        self._source.give(work, scores)
        return True
