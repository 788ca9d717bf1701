"""The step that reads: no bundle of it waits to be finalized; whichever instance goes on finds the reader again."""

from __future__ import annotations

from typing import Any

from apache_beam.io.unbounded_source import _UnboundedSourceRestriction, _UnboundedSourceRestrictionTracker
from apache_beam.runners.common import MethodWrapper

from streamlearn.ingest import EventSource, read_events
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
