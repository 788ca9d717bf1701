"""Interval scores: how good predictions of the same rows are by the age of what made them. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.trainer.validation.rows import Rows, SettledRows, Uint64s
from streamlearn.trainer.validation.score import Parts, scores_of

__all__ = ["IntervalScore", "interval_scores"]

Float64s = npt.NDArray[np.float64]

_REPEATS, _SEED = 200, 7
_LOW, _HIGH = 2.5, 97.5


@dataclass(frozen=True)
class IntervalScore:
    """The score of one label with versions at one interval, over all rows or those with one text of a segment.

    Attributes:
        every: The interval as it was given, such as "1m"; or "served", of the scores that nodes answered.
        gain: AUC minus that of the last interval given; of a label that is a number, how much lower its mean absolute
            error is.
        gain_low: The lower bound of its 95 % interval, by a bootstrap over users; likewise `gain_high`.
    """

    label: str
    every: str
    rows: int
    positives: float
    auc: float | None
    log_loss: float | None
    calibration: float | None
    gain: float | None
    gain_low: float | None
    gain_high: float | None
    mae: float | None = None
    segment: str = ""
    text: str = ""


def interval_scores(
    label: str,
    rows: Rows,
    users: Uint64s,
    logits: Mapping[str, npt.NDArray[np.float32]],
    part: tuple[str, str] = ("", ""),
) -> list[IntervalScore]:
    """Return the scores of a label, in the order of the intervals.

    Args:
        label: The label.
        rows: The rows with final labels, each once; their logits are ignored.
        users: uint64[n], the user of each row.
        logits: By interval, the prediction of each row.
        part: The segment and the text that the rows have.
    """
    if not len(rows):
        return []
    positive, predictions = rows["positive"], [one.astype(np.float64) for one in logits.values()]
    weights = rows["weight"].astype(np.float64) / np.where(positive, 1.0, rows["rate"])
    if "number" in (rows.dtype.names or ()):
        gains = _gains([_Accuracy(one, rows["number"]) for one in predictions], weights, users)
    elif weights[positive].sum() and weights[~positive].sum():
        gains = _gains([_Auc(one, positive) for one in predictions], weights, users)
    else:
        gains = None
    found, begin = [], np.zeros(1, np.int64)
    for number, (every, predicted) in enumerate(logits.items()):
        rows["logit"] = predicted
        (score,) = scores_of(Parts.of([SettledRows(rows, 0, True)]).windows(label, 0, begin, slice(0, 1), []), ())
        gain, low, high = (None, None, None) if gains is None else gains[number]
        found.append(
            IntervalScore(
                label, every, score.rows, score.positives, score.auc, score.log_loss, score.calibration,
                gain, low, high, score.mae, *part,
            )
        )  # fmt: skip
    return found


def _gains(
    predictions: Sequence[_Auc | _Accuracy], weights: Float64s, users: Uint64s
) -> list[tuple[float, float, float]]:
    """Return how much better each is than the last one, with bounds."""
    at = np.unique(users, return_inverse=True)[1]
    rng, count = np.random.default_rng(_SEED), int(at.max()) + 1
    samples = [weights * rng.poisson(1.0, count)[at] for _ in range(_REPEATS)]
    found = [np.array([prediction.of(one) for one in (weights, *samples)]) for prediction in predictions]
    gains = []
    for one in found:
        gain, *repeated = one - found[-1]
        low, high = np.nanpercentile(repeated, [_LOW, _HIGH])
        gains.append((float(gain), float(low), float(high)))
    return gains


class _Accuracy:
    """The negative mean absolute error of some predictions of numbers under any weights."""

    def __init__(self, predicted: Float64s, actual: npt.NDArray[np.float32]) -> None:
        self._errors = np.abs(predicted - actual)

    def of(self, weights: Float64s) -> float:
        """Return it; NaN without weight."""
        total = weights.sum()
        return -float((self._errors * weights).sum() / total) if total else float("nan")


class _Auc:
    """The AUC of some predictions under any weights; they are sorted once."""

    def __init__(self, logits: Float64s, positive: npt.NDArray[np.bool_]) -> None:
        self._order = np.argsort(logits, kind="stable")
        ranked = logits[self._order]
        self._positive = positive[self._order]
        self._begins = np.flatnonzero(np.concatenate(([True], ranked[1:] != ranked[:-1])))

    def of(self, weights: Float64s) -> float:
        """Return the AUC; NaN without positives or negatives."""
        mine = weights[self._order]
        positives, negatives = (
            np.add.reduceat(np.where(mask, mine, 0.0), self._begins) for mask in (self._positive, ~self._positive)
        )
        below = np.cumsum(negatives) - negatives
        pairs: Any = positives.sum() * negatives.sum()
        return float((positives * (below + negatives / 2)).sum() / pairs) if pairs else float("nan")
