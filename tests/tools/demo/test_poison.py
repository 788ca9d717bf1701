"""A poisoned history: within its stretch everything is the other way round, and nowhere else."""

from __future__ import annotations

import pytest

from streamlearn.apps import App
from streamlearn.events.columns import ids_of
from streamlearn.events.event import Columns
from streamlearn.features import FeatureSpec, Label, LabelGroup, Slot
from tests.tools.demo.happened import STEP_MS, Happened, request
from tools.demo.poison import Poison, span_of
from tools.demo.witness import Witness

_APP = App(
    "seen",
    FeatureSpec(slots=(Slot("user_id", "user"), Slot("video_id", "item")), item_id="video_id"),
    (LabelGroup("fast", wait_s=1, window_s=10),),
    (Label("click", "click", "fast"),),
)
_REQUESTS = 12
_BEGIN, _END = 4, 8


def _done(history: Happened | Poison, span_ms: int) -> set[tuple[str, int, str]]:
    found: set[tuple[str, int, str]] = set()
    for block in history.blocks(span_ms):
        if block.actions_rows:
            one = block.actions
            assert len(one["event_time_ms"]) == block.actions_rows
            found.update(zip(ids_of(one, "request_id"), ids_of(one, "item_id"), ids_of(one, "action"), strict=True))
    return found


@pytest.mark.parametrize("span_ms", [STEP_MS, 3 * STEP_MS, 100 * STEP_MS])
def test_within_the_stretch_everything_is_the_other_way_round(span_ms: int) -> None:
    really = _done(Happened(_REQUESTS), span_ms)
    told = _done(Poison(Happened(_REQUESTS), _APP, _BEGIN * STEP_MS, _END * STEP_MS), span_ms)
    shown = {(request(row), item, "click") for row in range(_BEGIN, _END) for item in (10, 11)}
    assert told == (really - shown) | (shown - really)
    assert really & shown
    assert really - shown


def test_what_really_happened_is_told_after_what_it_happened_to_was_shown() -> None:
    shown: set[str] = set()
    told: list[str] = []

    def tell(actions: Columns) -> None:
        told.extend(one for one in ids_of(actions, "request_id") if one in shown)

    witness = Witness(Happened(_REQUESTS), tell)
    for block in Poison(witness, _APP, _BEGIN * STEP_MS, _END * STEP_MS).blocks(2 * STEP_MS):
        shown |= set(ids_of(block.impressions, "request_id"))
    assert told == [request(row) for row in range(0, _REQUESTS, 2)]


def test_no_event_is_told_before_the_block_that_holds_its_request() -> None:
    blocks = list(Poison(Happened(_REQUESTS), _APP, _BEGIN * STEP_MS, _END * STEP_MS).blocks(STEP_MS))
    watermark_ms = 0
    for block in blocks:
        if block.actions_rows:
            assert block.actions["event_time_ms"].min() >= watermark_ms
        watermark_ms = block.watermark_ms


def test_the_span_is_of_all_of_it() -> None:
    begin_ms, until_ms = span_of(Happened(_REQUESTS))
    assert begin_ms == 0
    assert until_ms >= _REQUESTS * STEP_MS
