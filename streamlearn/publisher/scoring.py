"""Scoring: how well logits fit labels, as pure functions of weighted arrays. It knows no version and no sample."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Fit", "fit_of"]

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Fit:
    """How well scores fit one label.

    Attributes:
        rows: How many rows settle the label.
        auc: The chance that a positive scores above a negative, a tie counted half.
        log_loss: The mean of -ln of the probability given to what happened.
        calibration: The sum of probabilities over the sum of positives; 1 is right.
    """

    rows: int
    auc: float
    log_loss: float
    calibration: float


def fit_of(logits: Array, labels: npt.NDArray[np.bool_], weights: Array) -> Fit | None:
    """The fit of logits to labels; None without a positive or without a negative.

    Args:
        logits: float64[n].
        labels: bool[n].
        weights: float64[n]. A negative that stands for others weighs as many.

    Examples:
        >>> fit_of(np.array([2.0, -1.0, 0.0]), np.array([True, False, False]), np.ones(3)).auc
        1.0
    """
    positive, total = float(weights[labels].sum()), float(weights.sum())
    if positive <= 0 or positive >= total:
        return None
    # ln(1 + e^z) without overflow.
    losses = np.logaddexp(0.0, logits) - np.where(labels, logits, 0.0)
    chances = np.exp(-np.logaddexp(0.0, -logits))
    return Fit(
        rows=len(logits),
        auc=_auc(logits, labels, weights),
        log_loss=float((losses * weights).sum()) / total,
        calibration=float((chances * weights).sum()) / positive,
    )


def _auc(logits: Array, labels: npt.NDArray[np.bool_], weights: Array) -> float:
    """Exact: ties are groups, and every pair counts by the product of its weights."""
    order = np.argsort(logits, kind="stable")
    ranked = logits[order]
    begins = np.concatenate(([0], np.flatnonzero(np.diff(ranked)) + 1))
    positive = np.add.reduceat(np.where(labels, weights, 0.0)[order], begins)
    negative = np.add.reduceat(np.where(labels, 0.0, weights)[order], begins)
    below = np.cumsum(negative) - negative
    return float((positive * (below + negative / 2)).sum() / (positive.sum() * negative.sum()))
