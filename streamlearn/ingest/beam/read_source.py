"""Reading: Beam's step that drives a source; no bundle waits for its finalization, and readers are the process's.

Beam's own registers each bundle to be finalized, and a worker keeps a bundle's step, with the reader that it has, until
the runner does that: Flink at its checkpoints. Until then every bundle would be a new step and a new reader, beside all
those before it. Finalizing commits nothing here, so none is asked for. What is taken from Beam is private to it; the
release is pinned for it.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.io.unbounded_source import (
    _PROVIDER,
    UnboundedSource,
    _ReaderCache,
    _ReadFromUnboundedSourceDoFn,
    _unwrap_tracker,
)
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator

from streamlearn.ingest.beam.rounds import ROUNDS
from streamlearn.topics.topic import pause_s_of

__all__ = ["ReadSource"]

_TRACKER: Any = beam.DoFn.RestrictionParam(_PROVIDER)
_ESTIMATOR: Any = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider())  # type: ignore[no-untyped-call]
_LOCK = threading.Lock()
# Looks without elements double the time to the next one: up to so many times what was asked for, and never beyond that
# before a silence was so long that a longer wait adds little to it.
_QUIET_POLLS_MAX, _QUIET_POLL_S_MAX, _SILENT_POLL_S_MAX = 4, 0.2, 0.5


class _Unasked:
    """Takes what is to be called once a bundle is final, and does not ask for it."""

    def register(self, callback: object) -> None:
        """Nothing: it commits nothing."""


class _Parked:
    """The readers of this process that stand between two bundles, as long as any step is there."""

    def __init__(self) -> None:
        self._steps = 0
        self._cache: Any = None

    def enter(self) -> Any:
        """One more step; where readers are found and left."""
        with _LOCK:
            self._steps += 1
            if self._cache is None:
                self._cache = _ReaderCache()
            return self._cache

    def leave(self) -> None:
        """One step less; the last closes them."""
        with _LOCK:
            self._steps -= 1
            cache = None if self._steps else self._cache
            if cache is not None:
                self._cache = None
        if cache is not None:
            cache.close_all()


_PARKED = _Parked()


class _Read(_ReadFromUnboundedSourceDoFn):
    """Beam's step, in all but these two, and in whose source it reads.

    And each look is a bundle, so a reader that gives nothing has fewer of them.
    """

    def __init__(self, renewed: Callable[[Any], Any], poll_s: float, elements_max: int, seconds_max: float) -> None:
        super().__init__(poll_s, elements_max, seconds_max)
        self._renewed = renewed
        self._poll_s = poll_s
        self._quiet_s = max(poll_s, min(_QUIET_POLLS_MAX * poll_s, _QUIET_POLL_S_MAX))
        self._silence_s = 0.0

    def setup(self) -> None:
        """See Beam."""
        self._reader_cache = _PARKED.enter()

    def teardown(self) -> None:
        """See Beam."""
        if self._reader_cache is not None:
            self._reader_cache = None
            _PARKED.leave()

    @beam.DoFn.unbounded_per_element()  # type: ignore[no-untyped-call,untyped-decorator]
    def process(
        self,
        unused_element: Any,
        tracker: Any = _TRACKER,
        watermark_estimator: Any = _ESTIMATOR,
    ) -> Iterator[Any]:
        """See Beam."""
        ROUNDS.note()
        inner = _unwrap_tracker(tracker)
        assert inner is not None
        found = inner.current_restriction()
        renewed = self._renewed(found.source)
        if renewed is not found.source:
            inner._restriction = dataclasses.replace(found, source=renewed)
        self._silence_s += self._poll_interval
        quiet_s = pause_s_of(self._silence_s, self._quiet_s, _SILENT_POLL_S_MAX)
        self._poll_interval = min(2 * self._poll_interval, quiet_s)  # asked for once nothing was found
        for element in super().process(unused_element, _Unasked(), tracker, watermark_estimator):
            self._poll_interval, self._silence_s = self._poll_s, 0.0
            yield element


class ReadSource(beam.PTransform[Any, Any]):
    """Reads a source; what it gives are the source's elements.

    Args:
        source: What is read.
        renewed: Gives the source to read for one that a runner kept, which may be of a job before; itself where it is
            not.
        poll_s: How soon a reader without elements is looked at again.
        elements_max: Of one bundle.
        seconds_max: Of one bundle.
    """

    def __init__(
        self,
        source: UnboundedSource,
        renewed: Callable[[Any], Any],
        *,
        poll_s: float,
        elements_max: int,
        seconds_max: float,
    ) -> None:
        super().__init__()
        self._source = source
        self._step = _Read(renewed, poll_s, elements_max, seconds_max)

    def expand(self, pbegin: Any) -> Any:
        """See Beam."""
        read: Any = beam.ParDo(self._step)  # type: ignore[no-untyped-call]
        source: Any = beam.Create([self._source])  # type: ignore[no-untyped-call]
        return pbegin | "Create" >> source | "ReadUnbounded" >> read

    def _infer_output_coder(self, input_type: Any = None, input_coder: Any = None) -> Any:
        return self._source.default_output_coder()
