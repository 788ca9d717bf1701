"""Lanes: threads that have what a source hands them scored, one execution at a time each, where each has its place."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from streamlearn.niceness import give_way
from streamlearn.serving.graphs.execution_meters import ExecutionMeters
from streamlearn.serving.lanes.lane_kind import LanePlace
from streamlearn.serving.lanes.work import Work

__all__ = ["Lanes", "Scores", "Source"]

_LOG = logging.getLogger("streamlearn.serving.Lanes")


class Source(Protocol):
    """Where lanes take work and hand it back; every method is called by all of them at once."""

    def take(self, lane: int) -> Work | None:
        """The next work of a lane, waiting for it; None when there is no more, which ends the lane."""
        ...

    def leave(self, lane: int) -> None:
        """Called when a lane begins anew: it takes nothing until it does again, which may be never."""
        ...

    def give(self, work: Work, scores: npt.NDArray[np.float32]) -> None:
        """Called with the scores of work that was taken, float32[candidates, labels], rows of padding among them."""
        ...

    def fail(self, work: Work, error: Exception) -> None:
        """Called with work that was taken and could not be scored; other work is not touched by it."""
        ...


class Scores(Protocol):
    """What scores work, such as `Executables`."""

    def score(self, place: Any, work: Work) -> npt.NDArray[np.float32]:
        """See `Executables.score`."""
        ...


class Lanes:
    """Lanes at work; they end when their source has no more.

    Work that is taken is given back or failed, once. When a source itself raises, or a place cannot be entered, the
    lane begins anew: `failures_max` times in a row, without a score between, then it ends.

    Args:
        source: Where work comes from.
        scores: What runs it.
        places: That of each lane.
        failures_max: How often in a row a lane begins anew.
        nice: How far they give way to other threads.
    """

    def __init__(
        self, source: Source, scores: Scores, places: Sequence[LanePlace], failures_max: int, *, nice: int = 0
    ) -> None:
        self._source, self._scores, self._failures_max, self._nice = source, scores, failures_max, nice
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
        """How many lanes there are yet."""
        return sum(thread.is_alive() for thread in self._threads)

    @property
    def held_s(self) -> float:
        """For how long the work has been in hand that has been longest."""
        now_s = time.monotonic()
        return max((now_s - taken_s for taken_s in self._taken_s if taken_s is not None), default=0.0)

    def join(self, wait_s_max: float) -> bool:
        """Wait for lanes whose source has no more; gives whether all have ended."""
        for thread in self._threads:
            thread.join(wait_s_max / len(self._threads))
        return not self.alive

    def _lane(self, number: int, place: LanePlace) -> None:
        give_way(self._nice)
        failures = 0
        while failures <= self._failures_max:
            try:
                with place.entered():
                    while (was_scored := self._next(number, place)) is not None:
                        failures = 0 if was_scored else failures
            except Exception:
                failures += 1
                self._source.leave(number)
                self._meters.lane_failures.inc()
                _LOG.exception("restarting a lane on %s, restart %d of %d", place.name, failures, self._failures_max)
            else:
                return
        _LOG.error("giving up a lane on %s: it failed %d times in a row", place.name, failures)

    def _next(self, number: int, place: LanePlace) -> bool | None:
        """Do what comes next, of which nothing is kept; whether it was scored, and None when there is no more."""
        work = self._source.take(number)
        if work is None:
            return None
        self._taken_s[number] = time.monotonic()
        try:
            scores = self._scores.score(place, work)
        except Exception as error:
            self._meters.executions.labels("failed").inc()
            self._source.fail(work, error)
            return False
        finally:
            self._taken_s[number] = None
        self._meters.executions.labels("scored").inc()
        self._source.give(work, scores)
        return True
