"""`streamlearn replay --ask`: nodes score each request before it is written, and the end says how well."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from typer.testing import CliRunner, Result

from streamlearn.apps import load_app
from streamlearn.cli.main import cli
from streamlearn.errors import UsageError
from streamlearn.events import EventDecoder
from tests.serving.inference import Node, answer_of, serving

__all__: list[str] = []

APP = """
from streamlearn.apps import App
from streamlearn.features import FeatureSpec, Label, LabelGroup, Number, Slot

app = App(
    name="small",
    features=FeatureSpec(slots=(Slot("user_id", "user"), Slot("item_id", "item")), item_id="item_id"),
    groups=(LabelGroup("short", wait_s=60, window_s=60), LabelGroup("long", wait_s=120, window_s=120)),
    labels=(
        Label("paid", "buy", "long", number=Number(missing=0)),
        Label("click", "click", "short"),
        Label("order", "buy", "long"),
    ),
    model="deepfm",
)
"""
# Ten requests of two items, 0 and 1, ten seconds apart. Item 1 is clicked at once and item 0 after the window, by all;
# every second user buys item 0. The last request is shown again.
HISTORY = """
import numpy as np

from streamlearn.events import text_columns
from streamlearn.replay import ColumnHistory

BEGIN_MS = 1_750_000_000_000


def history(options):
    requests = [*range(10), 9]
    shown_ms = BEGIN_MS + np.arange(11) * 10_000
    impressions = {
        **text_columns("request_id", [f"r{number}" for number in requests]),
        "event_time_ms": shown_ms,
        "user.user_id": np.array(requests),
        "items[]": np.arange(12, dtype=np.int32) * 2,
        "items.item_id": np.tile([0, 1], 11),
    }
    done = [(number, 1, "click", 1_000) for number in range(10)]
    done += [(number, 0, "click", 60_001) for number in range(10)]
    done += [(number, 0, "buy", 60_000) for number in range(0, 10, 2)]
    actions = {
        **text_columns("request_id", [f"r{number}" for number, *_ in done]),
        "event_time_ms": np.array([shown_ms[number] + after for number, _, _, after in done]),
        "item_id": np.array([item for _, item, *_ in done]),
        **text_columns("action", [action for *_, action, _ in done]),
    }
    return ColumnHistory(impressions, actions)
"""


class Scores(Node):
    """Likes item 1 for clicks and item 0 for orders; refuses every third request if told so."""

    def __init__(self, *, refuses_third: bool = False) -> None:
        super().__init__()
        self._refuses_third, self._lock = refuses_third, threading.Lock()

    def answer(self, message: bytes, context: Any) -> bytes:
        with self._lock:  # several threads answer
            super().answer(message, context)
            is_third = len(self.asked) % 3 == 0
        if self._refuses_third and is_third:
            context.abort(grpc.StatusCode.UNAVAILABLE, "as told")
        scores = {"paid": [5.0, 6.0], "click": [0.25, 0.75], "order": [0.5, 0.125]}
        outputs: dict[str, tuple[str, tuple[int, ...], bytes]] = {
            name: ("FP32", (2,), np.array(one, np.float32).tobytes()) for name, one in scores.items()
        }
        return answer_of("small", self.asked[-1].model_version or "7", outputs)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "app.toml").write_text(f'[topics]\ntime = "event"\nroot = "{(tmp_path / "topics").as_uri()}"\n')
    (tmp_path / "history.py").write_text(HISTORY)
    return tmp_path


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer is late because the machine stands still."""
    monkeypatch.setattr("streamlearn.load.node_scores._ANSWER_S_MAX", 120.0)


def _replay(folder: Path, *words: str) -> Result:
    return CliRunner().invoke(cli, ["replay", str(folder), *words])


def _written(folder: Path) -> list[tuple[int | None, Sequence[float | None]]]:
    """The version and the scores of clicks of each impression."""
    app = load_app(folder)
    found = []
    with app.open_topic("impressions") as topic, topic.reader() as reader:
        for partition in range(topic.partitions):
            values = reader.read(partition, 0, wait_ms=1_000).values
            events = EventDecoder(app.app, app.settings.events).decode(values).impressions.columns
            for row, version in enumerate(events["served_version"].tolist()):
                items = slice(*events["items[]"][row : row + 2].tolist())
                scores = events["items.served_score_click"][items].tolist()
                is_there = bool(events["served_version?"][row]) and events["items.served_score_click?"][items].all()
                found.append((version, scores) if is_there else (None, [None, None]))
    return found


def test_each_impression_has_its_scores_and_the_end_says_how_well_they_rank(folder: Path) -> None:
    with serving(Scores()) as one, serving(Scores()) as other:
        result = _replay(folder, "--ask", f"{one.address}, {other.address}", "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert (report["impressions"], report["requests"], report["unanswered"], report["refusal"]) == (11, 11, 0, None)
    # A click after its window is none; a row that is shown twice counts once, and only once its window is over; numbers
    # have no AUC.
    click = {"label": "click", "rows": 20, "positives": 10, "auc": 1.0}
    order = {"label": "order", "rows": 8, "positives": 2, "auc": pytest.approx((4 + 2 / 2) / 6, abs=1e-4)}
    assert report["served"] == [click, order]
    assert len(one.asked) + len(other.asked) == 11
    assert {request.model_name for request in (*one.asked, *other.asked)} == {"small"}
    assert _written(folder) == [(7, [0.25, 0.75])] * 11


def test_a_pinned_version_is_asked_for_and_what_is_refused_is_written_without_scores(folder: Path) -> None:
    with serving(Scores(refuses_third=True)) as node:
        result = _replay(folder, "--ask", node.address, "--pin", "4")
    assert result.exit_code == 0, result.output
    assert {request.model_version for request in node.asked} == {"4"}
    assert sorted(version or 0 for version, _ in _written(folder)) == [0] * 3 + [4] * 8
    for part in ("unanswered", "UNAVAILABLE: as told", "click"):
        assert part in result.stdout, result.stdout


def test_what_one_node_refuses_the_next_one_is_asked(folder: Path) -> None:
    with serving(Scores(refuses_third=True)) as one, serving(Scores()) as other:
        result = _replay(folder, "--ask", f"{one.address},{other.address}", "--json")
    report = json.loads(result.stdout)
    assert (report["requests"], report["repeated"], report["unanswered"]) == (11, len(one.asked) // 3, 0)
    assert report["repeated"] > 0
    assert "as told" in report["refusal"]
    assert len(one.asked) + len(other.asked) == 11 + report["repeated"]
    assert _written(folder) == [(7, [0.25, 0.75])] * 11


def test_actions_count_up_to_the_last_event_that_is_written(folder: Path) -> None:
    events = 11 + 10 + 10 + 5
    with serving(Scores()) as node:
        result = _replay(folder, "--ask", node.address, "--limit-events", str(events), "--json")
    report = json.loads(result.stdout)
    assert (report["actions"], report["served"][0]["positives"], report["served"][0]["auc"]) == (25, 10, 1.0)


@pytest.mark.parametrize("words", [("--pin", "4"), ("--token-file", "token")])
def test_what_only_nodes_need_is_refused_without_them(folder: Path, words: tuple[str, str]) -> None:
    result = _replay(folder, *words)
    assert isinstance(result.exception, UsageError)
    assert words[0] in str(result.exception)
