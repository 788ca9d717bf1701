"""Intervals over users: as wide as a bootstrap makes them, over hours and arms; old files have those over windows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamlearn.cli.report.arms import arm_figures_of
from streamlearn.cli.report.span import span_of
from streamlearn.cli.report.users import draws
from streamlearn.publisher.logit_scores import auc_of, chances_of, losses_of
from streamlearn.samples import SegmentColumns
from streamlearn.settings import ValidationSettings
from streamlearn.trainer.validation import Predicted, ProgressiveValidation, ScoreColumns, ScoreLog, read_scores
from streamlearn.trainer.validation.rows import USER_GROUPS
from tests.cli.place import Verb
from tests.cli.test_report_arms import APP

HOUR_MS = 3_600_000
BEGIN_MS = 1_700_000_000_000 // HOUR_MS * HOUR_MS
USERS, SHOWN = 250, 16


def rows_of(seed: int = 1, *, noise: tuple[float, float] = (0.5, 0.5)) -> dict[str, Any]:
    """Rows of users who each like much or little, over two hours; each arm's predictions have another noise."""
    rng = np.random.default_rng(seed)
    user = np.repeat(np.arange(USERS), SHOWN)
    arm = user % 2
    liking = rng.normal(-1, 1.5, USERS)[user]
    found: dict[str, Any] = {"user": user, "arm": arm, "hour": rng.integers(0, 2, len(user))}
    found["logit"] = (liking + rng.normal(size=len(user)) * np.array(noise)[arm] * 2).astype(np.float32)
    found["positive"] = rng.random(len(user)) < chances_of(liking)
    return found


def logged(folder: Path, rows: dict[str, Any]) -> ScoreColumns:
    count = len(rows["user"])
    validation = ProgressiveValidation(APP, ValidationSettings(windows_s=[60, 3_600]))
    validation.add(
        Predicted(
            identity=np.arange(1, count + 1, dtype=np.uint64),
            event_time_ms=BEGIN_MS + rows["hour"] * HOUR_MS,
            logits=rows["logit"].reshape(-1, 1),
            learn=np.ones(count, np.uint32),
            correct=np.zeros(count, np.uint32),
            positive=rows["positive"].astype(np.uint32),
            rates=np.ones((count, 1), np.float32),
            weights=np.ones((count, 1), np.float32),
            segments=(SegmentColumns("arm", ("trial:old", "trial:new"), rows["arm"].astype(np.int32)),),
            users=rows["user"].astype(np.uint64),
        )
    )
    with ScoreLog(folder) as log:
        log.append(validation.close(BEGIN_MS + 3 * HOUR_MS))
    return read_scores(folder)


def without_sums(scores: ScoreColumns, which: Any) -> ScoreColumns:
    sums = np.where(which, "", scores["user_sums"])
    return replace(scores, columns=scores.columns | {"user_sums": sums})


def bootstrap(rows: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """The intervals of a plain bootstrap: each user counts as often as it is drawn."""
    positive, logit, hour = rows["positive"], rows["logit"].astype(float), rows["hour"]
    loss, chance = losses_of(logit, positive), chances_of(logit)
    drawn: dict[str, list[float]] = {"auc": [], "log_loss": [], "calibration": []}
    for counts in draws()[:, rows["user"] % USER_GROUPS]:
        aucs, pairs = [], []
        for at in (0, 1):
            of = (hour == at) & (counts > 0)
            aucs.append(auc_of(logit[of], positive[of], counts[of]))
            pairs.append((counts * positive)[of].sum() * (counts * ~positive)[of].sum())
        drawn["auc"].append(float(np.average(aucs, weights=pairs)))
        drawn["log_loss"].append(float((loss * counts).sum() / counts.sum()))
        drawn["calibration"].append(float((chance * counts).sum() / (positive * counts).sum()))
    return {name: tuple(np.percentile(values, (2.5, 97.5)).tolist()) for name, values in drawn.items()}


def test_intervals_are_those_of_a_plain_bootstrap_over_users(tmp_path: Path) -> None:
    rows = rows_of()
    whole = span_of(logged(tmp_path, rows)).scores[0]
    assert (whole.segment, whole.interval, whole.windows) == ("", "users", 2)
    wanted = bootstrap(rows)
    for name, tolerance in (("log_loss", 1e-5), ("calibration", 1e-5), ("auc", 0.003)):
        found = getattr(whole, f"{name}_low"), getattr(whole, f"{name}_high")
        assert found == pytest.approx(wanted[name], abs=tolerance), name
    assert wanted["auc"][1] - wanted["auc"][0] > 0.03


def test_windows_without_sums_have_intervals_as_before(tmp_path: Path) -> None:
    scores = logged(tmp_path, rows_of())
    by_user = span_of(scores).scores[0]
    for which in (np.ones(len(scores), np.bool_), scores["end_ms"] == BEGIN_MS + HOUR_MS):
        whole = span_of(without_sums(scores, which)).scores[0]
        assert (whole.interval, whole.log_loss_low, whole.calibration_low) == ("windows", None, None)
        assert (whole.auc, whole.log_loss) == (by_user.auc, by_user.log_loss)
        assert whole.auc_low is not None
        assert by_user.auc_low is not None
        # Users who come in both hours make the interval wider than hours that are independent.
        assert by_user.auc_low < whole.auc_low
        assert not arm_figures_of(without_sums(scores, which), {}) or not which.all()


def test_a_better_model_in_one_arm_is_told_from_chance(tmp_path: Path) -> None:
    hours = {
        name: logged(tmp_path / name, rows_of(3, noise=noise))
        for name, noise in (("same", (0.5, 0.5)), ("better", (3.0, 0.1)))
    }
    found = {}
    for name, scores in hours.items():
        figures = arm_figures_of(scores.where(scores["end_ms"] - scores["begin_ms"] == HOUR_MS), {"trial": "old"})
        assert {(one.arm, one.figure) for one in figures} == {
            (arm, figure) for arm in ("old", "new") for figure in ("auc", "log_loss", "calibration")
        }
        found[name] = {one.figure: one for one in figures if one.arm == "new"}
    assert {one.finding for one in found["same"].values()} == {"noise: it may be chance"}
    better = found["better"]
    assert better["auc"].finding.startswith("higher by ")
    assert better["log_loss"].finding.startswith("lower by ")
    assert better["auc"].difference_low is not None
    assert better["auc"].difference_low > 0


def test_the_report_says_what_its_intervals_are_over(
    small: Path, ended: Verb, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "240")
    monkeypatch.setenv("STREAMLEARN_STORE", str(tmp_path / "store"))
    logged(small / ".streamlearn" / "validation", rows_of())
    said = ended("report", small)
    assert said.status == 0, said
    assert "Predictions by arm, with bounds by a bootstrap over users:" in said.out
    assert "log loss, 95 %" in said.out
    assert "over windows, as if" not in said.out
    facts = ended("report", small, "--json").json
    assert {one["interval"] for one in facts["span"]} == {"users"}
    assert {one["figure"] for one in facts["arm_figures"]} == {"auc", "log_loss", "calibration"}
    (file,) = (small / ".streamlearn" / "validation").iterdir()
    lines = [line.rpartition(",")[0] + "," for line in file.read_text().splitlines()]
    file.write_text("\n".join([file.read_text().splitlines()[0], *lines[1:], ""]))
    assert "over windows, as if no user came in two of them" in ended("report", small).out
