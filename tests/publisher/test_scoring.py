"""How well scores fit labels: against definitions written out as loops over pairs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlearn.publisher.logit_scores import fit_of

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
