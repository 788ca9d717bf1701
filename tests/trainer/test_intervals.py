"""Versions at intervals: what predicts a row, what the figures say, and what the verb prints."""

from __future__ import annotations

import json
import re
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from streamlearn.cli.main import cli
from streamlearn.cli.model.evaluate_grid import Variant
from streamlearn.ps import Epoch
from streamlearn.publisher.logit_scores import auc_of
from streamlearn.trainer.intake.message import Reached
from streamlearn.trainer.intake.split import SplitRequest, split_of
from streamlearn.trainer.interval_evaluation import IntervalEvaluation, cut
from streamlearn.trainer.step import Piece, Step
from streamlearn.trainer.trainer_setup import ends_of
from streamlearn.trainer.validation.interval_scores import interval_scores
from streamlearn.trainer.validation.rows import row_type
from tests.trainer.processes import write_app
from tests.trainer.runs import local_client
from tests.trainer.stream import STEP_MS, T_MS, learnable_folder, messages_of, write_messages
from tests.trainer.test_evaluation import complete
from tests.trainer.toy import Toy

_TRAINER = {"order": "strict", "step_rows": 64, "rate": 0.01}
# Rows are known ten seconds after they are shown, and new ones come each second.
_EVERY = {"1s": 1_000, "4s": 4_000, "never": None}
_MESSAGES = 40


class Watched(IntervalEvaluation):
    """An evaluation that notes when rows were known that it learns, and what it predicts when."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.known_ms: list[int] = []
        self.predicted: list[tuple[int, str, int, list[int]]] = []

    def _learn(self, step: Step) -> None:
        for piece in step.pieces:
            self.known_ms += piece.batch.settle_time_ms[piece.rows].tolist()
        super()._learn(step)

    def _predict(self, held: Any, time_ms: int, every: str, logits: Any) -> None:
        assert max(self.known_ms) < time_ms, "a version knows nothing of later times"
        before = logits[every].copy()
        super()._predict(held, time_ms, every, logits)
        changed = np.flatnonzero((before != logits[every]).any(axis=1))
        self.predicted.append((time_ms, every, len(self.known_ms), held.shown_ms[changed].tolist()))


def test_each_row_is_predicted_by_all_that_was_known_when_its_version_would_have_come(tmp_path: Path) -> None:
    folder = learnable_folder(tmp_path, {"trainer": _TRAINER})
    messages = complete(messages_of(folder.app, _MESSAGES))
    write_messages(folder, messages)
    test_ms = T_MS + 20 * STEP_MS
    asked = SplitRequest(test_ms=test_ms, end_ms=T_MS + 36 * STEP_MS)
    with folder.open_topic("samples") as topic, local_client(folder) as client:
        client.restore(Epoch(1), None)
        keep_aside: Any = lambda name, data: None  # noqa: E731
        split = split_of(folder, topic, asked, ends_of(topic, "end"), keep_aside=keep_aside)
        watched = Watched(folder, Toy(), topic, client, split, every_ms=_EVERY, keep_aside=keep_aside)
        scores = watched.run(threading.Event())
    times = {every: [time for time, one, *_ in watched.predicted if one == every] for every in _EVERY}
    assert times["never"] == [test_ms]
    assert times["4s"] == list(range(test_ms, split.end_ms, 4_000))
    assert times["1s"] == list(range(test_ms, split.end_ms, 1_000))
    for every, interval_ms in _EVERY.items():
        shown = []
        for time_ms, _, _, rows in (one for one in watched.predicted if one[1] == every):
            end_ms = split.end_ms if interval_ms is None else time_ms + interval_ms
            assert all(time_ms <= row < end_ms for row in rows)
            shown += rows
        assert len(shown) > 500
    known = {every: [count for _, one, count, _ in watched.predicted if one == every] for every in _EVERY}
    assert known["1s"] == sorted(known["1s"])
    assert known["1s"][-1] > known["4s"][-2] > known["never"][0]
    assert watched.learned == len(watched.known_ms) > known["1s"][-1], "what is held out is learned in its time"
    whole = [one for one in scores if not one.segment]
    assert {(one.label, one.every) for one in whole} == {(name, e) for name in ("click", "bought") for e in _EVERY}
    assert len({one.rows for one in whole if one.label == "click"}) == 1, "all intervals are compared on the same rows"
    for one in whole:
        assert one.auc is not None
        bounds: Any = (one.gain_low, one.gain, one.gain_high)
        if one.every == "never":
            assert (one.gain, one.gain_low, one.gain_high) == (0, 0, 0)
        else:
            assert list(bounds) == sorted(bounds)


def test_a_step_is_cut_by_when_its_rows_were_known() -> None:
    folder = learnable_folder(Path())
    (_, batch), *_ = messages_of(folder.app, 1)
    rows = np.arange(len(batch))
    step = Step(3, [Piece(batch, rows, rows.astype(np.uint32), rows.astype(np.uint32) + 1)], Reached((), ()), 50)
    middle = int(np.median(batch.settle_time_ms))
    early, late = cut(step, middle)
    assert early is not None
    assert late is not None
    for part, is_early in ((early, True), (late, False)):
        (piece,) = part.pieces
        assert ((batch.settle_time_ms[piece.rows] < middle) == is_early).all()
        assert (piece.learn == piece.rows).all()
        assert (piece.correct == piece.rows + 1).all()
    assert len(early) + len(late) == len(rows)
    assert cut(step, 0)[0] is None
    assert cut(step, 1 << 60)[1] is None


def test_gains_are_differences_of_auc_and_their_bounds_hold_users_together() -> None:
    rng = np.random.default_rng(3)
    count = 3_000
    rows = np.zeros(count, row_type(0))
    rows["weight"], rows["rate"] = 1.0, np.where(rng.random(count) < 0.5, 0.5, 1.0)
    taste = rng.normal(size=count)
    rows["positive"] = rng.random(count) < 1 / (1 + np.exp(-taste))
    good, bad = (taste + 0.1 * rng.normal(size=count)).astype("f4"), np.round(taste + 2 * rng.normal(size=count))
    users = np.arange(count, dtype=np.uint64)
    fine, rough = interval_scores("click", rows, users, {"1m": good, "1d": bad.astype("f4")})
    weights = 1 / np.where(rows["positive"], 1, rows["rate"])
    aucs = [auc_of(one.astype(np.float64), rows["positive"], weights) for one in (good, bad)]
    assert (fine.auc, rough.auc) == pytest.approx(tuple(aucs))
    assert fine.gain == pytest.approx(aucs[0] - aucs[1])
    assert fine.gain_low is not None
    assert fine.gain_high is not None
    assert fine.gain_low < aucs[0] - aucs[1] < fine.gain_high
    assert fine.gain_low > 0
    same = np.repeat(rows[:10], 300)
    logits = {"1m": np.repeat(good[:10], 300), "1d": same["rate"]}
    wide = interval_scores("click", same, np.repeat(users[:10], 300), logits)
    apart = interval_scores("click", same, users, logits)
    assert spread(wide[0]) > 3 * spread(apart[0]), "rows of one user are no news of each other"


def test_scores_that_nodes_answered_stand_beside_the_intervals_and_each_text_of_a_segment_for_itself(
    tmp_path: Path,
) -> None:
    app = write_app(tmp_path / "app", {"trainer": _TRAINER})
    served = []
    for partition, batch in complete(messages_of(app.app, _MESSAGES)):
        click, *others = batch.labels
        # Nodes scored every second row, and knew everything.
        is_served = np.arange(len(batch)) % 2 == 0
        knowing = np.where(is_served, np.where(click.value == 1, 0.9, 0.1), np.nan).astype(np.float32)
        served.append((partition, replace(batch, labels=(replace(click, served_score=knowing), *others))))
    write_messages(app, served)
    done = CliRunner().invoke(cli, ["evaluate", str(app.folder), "--every", "1s,never", "--segments", "--json"])
    assert done.exit_code == 0, done.output
    scores = json.loads(done.stdout)["intervals"]
    clicks = {one["every"]: one for one in scores if one["label"] == "click" and not one["segment"]}
    assert clicks.keys() == {"1s", "never", "served"}
    assert clicks["served"]["auc"] > 0.95 > clicks["1s"]["auc"]
    assert clicks["served"]["rows"] == pytest.approx(clicks["never"]["rows"] / 2, rel=0.1)
    assert clicks["served"]["gain_low"] > 0
    assert {one["every"] for one in scores if one["label"] == "bought"} == {"1s", "never"}
    for every in clicks:
        parts = [one for one in scores if one["label"] == "click" and one["every"] == every and one["segment"]]
        assert len({one["text"] for one in parts}) > 1
        for segment in {one["segment"] for one in parts}:
            assert sum(one["rows"] for one in parts if one["segment"] == segment) == clicks[every]["rows"]


def spread(score: Any) -> float:
    return float(score.gain_high - score.gain_low)


def test_the_verb_compares_models_and_settings_and_says_what_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    app = write_app(tmp_path / "app", {"trainer": _TRAINER})
    write_messages(app, complete(messages_of(app.app, _MESSAGES)))

    def evaluate(*words: str) -> Any:
        return CliRunner().invoke(cli, ["evaluate", str(app.folder), *words])

    words = ("--model", "logistic,deepfm", "--grid", "tables.rate=0.0001,0.2", "--grid", "trainer.rate=0.01")
    done = evaluate(*words, "--json")
    assert done.exit_code == 0, done.output
    variants = json.loads(done.stdout)["variants"]
    assert [(one["facts"]["model"], one["facts"]["tables.rate"]) for one in variants] == [
        ("logistic", "0.0001"), ("logistic", "0.2"), ("deepfm", "0.0001"), ("deepfm", "0.2"),
    ]  # fmt: skip
    entropies = [np.mean([score["normalised_entropy"] for score in one["held_out"]]) for one in variants]
    assert [one["is_best"] for one in variants] == [value == min(entropies) for value in entropies]
    assert len(set(entropies)) == 4
    best = variants[int(np.argmin(entropies))]["facts"]
    shown = evaluate(*words)
    assert f'app.py: model="{best["model"]}"' in shown.stdout
    assert f"app.toml, section [tables]: rate = {best['tables.rate']}" in shown.stdout
    assert Variant(app, {"tables.optimizer": "adam"}).lines == ['app.toml, section [tables]: optimizer = "adam"']
    for refused_words, text in (
        (("--grid", "tables.rate"), "is not NAME=VALUE,VALUE"),
        (("--grid", "tables.rat=1,2"), "tables.rat"),
        (("--grid", "model=deepfm,dcn_v2"), "model is given twice, or has an option of its own"),
        (("--grid", "tables.rate=1,2", "--grid", "tables.rate=3"), "tables.rate is given twice"),
        (("--model", "deep"), "unknown ready-made model 'deep'"),
        (("--model", "deepfm", "--every", "1m"), "--every was given with"),
    ):
        assert text in str(evaluate(*refused_words).exception)


def test_the_verb_compares_intervals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    app = write_app(tmp_path / "app", {"trainer": _TRAINER})
    write_messages(app, complete(messages_of(app.app, _MESSAGES)))

    def evaluate(*words: str) -> Any:
        return CliRunner().invoke(cli, ["evaluate", str(app.folder), *words])

    done = evaluate("--every", "never,4s,1s", "--json")
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    whole = [one for one in said["intervals"] if not one["segment"]]
    assert [one["every"] for one in whole] == ["1s", "4s", "never"] * 2
    assert said["from_ms"] < said["test_from_ms"] < said["to_ms"]
    shown = evaluate("--every", "1s,never")
    assert "over never" in shown.stdout
    assert "95 % interval" in shown.stdout
    assert "segment" not in shown.stdout
    assert re.search(r"label +segment +every", evaluate("--every", "1s,never", "--segments").stdout)
    for words, text in (
        (("--every", "soon"), "'soon' is not a duration"),
        (("--every", "0m"), "'0m' is not a duration"),
        (("--every", ","), "',' has no interval"),
        (("--every", "1m", "--passes", "2"), "--passes was given with --every"),
        (
            ("--every", "1s", "--hold-out", "0.9", "--set", "validation.rows_max=1024"),
            "more rows are held out than validation.rows_max",
        ),
    ):
        assert text in str(evaluate(*words).exception)
