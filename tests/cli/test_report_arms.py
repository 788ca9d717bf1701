"""Arms in a report: differences are found where there are any, and called noise where users alone make them."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from streamlearn.apps import App
from streamlearn.cli.report.arms import ArmScore, arms_of
from streamlearn.errors import BadRecord
from streamlearn.features import FeatureSpec, Label, LabelGroup, Segment, Slot
from streamlearn.samples import SegmentColumns
from streamlearn.settings import ValidationSettings
from streamlearn.trainer.validation import (
    Predicted,
    ProgressiveValidation,
    ScoreColumns,
    ScoreLog,
    read_scores,
)
from streamlearn.trainer.validation.score import user_sums_of
from tests.cli.place import Verb, refused

BEGIN_MS = 1_700_000_040_000
APP = App(
    "small",
    FeatureSpec(
        slots=(Slot("user_id", "user"), Slot("item_id", "item")), item_id="item_id", segments=(Segment("arm"),)
    ),
    (LabelGroup("fast", wait_s=60, window_s=600),),
    (Label("click", "click", "fast"),),
)


def scored(folder: Path, rates: dict[str, float], seed: int, *, users: int = 600, shown: int = 20) -> ScoreColumns:
    """Scores of some windows in which the users of each arm like what they like: some much, most little."""
    rng = np.random.default_rng(seed)
    arm = rng.integers(0, len(rates), users)
    liking = rng.beta(0.3, 0.7, users) / 0.3 * np.array([*rates.values()])[arm]
    user = np.repeat(np.arange(users), shown)
    clicked = rng.random(len(user)) < np.minimum(liking, 1.0)[user]
    count = len(user)
    validation = ProgressiveValidation(APP, ValidationSettings(windows_s=[60, 3_600]))
    validation.add(
        Predicted(
            identity=np.arange(1, count + 1, dtype=np.uint64),
            event_time_ms=BEGIN_MS + rng.integers(0, 5 * 60_000, count),
            logits=rng.normal(size=(count, 1)).astype(np.float32),
            learn=np.ones(count, np.uint32),
            correct=np.zeros(count, np.uint32),
            positive=clicked.astype(np.uint32),
            rates=np.ones((count, 1), np.float32),
            weights=np.ones((count, 1), np.float32),
            segments=(SegmentColumns("arm", (*rates,), arm[user].astype(np.int32)),),
            users=rng.permutation(users).astype(np.uint64)[user],
        )
    )
    scores = [one for one in validation.close(BEGIN_MS + 3_600_000) if one.window_s == 60]
    with ScoreLog(folder) as log:
        log.append(scores)
    found = read_scores(folder)
    for name, at in zip(rates, range(len(rates)), strict=True):
        mine = found.where((found["segment"] == "arm") & (found["text"] == name))
        sums = np.sum([user_sums_of(one) for one in mine["user_sums"].tolist()], axis=0).sum(1)
        assert sums.tolist() == [clicked[arm[user] == at].sum(), (arm[user] == at).sum()]
    return found


def of(folder: Path, rates: dict[str, float], seed: int, **said: int) -> list[ArmScore]:
    return arms_of(scored(folder, rates, seed, **said), {"trial": "old"})


def test_a_difference_that_users_make_by_chance_is_called_noise(tmp_path: Path) -> None:
    findings = Counter[str]()
    for seed in range(60):
        old, new = of(tmp_path / str(seed), {"trial:old": 0.3, "trial:new": 0.3}, seed)
        assert (old.arm, old.against, old.finding, new.against) == ("old", "", "", "old")
        findings[new.finding.split(" ")[0]] += 1
    # One of twenty may look real. With rows for users, about half of them would.
    assert findings["noise:"] >= 52, findings


def test_a_difference_in_what_users_do_is_found_and_has_bounds(tmp_path: Path) -> None:
    rates = {"trial:new": 0.45, "trial:old": 0.3, "layer:a": 0.2, "": 0.3}
    old, new = of(tmp_path, rates, 1, users=2_000)
    assert new.finding.startswith("higher by ")
    assert new.rate is not None
    assert old.rate is not None
    assert new.difference == pytest.approx(new.rate - old.rate)
    assert new.difference_low is not None
    assert new.difference_high is not None
    assert 0 < new.difference_low < new.rate - old.rate < new.difference_high
    assert new.rate_low is not None
    assert new.rate_low < new.rate
    swapped = arms_of(read_scores(tmp_path), {"trial": "new"})
    assert (swapped[0].arm, swapped[1].finding.split(" ")[0]) == ("new", "lower")


def test_with_few_users_it_says_so(tmp_path: Path) -> None:
    _, new = of(tmp_path, {"trial:old": 0.2, "trial:new": 0.9}, 2, users=12)
    assert (new.finding, new.difference_low, new.rate_low) == ("too few users to tell", None, None)
    assert new.difference is not None


def test_the_report_compares_arms(small: Path, ended: Verb, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("STREAMLEARN_STORE", str(tmp_path / "store"))
    folder = small / ".streamlearn" / "validation"
    scored(folder, {"trial:old": 0.1, "trial:new": 0.5}, 3)
    said = ended("report", small)
    assert said.status == 0, said
    assert "Arms of experiments, with bounds by a bootstrap over users:" in said.out
    assert re.search(r"(higher|lower) by \d", said.out)
    assert " by " in (small / ".streamlearn" / "report" / "report.html").read_text()
    arms = ended("report", small, "--json").json["arms"]
    assert {(one["experiment"], one["arm"]) for one in arms} == {("trial", "old"), ("trial", "new")}
    assert sum(one["rows"] for one in arms) == 12_000


def test_damaged_sums_are_refused(small: Path, ended: Verb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMLEARN_STORE", str(tmp_path / "store"))
    folder = small / ".streamlearn" / "validation"
    scored(folder, {"trial:old": 0.1, "trial:new": 0.5}, 3)
    (file,) = folder.iterdir()
    file.write_text(re.sub(r"[A-Za-z0-9+/=]{40,}", "AAAA", file.read_text()))
    refused(ended("report", small), 1, "sums by user that cannot be read", "help: restore")
    with pytest.raises(BadRecord):
        user_sums_of("no base64")
