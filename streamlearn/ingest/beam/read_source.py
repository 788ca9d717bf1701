"""ReadSource: the step that drives a source. Unlike Beam's, no bundle waits for finalization, and readers are shared.

Beam's own step registers each bundle for finalization, and a worker keeps the bundle's step, with its reader, until the
runner finalizes it: Flink does so at its checkpoints. Until then every bundle would make a new step and a new reader.
Finalizing commits nothing here, so this step requests none. The names taken from Beam are private to it; the release is
pinned for them.
"""

from __future__ import annotations

import dataclasses
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
from streamlearn.ingest.process_registry import ProcessRegistry
from streamlearn.settings.ingest import IngestSettings
from streamlearn.topics.topic import pause_s_of

__all__ = ["ReadSource"]

_TRACKER: Any = beam.DoFn.RestrictionParam(_PROVIDER)
_ESTIMATOR: Any = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider())  # type: ignore[no-untyped-call]
# Each poll without elements doubles the time to the next one, up to this multiple of `poll_s`; and further only after a
# silence so long that a longer wait adds little to it.
_QUIET_POLLS_MAX, _QUIET_POLL_S_MAX, _SILENT_POLL_S_MAX = 4, 0.2, 4.0


class _NoFinalization:
    """Takes callbacks for a bundle's finalization, and drops them."""

    def register(self, callback: object) -> None:
        """Drop the callback: it would commit nothing."""


# The idle readers of this process, between two bundles. All its steps share them.
_IDLE_READERS: ProcessRegistry[str, Any] = ProcessRegistry(lambda cache: cache.close_all())
_CACHE = "readers"


class _Read(_ReadFromUnboundedSourceDoFn):
    """Beam's step, without finalization and with the source that `renewed` returns.

    Each poll is a bundle, so a reader without elements is polled less often.
    """

    def __init__(self, renewed: Callable[[Any], Any], settings: IngestSettings) -> None:
        poll_s = settings.poll_s
        super().__init__(poll_s, settings.bundle_blobs_max, settings.bundle_s_max)
        self._renewed, self._poll_s = renewed, poll_s
        self._quiet_s = max(poll_s, min(_QUIET_POLLS_MAX * poll_s, _QUIET_POLL_S_MAX))
        self._silence_s = 0.0

    def setup(self) -> None:
        """See Beam."""
        self._reader_cache = _IDLE_READERS.acquire(_CACHE, _ReaderCache)

    def teardown(self) -> None:
        """See Beam."""
        if self._reader_cache is not None:
            self._reader_cache = None
            _IDLE_READERS.release(_CACHE)

    @beam.DoFn.unbounded_per_element()  # type: ignore[no-untyped-call,untyped-decorator]
    def process(
        self, unused_element: Any, tracker: Any = _TRACKER, watermark_estimator: Any = _ESTIMATOR
    ) -> Iterator[Any]:
        """See Beam."""
        ROUNDS.set()
        inner = _unwrap_tracker(tracker)
        assert inner is not None
        kept = inner.current_restriction()
        renewed = self._renewed(kept.source)
        if renewed is not kept.source:
            inner._restriction = dataclasses.replace(kept, source=renewed)
        self._silence_s += self._poll_interval
        quiet_s = pause_s_of(self._silence_s, self._quiet_s, _SILENT_POLL_S_MAX)
        self._poll_interval = min(2 * self._poll_interval, quiet_s)  # Beam reads it once there is no element
        for element in super().process(unused_element, _NoFinalization(), tracker, watermark_estimator):
            self._poll_interval, self._silence_s = self._poll_s, 0.0
            yield element


class ReadSource(beam.PTransform[Any, Any]):
    """Reads a source; its elements are the source's.

    `renewed` returns the source to read instead of one that a runner kept, which may be of an earlier job. The settings
    have how often a reader without elements is polled, and the bounds of a bundle.
    """

    def __init__(self, source: UnboundedSource, renewed: Callable[[Any], Any], settings: IngestSettings) -> None:
        super().__init__()
        self._source = source
        self._step = _Read(renewed, settings)

    def expand(self, pbegin: Any) -> Any:
        """See Beam."""
        read: Any = beam.ParDo(self._step)  # type: ignore[no-untyped-call]
        source: Any = beam.Create([self._source])  # type: ignore[no-untyped-call]
        return pbegin | "Create" >> source | "ReadUnbounded" >> read

    def _infer_output_coder(self, input_type: Any = None, input_coder: Any = None) -> Any:
        return self._source.default_output_coder()
