"""The step that reads: no bundle of it waits to be finalized; whichever instance goes on finds the reader again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from apache_beam.io.unbounded_source import (
    _NO_DATA,
    _UnboundedSourceRestriction,
    _UnboundedSourceRestrictionTracker,
)
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.runners import sdf_utils
from apache_beam.runners.common import MethodWrapper
from apache_beam.utils.timestamp import MIN_TIMESTAMP

from streamlearn.ingest.beam.read_source import ReadSource
from streamlearn.ingest.beam.source import EventSource, read_events
from streamlearn.settings.ingest import IngestSettings
from tests.ingest.place import Place


def test_no_bundle_asks_to_be_finalized(place: Place) -> None:
    step = read_events(place.plan(), whole=True)._step
    asked = {str(default) for default in MethodWrapper(step, "process").defaults}  # type: ignore[no-untyped-call]
    assert not any("Finalizer" in one for one in asked)
    assert len(asked) == 2


def test_a_reader_is_found_again_by_another_instance_of_the_step_and_closed_with_the_last(place: Place) -> None:
    place.fill(5)
    first, second = (read_events(place.plan(), whole=True)._step for _ in range(2))
    source = EventSource(place.plan(), (0,))
    for step in (first, second):
        step.setup()
    before = _tracker(source, None, first)
    rest = _deferred(before)
    after = _tracker(rest.source, rest.checkpoint_mark, second)
    after._ensure_reader()
    reader: Any = after._reader
    assert after._started  # it is the one that the other left
    _, rest = after.try_split(0)  # type: ignore[misc]
    first.teardown()
    assert not _is_closed(reader)
    second.teardown()
    assert _is_closed(reader)


@pytest.mark.parametrize(("poll_s", "waits"), [(0.05, [0.1, 0.2, 0.2]), (0.01, [0.02, 0.04, 0.04]), (1.0, [1.0] * 3)])
def test_a_reader_that_gives_nothing_is_looked_at_less_often_until_it_gives_something(
    place: Place, poll_s: float, waits: list[float]
) -> None:
    source = EventSource(place.plan())
    step: Any = ReadSource(source, source.renewed, IngestSettings(poll_s=poll_s))._step
    given = [[], [], [], ["blob"], []]
    found = [_waited(step, source, one) for one in given]
    # Behind elements the next look is soon; then it begins anew.
    assert found == [*waits, poll_s, waits[0]]


def test_a_reader_that_is_silent_for_long_is_looked_at_every_four_seconds(place: Place) -> None:
    source = EventSource(place.plan())
    step: Any = ReadSource(source, source.renewed, IngestSettings(poll_s=0.05))._step
    waits = [_waited(step, source, []) for _ in range(160)]
    assert waits == sorted(waits)
    assert sum(wait for wait in waits if wait <= 0.2) > 3
    assert waits[-1] == 4.0
    assert _waited(step, source, ["blob"]) == 0.05


def _waited(step: Any, source: EventSource, given: list[str]) -> float:
    """A bundle that gives some elements and then finds nothing; after how long it wants to go on."""
    asked: list[float] = []

    class Tracker(sdf_utils.RestrictionTrackerView):
        def __init__(self) -> None:
            self._left = list(given)
            restriction: Any = _UnboundedSourceRestriction(source, None)
            self._restriction_tracker = _UnboundedSourceRestrictionTracker(restriction)

        def current_restriction(self) -> Any:
            return SimpleNamespace(watermark=MIN_TIMESTAMP, finalization_checkpoint_mark=None)

        def try_claim(self, holder: Any) -> bool:
            holder[0] = (self._left.pop(0), MIN_TIMESTAMP, MIN_TIMESTAMP) if self._left else _NO_DATA
            return True

        def defer_remainder(self, deferred_time: Any = None) -> None:
            asked.append(float(deferred_time.micros / 1e6))

    estimator: Any = ManualWatermarkEstimator(MIN_TIMESTAMP)  # type: ignore[no-untyped-call]
    elements = list(step.process(None, Tracker(), estimator))
    assert [one.value for one in elements] == given
    (found,) = asked
    return found


def _tracker(source: Any, mark: Any, step: Any) -> _UnboundedSourceRestrictionTracker:
    tracker = _UnboundedSourceRestrictionTracker(_UnboundedSourceRestriction(source, mark))
    tracker._reader_cache = step._reader_cache
    return tracker


def _deferred(tracker: _UnboundedSourceRestrictionTracker) -> _UnboundedSourceRestriction:
    assert tracker.try_claim([None])
    found = tracker.try_split(0)
    assert found is not None
    return found[1]


def _is_closed(reader: Any) -> bool:
    return all(puller._closing for pair in reader._readers for puller in pair._pullers)
