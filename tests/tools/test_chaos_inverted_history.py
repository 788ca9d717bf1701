"""InvertedHistory: it inverts the actions of added periods, also the late ones, and no others."""

from __future__ import annotations

from streamlearn.apps import App
from streamlearn.events.columns import ids_of
from streamlearn.features import FeatureSpec, Label, LabelGroup, Slot
from streamlearn.replay import HistoryBlock
from tests.tools.demo.happened import STEP_MS, Happened, request
from tools.chaos.inverted_history import InvertedHistory

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
    actions = block.actions
    return set(zip(ids_of(actions, "request_id"), ids_of(actions, "item_id"), ids_of(actions, "action"), strict=True))


def test_periods_added_during_the_replay_have_inverted_actions() -> None:
    true_actions = set[tuple[str, int, str]]().union(*(_done(block) for block in Happened(_REQUESTS).blocks(STEP_MS)))
    history = InvertedHistory(Happened(_REQUESTS), _APP)
    replayed: set[tuple[str, int, str]] = set()
    for at, block in enumerate(history.blocks(STEP_MS)):
        if at == 0:
            history.invert(3 * STEP_MS, 5 * STEP_MS)
        if at == 4:
            history.invert(8 * STEP_MS, 9 * STEP_MS)
        replayed |= _done(block)
    shown = {(request(row), item, "click") for row in (3, 4, 8) for item in (10, 11)}
    assert true_actions & shown
    assert shown - true_actions
    assert replayed == (true_actions - shown) | (shown - true_actions)
