"""Curves of isotonic calibrations, against a plain isotonic regression."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from streamlearn.features.combination import CURVE_KNOTS, CURVE_SHAPE
from streamlearn.models.label_outputs import curve_rows, curved
from streamlearn.publisher.logit_scores import chances_of
from streamlearn.table.derivation import key_numbers
from streamlearn.trainer.validation.curves import curves_of, pooled
from streamlearn.trainer.validation.label_rows import LabelRows
from streamlearn.trainer.validation.rows import SettledRows, row_type

KIND = row_type(0, has_curve=True)
SEGMENTS = np.array([1, 2, 3], np.uint64) << np.uint64(40)


def isotonic(means: Any, weights: Any) -> Any:
    """The least squares among increasing sequences, by its formula: the largest of the smallest means."""
    count = len(means)

    def mean(first: int, last: int) -> float:
        return float(np.average(means[first : last + 1], weights=weights[first : last + 1]))

    return [max(min(mean(first, last) for last in range(at, count)) for first in range(at + 1)) for at in range(count)]


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(1, 49), st.integers(1, 49)), min_size=1, max_size=CURVE_KNOTS)
)
def test_bins_are_pooled_as_isotonic_regression_does(drawn: list[tuple[int, int, int]]) -> None:
    weights = np.array([weight for weight, _, _ in drawn], float)
    chances = np.sort([chance / 50 for _, chance, _ in drawn]) + np.arange(len(drawn)) * 1e-4
    actual = np.array([share / 50 for _, _, share in drawn])
    bins = np.stack([weights, weights * chances, weights * actual], axis=1)
    knots = [*pooled(bins, 1e-9)]
    wanted = isotonic(actual, weights)
    pools = [first for at, first in enumerate(wanted) if at == 0 or first - wanted[at - 1] > 1e-9]
    np.testing.assert_allclose(chances_of(np.array([knot[1] for knot in knots])), pools, rtol=1e-5)
    of = np.searchsorted(pools, np.array(wanted) - 1e-9)
    means = np.bincount(of, weights * chances) / np.bincount(of, weights)
    np.testing.assert_allclose(chances_of(np.array([knot[0] for knot in knots])), means, rtol=1e-5)


def rows_of(count: int, seed: int, shares: tuple[float, ...] = (0.7, 0.25, 0.05)) -> tuple[Any, Any]:
    """Rows of three segments and the truth: the second has a third of the positives, the third a flatter curve."""
    rng = np.random.default_rng(seed)
    rows = np.zeros(count, KIND)
    of = rng.choice(3, count, p=shares)
    rows["identity"], rows["value"], rows["weight"] = np.arange(count), SEGMENTS[of], 1.0
    rows["raw"] = rng.normal(-2, 1.3, count)
    chances = chances_of(rows["raw"].astype(float))
    truth = np.choose(of, [chances, chances / 3, np.sqrt(chances)])
    rows["positive"] = rng.random(count) < truth
    rows["rate"] = 0.25  # of the negatives, each of which weighs four
    kept = rows["positive"] | (rng.random(count) < 0.25)
    return rows[kept], truth[kept]


def passed(rows: Any, curves: Any) -> Any:
    found = curve_rows(key_numbers(rows["value"]), curves)
    return curved(tf.constant(rows["raw"]), found, curves).numpy()


def test_each_segment_is_within_three_percent_of_the_truth() -> None:
    learned, _ = rows_of(150_000, 1)
    curves = curves_of(learned, np.ones(len(learned)))
    assert curves is not None
    later, truth = rows_of(150_000, 2)
    found, weights = passed(later, curves), np.where(later["positive"], 1, 4)
    for segment, at_least in zip(SEGMENTS, (0.0, 0.5, 0.3), strict=True):
        of = later["value"] == segment
        right = (truth * weights)[of].sum()
        before, after = ((chances_of(one[of]) * weights[of]).sum() / right for one in (later["raw"], found))
        assert abs(before - 1) >= at_least
        assert after == pytest.approx(1, abs=0.03)


def test_curves_keep_every_order() -> None:
    rows, _ = rows_of(20_000, 3)
    curves = curves_of(rows, np.ones(len(rows)))
    grid = np.zeros(5_000, KIND)
    grid["raw"] = np.linspace(-12, 12, len(grid))
    for segment in (*SEGMENTS, np.uint64(9) << np.uint64(40)):
        grid["value"] = segment
        assert (np.diff(passed(grid, curves)) > 0).all()


def test_segments_with_few_rows_have_the_curve_of_all_and_zeros_change_nothing() -> None:
    rows, _ = rows_of(20_000, 4, (0.79, 0.2, 0.01))
    curves = curves_of(rows, np.ones(len(rows)))
    assert curves is not None
    assert curves.shape == CURVE_SHAPE
    grid = rows[:500].copy()
    answers = []
    for segment in (SEGMENTS[2], np.uint64(9) << np.uint64(40), SEGMENTS[1]):
        grid["value"] = segment
        answers.append(passed(grid, curves))
    np.testing.assert_array_equal(answers[0], answers[1])
    assert (answers[0] > answers[2]).mean() > 0.9
    np.testing.assert_array_equal(passed(rows, np.zeros(CURVE_SHAPE, np.float32)), rows["raw"])
    assert curves_of(rows[:300], np.ones(300)) is None


def test_equal_logits_are_one_knot() -> None:
    rows, _ = rows_of(20_000, 5)
    rows["raw"] = -1.5
    curves = curves_of(rows, np.ones(len(rows)))
    of = rows["value"] == SEGMENTS[0]
    weight = np.where(rows["positive"], 1, 4)[of]
    share = (weight * rows["positive"][of]).sum() / weight.sum()
    np.testing.assert_allclose(chances_of(passed(rows[of], curves)), share, rtol=1e-5)


def test_the_segments_with_most_rows_have_curves() -> None:
    rows, _ = rows_of(400_000, 6)
    of = np.minimum(np.arange(len(rows)) % 160, 79)  # the last one is the largest
    rows["value"] = (of + 1).astype(np.uint64) << np.uint64(40)
    curves = curves_of(rows, np.ones(len(rows)))
    assert curves is not None
    known = curves[1:, :2]
    assert len(np.unique(known, axis=0)) == len(known) == 64
    assert (known == key_numbers(np.array([80 << 40], np.uint64))).all(axis=1).any()


def test_windows_that_are_left_out_do_not_count() -> None:
    label = LabelRows("click", 0, [60_000], 3_600_000, KIND)
    for begin in range(3):
        rows = np.zeros(begin + 1, KIND)
        label.settle({begin: SettledRows(rows, 0, is_whole=True)})
    for left_out, wanted in (([], 6), ([(60_000, 60_001)], 4), ([(0, 120_000)], 3), ([(119_999, 1 << 62)], 1)):
        newest = label.newest(left_out)
        assert newest is not None
        assert len(newest.rows) == wanted, left_out
    assert label.newest([(0, 1 << 62)]) is None
