"""Scores of predictions: how well they fit labels, as pure functions of weighted arrays. They know no version."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = [
    "Fit",
    "NumberFit",
    "auc_error_of",
    "auc_of",
    "chances_of",
    "fit_of",
    "logits_of",
    "loss_error_of",
    "losses_of",
    "mean_error_of",
    "number_fit_of",
]

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Fit:
    """How well scores fit one label.

    Attributes:
        rows: Rows that settle the label.
        auc: The chance that a positive scores above a negative, a tie counted half.
        log_loss: The mean of -ln of the probability given to the actual label.
        calibration: The sum of probabilities over the sum of positives; 1 is right.
    """

    rows: int
    auc: float
    log_loss: float
    calibration: float


@dataclass(frozen=True)
class NumberFit:
    """How well predictions fit a label that is a number.

    Attributes:
        mae: The mean absolute error.
        rmse: The root of the mean squared error.
        calibration: The sum of predictions over the sum of the actual numbers; None unless that is above 0.
    """

    mae: float
    rmse: float
    calibration: float | None


def number_fit_of(predicted: Array, actual: Array, weights: Array) -> NumberFit | None:
    """The fit of predictions to numbers; None without weight.

    Examples:
        >>> number_fit_of(np.array([1.0, 5.0]), np.array([2.0, 3.0]), np.ones(2))
        NumberFit(mae=1.5, rmse=1.5811388300841898, calibration=1.2)
    """
    total, whole = float(weights.sum()), float((actual * weights).sum())
    if not total:
        return None
    error = predicted - actual
    return NumberFit(
        mae=float((np.abs(error) * weights).sum()) / total,
        rmse=float(np.sqrt((error * error * weights).sum() / total)),
        calibration=float((predicted * weights).sum()) / whole if whole > 0 else None,
    )


def fit_of(logits: Array, labels: npt.NDArray[np.bool_], weights: Array) -> Fit | None:
    """The fit of logits[n] to labels[n]; None without a positive or without a negative.

    A negative that stands for several others has their number as weight.

    Examples:
        >>> fit_of(np.array([2.0, -1.0, 0.0]), np.array([True, False, False]), np.ones(3)).auc
        1.0
    """
    positive, total = float(weights[labels].sum()), float(weights.sum())
    if positive <= 0 or positive >= total:
        return None
    return Fit(
        rows=len(logits),
        auc=auc_of(logits, labels, weights),
        log_loss=float((losses_of(logits, labels) * weights).sum()) / total,
        calibration=float((chances_of(logits) * weights).sum()) / positive,
    )


def losses_of(logits: Array, labels: npt.NDArray[np.bool_]) -> Array:
    """-ln of the probability that each logit gives to the actual label, without overflow."""
    losses: Array = np.logaddexp(0.0, logits) - np.where(labels, logits, 0.0)
    return losses


def chances_of(logits: Array) -> Array:
    """The probability of a positive that each logit gives."""
    chances: Array = np.exp(-np.logaddexp(0.0, -logits))
    return chances


def logits_of(chances: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The logits of probabilities, which are taken to be at least 1e-7 away from 0 and 1."""
    near = chances.astype(np.float64).clip(1e-7, 1 - 1e-7)
    logits: npt.NDArray[np.float32] = np.log(near / (1 - near)).astype(np.float32)
    return logits


def auc_of(logits: Array, labels: npt.NDArray[np.bool_], weights: Array) -> float:
    """The exact AUC of logits[n]: ties are groups, and every pair counts by the product of its weights.

    Some positive and some negative must have a weight above 0.
    """
    _, _, positive, negative = _ties(logits, labels, weights)
    below = np.cumsum(negative) - negative
    return float((positive * (below + negative / 2)).sum() / (positive.sum() * negative.sum()))


def auc_error_of(now: Array, before: Array, labels: npt.NDArray[np.bool_], weights: Array) -> float:
    """The standard error of the difference between the AUCs of two scores of the same independent rows.

    It is what DeLong, DeLong and Clarke-Pearson (1988) derive: the AUC is a mean over the positives of the share of
    negatives below each, and a mean over the negatives of the share of positives above each.
    """
    moved = _won(now, labels, weights) - _won(before, labels, weights)
    return float(
        np.hypot(mean_error_of(moved[labels], weights[labels]), mean_error_of(moved[~labels], weights[~labels]))
    )


def loss_error_of(now: Array, before: Array, labels: npt.NDArray[np.bool_], weights: Array) -> float:
    """The standard error of the difference between the log losses of two scores of the same independent rows.

    The loss of a row counts as changed by 1 at most: a few rows with absurd scores shall not hide in the error that
    they cause.
    """
    return mean_error_of(np.clip(losses_of(now, labels) - losses_of(before, labels), -1, 1), weights)


def _won(logits: Array, labels: npt.NDArray[np.bool_], weights: Array) -> Array:
    """For each row, the share of rows of the other class that it is ranked rightly against, a tie counted half."""
    order, begins, positive, negative = _ties(logits, labels, weights)
    below = (np.cumsum(negative) - negative / 2) / negative.sum()
    above = 1 - (np.cumsum(positive) - positive / 2) / positive.sum()
    tie_of = np.empty(len(logits), np.int64)
    tie_of[order] = np.repeat(np.arange(len(begins)), np.diff(begins, append=len(logits)))
    won: Array = np.where(labels, below[tie_of], above[tie_of])
    return won


def _ties(logits: Array, labels: npt.NDArray[np.bool_], weights: Array) -> tuple[Ints, Ints, Array, Array]:
    """The rows by logit; where each group of equal logits begins; its weight of positives and of negatives."""
    order = np.argsort(logits)  # the order within a tie does not matter
    begins = np.concatenate(([0], np.flatnonzero(np.diff(logits[order])) + 1))
    positive = np.add.reduceat(np.where(labels, weights, 0.0)[order], begins)
    negative = np.add.reduceat(np.where(labels, 0.0, weights)[order], begins)
    return order, begins, positive, negative


def mean_error_of(values: Array, weights: Array) -> float:
    """The standard error of the weighted mean of independent values."""
    total = weights.sum()
    mean = (values * weights).sum() / total
    return float(np.sqrt((np.square(weights * (values - mean))).sum()) / total)
