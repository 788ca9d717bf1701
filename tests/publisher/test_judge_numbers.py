"""The judge on labels that are numbers: a version that is worse by more than chance is rejected."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from streamlearn.features import Number
from streamlearn.publisher.case import Case
from streamlearn.publisher.checks import Scores
from streamlearn.samples import SampleBatch
from streamlearn.settings import JudgeSettings
from streamlearn.versions import Finding, Known, VersionRef
from tests.publisher.samples import samples_of

ROWS = 2_000


def known(version: int) -> Known:
    return Known(ref=VersionRef(version=version, run=1, sha256=f"{version:064x}"), kind="delta", metrics={})


def judged(number: Number, now: Any, before: Any, actual: npt.NDArray[Any], **limits: Any) -> Finding:
    """What the check says of predictions `now`, where the active version has others."""
    batch = samples_of(4 * ROWS)
    batch = replace(batch, labels=(replace(batch.labels[0], name="minutes"),))
    count = len(batch)
    numbers = np.resize(actual, count).astype(np.float32)
    batch = replace(batch, labels=(replace(batch.labels[0], number=numbers, sample_rate=np.ones(count, np.float32)),))

    class Fixed:
        def score(self, version: int, batch: SampleBatch) -> npt.NDArray[np.float32]:
            predicted = now if version == 2 else before
            return np.resize(predicted, len(batch)).astype(np.float32)[:, None]

    def samples() -> Iterable[SampleBatch]:
        return [batch]

    settings = JudgeSettings(scored_rows_min=1_000, **limits)
    return Scores().judge(Case(known(2), (known(1),), settings, known(1), Fixed(), samples, {"minutes": number}))


@pytest.mark.parametrize("loss", ["squared", "huber", "poisson", "quantile", "weighted_logistic"])
def test_worse_predictions_are_rejected_and_others_pass_whatever_the_loss(loss: Any) -> None:
    rng = np.random.default_rng(2)
    number = Number(missing=0, loss=loss, quantile=0.8)
    truth = rng.exponential(3.0, ROWS) + 0.5
    actual = rng.poisson(truth).astype(float)
    near, far = truth, np.maximum(0.05, truth + 2.5 * rng.normal(size=ROWS))
    if loss == "quantile":
        near, far = 1.5 * truth, 0.6 * truth
    limits = {"calibration_ratio_max": 0.0}
    assert judged(number, near, near, actual, **limits).is_ok
    assert judged(number, near, far, actual, **limits).is_ok
    rejected = judged(number, far, near, actual, **limits)
    assert not rejected.is_ok
    assert "minutes: its loss rose from" in rejected.said
    assert rejected.values["mae.minutes"] == pytest.approx(np.abs(far - actual).mean(), rel=0.05)
    assert rejected.values["active.rmse.minutes"] == pytest.approx(np.sqrt(((near - actual) ** 2).mean()), rel=0.05)


def test_a_difference_that_may_be_chance_rejects_nothing() -> None:
    rng = np.random.default_rng(3)
    actual = rng.standard_t(1.5, ROWS) * 10  # a few numbers make nearly all of the loss
    before = np.zeros(ROWS)
    now = before.copy()
    now[np.argmax(actual)] = -0.3 * actual.max()
    finding = judged(Number(missing=0), now, before, actual)
    assert finding.is_ok, finding.said


def test_predictions_whose_sum_is_too_high_by_far_are_rejected_where_they_predict_a_mean() -> None:
    actual = np.random.default_rng(4).exponential(3.0, ROWS)
    finding = judged(Number(missing=0), 2 * actual, actual, actual, log_loss_rise_ratio_max=0.0)
    assert not finding.is_ok
    assert "minutes: calibration is 2.000" in finding.said
    for number in (Number(missing=0, loss="quantile"), Number(missing=0, loss="huber")):
        assert judged(number, 2 * actual, actual, actual, log_loss_rise_ratio_max=0.0).is_ok


def test_numbers_of_both_signs_have_no_calibration_that_could_reject() -> None:
    actual = np.random.default_rng(5).normal(0.01, 1.0, ROWS)
    assert judged(Number(missing=0), np.full(ROWS, 0.05), np.full(ROWS, 0.01), actual).is_ok
