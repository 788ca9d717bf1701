"""Lanes: threads that run what a source hands them, one execution at a time each, on the device each of them has."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from streamlearn.serving.execution_meters import ExecutionMeters
from streamlearn.serving.tf_calls import Place
from streamlearn.serving.work import Work

__all__ = ["Lanes", "Scores", "Source"]

_LOG = logging.getLogger("streamlearn.serving.Lanes")


class Source(Protocol):
    """Where lanes take work and hand it back; every method is called by all of them at once."""

    def take(self) -> Work | None:
        """The next work, waiting for it; None when there is no more, which ends the lane that is told so."""
        ...

    def give(self, work: Work, scores: npt.NDArray[np.float32]) -> None:
        """Called with the scores of work that was taken, float32[candidates, labels], rows of padding among them."""
        ...

    def fail(self, work: Work, error: Exception) -> None:
        """Called with work that was taken and could not be scored; other work is not touched by it."""
        ...


class Scores(Protocol):
    """What scores work, such as `Executables`."""

    def score(self, place: Place, work: Work) -> npt.NDArray[np.float32]:
        """See `Executables.score`."""
        ...


class Lanes:
    """Lanes at work; they end when their source has no more.

    Work that is taken is given back or failed, once. When a source itself raises, its lane begins anew: `failures_max`
    times in a row, then it ends.

    Args:
        source: Where work comes from.
        scores: What runs it.
        places: The device of each lane.
        failures_max: How often in a row a lane begins anew.
    """

    def __init__(self, source: Source, scores: Scores, places: Sequence[Place], failures_max: int) -> None:
        self._source, self._scores, self._failures_max = source, scores, failures_max
        self._meters = ExecutionMeters()
        self._threads = [
            threading.Thread(target=self._lane, args=(place,), name=f"lane-{number}", daemon=True)
            for number, place in enumerate(places)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def alive(self) -> int:
        """How many lanes there are yet."""
        return sum(thread.is_alive() for thread in self._threads)

    def join(self, wait_s_max: float) -> bool:
        """Wait for lanes whose source has no more; gives whether all have ended."""
        for thread in self._threads:
            thread.join(wait_s_max / len(self._threads))
        return not self.alive

    def _lane(self, place: Place) -> None:
        failures = 0
        # What TensorFlow makes of a thread's own accord is made there too, and not on the first device.
        with tf.device(place.name):
            while failures <= self._failures_max:
                try:
                    while (work := self._source.take()) is not None:
                        self._do(place, work)
                        failures = 0
                except Exception:
                    failures += 1
                    self._meters.lane_failures.inc()
                    _LOG.exception("a lane on %s begins anew, time %d of %d", place.name, failures, self._failures_max)
                else:
                    return
        _LOG.error("a lane on %s ends: it failed %d times in a row", place.name, failures)

    def _do(self, place: Place, work: Work) -> None:
        try:
            scores = self._scores.score(place, work)
        except Exception as error:
            self._meters.executions.labels("failed").inc()
            self._source.fail(work, error)
        else:
            self._meters.executions.labels("scored").inc()
            self._source.give(work, scores)
