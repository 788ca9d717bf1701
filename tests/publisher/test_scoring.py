"""How well scores fit labels: against definitions written out as loops over pairs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlearn.publisher import Case
from streamlearn.publisher.case import Scorer
from streamlearn.publisher.checks import Scores
from streamlearn.publisher.logit_scores import auc_error_of, fit_of, loss_error_of, losses_of
from streamlearn.samples import SampleBatch
from streamlearn.settings import JudgeSettings
from streamlearn.versions import Finding, Known, VersionRef
from tests.publisher.samples import samples_of
from tests.publisher.training import KEYS

Array = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
ROWS = st.lists(st.tuples(st.integers(-3, 3), st.booleans(), st.sampled_from([0.5, 1.0, 2.0])), min_size=1, max_size=30)


@settings(max_examples=200)
@given(ROWS)
def test_fit_is_what_its_definition_says(rows: list[tuple[int, bool, float]]) -> None:
    logits = np.array([float(logit) for logit, _, _ in rows])
    labels, weights = np.array([label for _, label, _ in rows]), np.array([weight for _, _, weight in rows])
    fit = fit_of(logits, labels, weights)
    positives = [(logit, weight) for logit, label, weight in rows if label]
    negatives = [(logit, weight) for logit, label, weight in rows if not label]
    if not positives or not negatives:
        assert fit is None
        return
    assert fit is not None
    pairs = [(p > n) + (p == n) / 2 for p, _ in positives for n, _ in negatives]
    weighted = [a * b for _, a in positives for _, b in negatives]
    auc = sum(won * weight for won, weight in zip(pairs, weighted, strict=True)) / sum(weighted)
    chances = [1 / (1 + math.exp(-logit)) for logit, _, _ in rows]
    losses = [
        -weight * math.log(chance if label else 1 - chance)
        for chance, (_, label, weight) in zip(chances, rows, strict=True)
    ]
    expected = sum(chance * weight for chance, (_, _, weight) in zip(chances, rows, strict=True))
    assert fit.auc == pytest.approx(auc)
    assert fit.log_loss == pytest.approx(sum(losses) / sum(weights))
    assert fit.calibration == pytest.approx(expected / sum(weight for _, weight in positives))


def test_absurd_logits_have_a_finite_fit() -> None:
    fit = fit_of(np.array([1e300, -1e300, 0.0]), np.array([True, False, True]), np.ones(3))
    assert fit is not None
    assert math.isfinite(fit.log_loss)
    assert fit.auc == 1


def a_look(random: np.random.Generator) -> tuple[Bools, Array, Array, Array]:
    """Labels, scores of two models of the same quality, and weights, of 1,000 rows."""
    truth = random.normal(-1.6, 1.0, 1_000)
    labels = random.random(1_000) < 1 / (1 + np.exp(-truth))
    now, before = truth + random.normal(0, 0.8, (2, 1_000))
    return labels, now, before, np.where(labels, 1.0, 2.0)


def test_the_errors_of_differences_are_how_much_they_vary() -> None:
    random = np.random.default_rng(5)
    falls, rises, errors = [], [], []
    for _ in range(400):
        labels, now, before, weights = a_look(random)
        fits = [fit_of(scores, labels, weights) for scores in (now, before)]
        assert fits[0] is not None
        assert fits[1] is not None
        falls.append(fits[1].auc - fits[0].auc)
        rises.append(fits[0].log_loss - fits[1].log_loss)
        errors.append([of(now, before, labels, weights) for of in (auc_error_of, loss_error_of)])
    expected = np.mean(errors, axis=0)
    assert [np.std(falls), np.std(rises)] == pytest.approx(expected, rel=0.12)
    assert np.std(falls) > 0.006


def test_scores_of_the_same_rows_that_are_the_same_have_no_error() -> None:
    labels, now, _, weights = a_look(np.random.default_rng(6))
    assert auc_error_of(now, now, labels, weights) == 0
    assert loss_error_of(now, now, labels, weights) == 0


class Noisy:
    """A scorer whose versions know as much as each other, except that the bad one scores each second row at random."""

    def __init__(self, seed: int, *, bad: int = 0) -> None:
        self._seed, self._bad = seed, bad

    def score(self, version: int, batch: SampleBatch) -> npt.NDArray[np.float32]:
        """See `Scorer`."""
        random = np.random.default_rng((self._seed, version))
        right = np.where(np.isin(batch.item.slots["key"].keys, KEYS[: len(KEYS) // 2]), 1.0, -1.0)
        scores = right + random.normal(0, 0.8, len(batch))
        if version == self._bad:
            scores = np.where(np.arange(len(batch)) % 2, random.permutation(scores), scores)
        return scores[:, None].astype(np.float32)


class Told:
    """A scorer that returns scores which the test gives for each version."""

    def __init__(self, scores: Callable[[int], npt.NDArray[Any]]) -> None:
        self._scores = scores

    def score(self, version: int, batch: SampleBatch) -> npt.NDArray[np.float32]:
        """See `Scorer`."""
        del batch
        return self._scores(version)[:, None].astype(np.float32)


def found(seed: int, **how: int) -> Finding:
    """Return what the check finds about version 2, compared with version 1 on 1,000 rows."""
    return _found(samples_of(1_000, seed, rate=1.0), Noisy(seed, **how))


def compared(batch: SampleBatch, scores: Callable[[int], npt.NDArray[Any]]) -> Finding:
    """Return what the check finds about version 2 from the scores of both versions."""
    return _found(batch, Told(scores))


def _found(batch: SampleBatch, scorer: Scorer) -> Finding:
    one, two = (
        Known(ref=VersionRef(version=version, run=1, sha256="0" * 64), kind="delta", outcome="passed")
        for version in (1, 2)
    )
    return Scores().judge(Case(two, (one,), JudgeSettings(), one, scorer, lambda: [batch]))


def test_good_versions_of_a_young_model_are_seldom_refused_by_chance_and_bad_ones_are_at_once() -> None:
    findings = [found(seed) for seed in range(300)]
    values = [finding.values for finding in findings]
    fallen = sum(one["auc.click"] < 0.98 * one["active.auc.click"] for one in values)
    risen = sum(one["log_loss.click"] > 1.05 * one["active.log_loss.click"] for one in values)
    assert min(fallen, risen) > 9
    assert sum(not finding.is_ok for finding in findings) <= 3
    for seed in range(20):
        said = found(seed, bad=2)
        assert not said.is_ok
        assert re.match(r"click: AUC fell by [0-9.]+% \(standard error [0-9.]+%\)", said.said)


def test_auc_and_calibration_of_a_few_positives_reject_nothing_and_log_loss_still_does() -> None:
    for positives, refused in ((5, False), (30, True)):
        batch = samples_of(1_000, 3, rate=1.0)
        label = replace(batch.labels[0], value=(np.arange(1_000) < positives).astype(np.uint8))
        batch = replace(batch, labels=(label,))
        right = np.where(label.value, 1.0, -1.0)
        said = compared(batch, lambda version, right=right: right * (1 if version == 1 else -1))  # type: ignore[misc]
        assert ("AUC fell" in said.said) is refused
    said = compared(batch, lambda version: np.where(label.value, 1, -1) * (1_000.0 if version == 1 else 0.1))
    assert not said.is_ok
    assert said.said.startswith("click: log loss rose from 0 to 0.64")


def test_a_few_rows_with_absurd_scores_do_not_hide_in_the_error_that_they_cause() -> None:
    labels, now, _, weights = a_look(np.random.default_rng(7))
    worse = np.where(np.arange(len(now)) % 100 == 0, np.where(labels, -500.0, 500.0), now)
    rise = np.average(losses_of(worse, labels) - losses_of(now, labels), weights=weights)
    assert rise > 3 * loss_error_of(worse, now, labels, weights)
