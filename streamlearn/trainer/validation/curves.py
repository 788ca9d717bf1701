"""Curves: fits isotonic calibrations to first predictions and what became of them. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from streamlearn.features.combination import CURVE_KNOTS, CURVE_SHAPE
from streamlearn.publisher.logit_scores import chances_of
from streamlearn.table.derivation import key_numbers
from streamlearn.trainer.validation.rows import Rows

__all__ = ["curves_of", "pooled"]

Float64s = npt.NDArray[np.float64]
Float32s = npt.NDArray[np.float32]

# A segment with fewer rows of either kind has the curve of all rows: its own would be off by 7 % by chance alone.
_ROWS_OF_KIND_MIN = 200
# A knot stands for at least as many rows of the rarer kind.
_ROWS_OF_KNOT_MIN = 50
_ROWS_MAX = 1 << 20
_CHANCE_MIN = 1e-7


def curves_of(rows: Rows, stand_for: Float64s) -> Float32s | None:
    """Return the curves of a label, see `CURVE_SHAPE`, from rows with final labels; None if there are too few rows."""
    every = -(-len(rows) // _ROWS_MAX)  # rows of a window are in the order of a hash, so this is a fair sample
    rows, stand_for = rows[::every], stand_for[::every]
    weights = rows["weight"].astype(np.float64) / np.where(rows["positive"], 1.0, rows["rate"]) * stand_for
    values, of_value = np.unique(rows["value"], return_inverse=True)
    ends = np.cumsum(np.bincount(of_value))
    logits, is_positive = rows["raw"].astype(np.float64), rows["positive"]
    by_logit = np.argsort(logits, kind="stable")
    whole = _knots(logits[by_logit], is_positive[by_logit], weights[by_logit])
    if whole is None:
        return None
    order = np.lexsort((logits, of_value))
    logits, is_positive, weights = logits[order], is_positive[order], weights[order]
    curves = np.zeros(CURVE_SHAPE, np.float32)
    curves[:, :2], curves[0, 2:] = -1.0, whole
    largest = np.argsort(-np.diff(ends, prepend=0), kind="stable")[: len(curves) - 1]
    for at, value in enumerate(sorted(largest.tolist()), 1):
        of = slice(ends[value - 1] if value else 0, ends[value])
        knots = _knots(logits[of], is_positive[of], weights[of])
        if knots is not None and values[value]:  # 0 is no key: rows of an unknown value
            curves[at, :2], curves[at, 2:] = key_numbers(values[value : value + 1])[0], knots
    return curves


def _knots(logits: Float64s, is_positive: npt.NDArray[np.bool_], weights: Float64s) -> Float32s | None:
    """Return the knots of rows in the order of their logits; None if there are too few rows of either kind."""
    positives = int(np.count_nonzero(is_positive))
    rarer = min(positives, len(logits) - positives)
    if rarer < _ROWS_OF_KIND_MIN:
        return None
    passed = np.cumsum(is_positive if rarer == positives else ~is_positive)
    bins = np.maximum(passed - 1, 0) * min(CURVE_KNOTS, rarer // _ROWS_OF_KNOT_MIN) // rarer
    is_first = np.append(True, logits[1:] != logits[:-1])
    bins = bins[np.flatnonzero(is_first)[np.cumsum(is_first) - 1]]  # equal logits share a bin
    sums = [np.bincount(bins, column) for column in (weights, weights * chances_of(logits), weights * is_positive)]
    filled = np.stack(sums, axis=1).astype(np.float64)[np.bincount(bins) > 0]
    knots = np.array([*pooled(filled, weights.mean() / 2)], np.float32)
    return np.pad(knots, ((0, CURVE_KNOTS - len(knots)), (0, 0)), mode="edge").T.reshape(-1)


def pooled(bins: Float64s, least: float) -> Iterator[tuple[float, float]]:
    """Yield increasing knots: the mean predicted and the mean actual probability of pooled bins, both as logits.

    `bins` is (B, 3), by ascending predictions: weight, sum of probabilities, weight of positives. Neighbours whose
    actual probability does not increase are pooled (Ayer et al., 1955), which is the isotonic regression of the bins.
    A pool has at least the weight `least` of positives and of negatives, so that no logit is infinite.
    """
    pools: list[tuple[Float64s, float, float]] = []
    for sums in bins:
        pools.append((sums, *_knot(sums, least)))
        while len(pools) > 1 and not (pools[-2][1] < pools[-1][1] and pools[-2][2] < pools[-1][2]):
            both = pools.pop()[0] + pools.pop()[0]
            pools.append((both, *_knot(both, least)))
    yield from ((first, then) for _, first, then in pools)


def _knot(sums: Float64s, least: float) -> tuple[float, float]:
    weight, chance, positive = sums.tolist()
    predicted = min(max(chance / weight, _CHANCE_MIN), 1 - _CHANCE_MIN)
    actual = min(max(positive, least), weight - least)
    odds = predicted / (1 - predicted), actual / (weight - actual)
    return float(np.float32(np.log(odds[0]))), float(np.float32(np.log(odds[1])))
