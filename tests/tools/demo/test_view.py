"""The view: what happens and how the loop stands, as lines and as a panel."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from rich.console import Console
from rich.live import Live

from streamlearn.testing import small_app
from tools.demo import view as view_module
from tools.demo.board import Board
from tools.demo.view import View

_SPAN, _NOW_S = (0, 1_000), 1_000.0


@pytest.fixture(autouse=True)
def _still(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time passes."""
    monkeypatch.setattr(view_module, "time", SimpleNamespace(monotonic=lambda: _NOW_S))


def _parts() -> tuple[Any, Any, Board]:
    """A loop whose node answers with version 4, half of everything replayed, and rows told well from one another."""
    meters = {"streamlearn_trainer_rows_total": 1_234.0, "streamlearn_trainer_behind_records": 5.0}
    loop = SimpleNamespace(
        metric=lambda _, metric, **__: meters[metric],
        versions=lambda: [SimpleNamespace(version=4, watermark_ms=300)],
    )
    begun_s = _NOW_S - 10
    feed = SimpleNamespace(
        event_ms=500, events_per_s=1_500.0, last=[4, 5], kept=[2], wall_s=lambda event_ms: begun_s + event_ms / 100
    )
    board = Board(small_app())
    scores = np.array([[0.9, 0.1], [0.2, 0.3]], np.float32)
    keys = [("q", 0), ("q", 1)]
    board.shown(keys, np.array([1, 1]), np.array([4, 4]), scores, scores[::-1, None])
    board.did(
        {
            "request_id": np.frombuffer(b"q", np.uint8),
            "request_id$": np.array([0, 1], np.int32),
            "item_id": np.array([0]),
            "action": np.frombuffer(b"click", np.uint8),
            "action$": np.array([0, 5], np.int32),
        }
    )
    return loop, feed, board


def test_lines_report_events_and_from_time_to_time_the_state(capsys: pytest.CaptureFixture[str]) -> None:
    view = View(None, "shop")
    view.tell("it begins")
    view.refresh()  # nothing is known yet
    view.show(*_parts(), window_ms=100, span=_SPAN)
    view._refreshed_s = 0.0
    view.refresh()
    view.refresh()
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith("  it begins")
    for text in (
        "replayed 50%",
        "events/s 1,500",
        "samples learned 1,234",
        "versions that nodes serve 4, 5",
        "served AUC 1.0000",
    ):
        assert text in second
    assert "AUC of version 2, kept for comparison 0.0000" in second
    assert "age of the newest event learned, s 7.0" in second


def test_a_terminal_has_a_panel_with_both() -> None:
    out = io.StringIO()
    with Live(console=Console(file=out, force_terminal=True, width=120), auto_refresh=False) as live:
        view = View(live, "shop")
        view.show(*_parts(), window_ms=100, span=_SPAN)
        view.refresh()
        view.tell("version [4] is served")
    text = out.getvalue()
    assert "version [4] is served" in text
    assert "shop" in text
    assert "1,234" in text


def test_figures_of_an_absent_process_are_left_out() -> None:
    loop, feed, board = _parts()
    loop.versions = list
    view = View(None, "shop")
    view.show(cast("Any", loop), cast("Any", feed), board, 100, _SPAN)
    assert not any("old" in name for name in view._state())
