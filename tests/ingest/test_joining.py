"""The step in the hands of a runner: a lot is one bundle's at a time, and a runner that forgets that is told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from streamlearn.errors import PipelineFailed
from streamlearn.ingest.beam.join_lots import JoinLots
from streamlearn.ingest.join.join_cache import LotShelf
from streamlearn.testing import ManualClock


def step_on(shelf: LotShelf, taken: list[int]) -> JoinLots:
    """An instance of the step that only notes which lots it took."""
    nothing: Any = None
    step = JoinLots(nothing)
    bench: Any = SimpleNamespace(
        shelf=shelf,
        handing=SimpleNamespace(take=lambda data: data),
        step=SimpleNamespace(take_in=lambda lot, *_: taken.append(lot)),
        sink=SimpleNamespace(flush=lambda: (), give=None),
        close=lambda: None,
    )
    step._resources = bench
    return step


def test_two_bundles_that_change_one_lot_at_once_are_refused_before_either_loses_the_others_events() -> None:
    shelf, taken = LotShelf(clock=ManualClock()), list[int]()
    first, second = step_on(shelf, taken), step_on(shelf, taken)
    first.start_bundle()
    second.start_bundle()
    first.process((3, b""))
    first.process((3, b""))
    second.process((4, b""))
    with pytest.raises(PipelineFailed, match="lot 3 to two bundles at once") as caught:
        second.process((3, b""))
    assert "prism_disable_sdf_split" in caught.value.help
    assert taken == [3, 3, 4]
    first.finish_bundle()
    second.process((3, b""))
    with pytest.raises(PipelineFailed, match="lot 4"):
        first.process((4, b""))


def test_a_bundle_that_failed_leaves_its_lots_to_whoever_comes_next() -> None:
    shelf, taken = LotShelf(clock=ManualClock()), list[int]()
    first, second = step_on(shelf, taken), step_on(shelf, taken)
    first.start_bundle()
    first.process((3, b""))  # and it fails: nobody finishes it
    first.start_bundle()
    second.process((3, b""))
    second.teardown()  # a runner lets go of an instance whose bundle failed
    first.process((3, b""))
    assert taken == [3, 3, 3]
