"""Turning: what is turned while it is replayed is the other way round, late actions too, and nothing else is."""

from __future__ import annotations

from streamlearn.apps import App
from streamlearn.features import FeatureSpec, Label, LabelGroup, Slot
from streamlearn.replay import HistoryBlock
from tests.tools.demo.happened import STEP_MS, Happened, request
from tools.chaos.turning import Turning
from tools.demo.board import ids_of

_APP = App(
    "seen",
    FeatureSpec(slots=(Slot("user_id", "user"), Slot("video_id", "item")), item_id="video_id"),
    (LabelGroup("fast", wait_s=1, window_s=10),),
    (Label("click", "click", "fast"),),
)
_REQUESTS = 12


def _done(block: HistoryBlock) -> set[tuple[str, int, str]]:
    if not block.actions_rows:
        return set()
    one = block.actions
    return set(zip(ids_of(one, "request_id"), ids_of(one, "item_id"), ids_of(one, "action"), strict=True))


def test_stretches_that_are_turned_on_the_way_are_told_the_wrong_way_round() -> None:
    really = set[tuple[str, int, str]]().union(*(_done(block) for block in Happened(_REQUESTS).blocks(STEP_MS)))
    turning = Turning(Happened(_REQUESTS), _APP)
    told: set[tuple[str, int, str]] = set()
    for at, block in enumerate(turning.blocks(STEP_MS)):
        if at == 0:
            turning.turn(3 * STEP_MS, 5 * STEP_MS)
        if at == 4:
            turning.turn(8 * STEP_MS, 9 * STEP_MS)
        told |= _done(block)
    shown = {(request(row), item, "click") for row in (3, 4, 8) for item in (10, 11)}
    assert really & shown
    assert shown - really
    assert told == (really - shown) | (shown - really)
