"""Evaluation with towers: it learns what the trainer learns, and says how often the towers find what is chosen."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from streamlearn.apps import AppFolder, load_app
from streamlearn.cli.main import cli
from streamlearn.trainer.evaluation import Evaluation, own_tables
from streamlearn.trainer.intake.split import SplitRequest, split_of
from streamlearn.trainer.learner import Learner
from streamlearn.trainer.rows import Rows
from streamlearn.trainer.towers.tower_steps import TowerSteps
from streamlearn.trainer.trainer_setup import ends_of
from streamlearn.trainer.version_scores import SCORED_ROWS, VersionScorer
from streamlearn.versions import Chain, load_tensors
from tests.trainer.processes import write_app
from tests.trainer.runs import store_of
from tests.trainer.stream import messages_of, write_messages
from tests.trainer.towers.towered import learned, towered_folder
from tests.trainer.toy import Toy


@pytest.fixture
def app(tmp_path: Path) -> AppFolder:
    plain = write_app(tmp_path / "plain", {"trainer": {"order": "strict", "step_rows": 64}})
    folder = plain.folder.rename(tmp_path / "app")
    text = (folder / "app.py").read_text().replace("learnable_app", "towered_app")
    (folder / "app.py").write_text(text.replace("tests.trainer.stream", "tests.trainer.towers.towered"))
    app = load_app(folder)
    write_messages(app, messages_of(app.app, 12))
    return app


@pytest.fixture
def evaluate(monkeypatch: pytest.MonkeyPatch, app: AppFolder) -> Callable[..., Any]:
    monkeypatch.setenv("COLUMNS", "160")
    return lambda *words: CliRunner().invoke(cli, ["evaluate", str(app.folder), *words])


def test_the_verb_says_the_hit_rates_of_the_first_pass(evaluate: Callable[..., Any]) -> None:
    result = evaluate("--passes", "2", "--hold-out", "0", "--json")
    assert result.exit_code == 0, result.output
    first, second = json.loads(result.stdout)["passes"]
    (day,) = first["hit_rates"]
    assert "hit_rates" not in second
    assert day["positives"] > 50
    for rates in (day["towers"], day["popularity"]):
        assert 0 <= rates[0] <= rates[1] <= rates[2] <= 1
    shown = evaluate("--hold-out", "0").stdout
    (row,) = [line.split() for line in shown.splitlines() if line.startswith("2023-11-14")]
    assert row[1] == str(day["positives"])
    expected = [rate for both in zip(day["towers"], day["popularity"], strict=True) for rate in both]
    assert [float(cell) for cell in row[3:]] == pytest.approx(expected, abs=1e-4)


def test_variants_are_compared_by_their_hit_rates(evaluate: Callable[..., Any]) -> None:
    result = evaluate("--hold-out", "0", "--grid", "retrieval.negatives=0,20")
    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.stdout.splitlines() if "2023-11-14" in line]
    assert [row[0] for row in rows] == ["0", "20"]
    assert rows[0][5:] != rows[1][5:]


def test_a_pass_learns_the_towers_as_the_trainer_does_to_the_byte(tmp_path: Path) -> None:
    folder = towered_folder(tmp_path)
    write_messages(folder, messages_of(folder.app, 12))
    learned(folder)
    stop = threading.Event()
    with folder.open_topic("samples") as topic, own_tables(folder) as client:
        split = split_of(folder, topic, SplitRequest(hold_out=0.0), ends_of(topic, "end"), keep_aside=lambda *_: None)
        evaluation = Evaluation(folder, Toy(), topic, client, split)
        first, second = evaluation.passes(2, stop)
        assert first.hit_rates != ()
        assert second.hit_rates == ()
        again = Evaluation(folder, Toy(), topic, own_tables(folder), split)
        (_,) = again.passes(1, stop)
        steps = again._steps
        assert isinstance(steps, TowerSteps)
        found = steps.dense() | steps.optimizer_state()
    chain = Chain.find(store_of(folder), folder.app.name)
    expected = load_tensors(chain.store, chain.head) | load_tensors(chain.store, chain.head, "dense_optimizer")
    assert found.keys() == expected.keys()
    assert all(np.array_equal(tensor, found[name]) for name, tensor in expected.items())


def test_a_version_is_scored_by_the_weights_of_the_ranking_model_alone(tmp_path: Path) -> None:
    folder = towered_folder(tmp_path)
    write_messages(folder, messages_of(folder.app, 4))
    learned(folder)
    learner = Learner(folder.app, Toy(), folder.settings.trainer)
    with own_tables(folder) as client:
        scorer = VersionScorer(folder.app.name, store_of(folder), learner, Rows(folder.app, client, SCORED_ROWS))
        weights = scorer._weights_of(Chain.find(store_of(folder), folder.app.name).version)
    assert weights.shape == learner.weights().shape
