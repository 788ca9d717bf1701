"""WindowScore: how well first predictions of one label in one window match the final labels. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamlearn.publisher.logit_scores import auc_of, chances_of, losses_of, number_fit_of
from streamlearn.trainer.validation.rows import SettledRows, joined

__all__ = ["Window", "WindowScore", "scores_of"]

Float64s = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Window:
    """A window of one label: impressions from `begin_ms` to before `end_ms`, event time."""

    label: str
    begin_ms: int
    end_ms: int


@dataclass(frozen=True)
class WindowScore:
    """The score of one window, over all its rows or over those with one text of a segment."""

    label: str
    begin_ms: int  # the event time of the window's begin
    end_ms: int  # its end, exclusive
    segment: str  # the segment; empty for all rows
    text: str
    rows: int  # scored rows
    positives: float  # the weight of positives, or the sum of numbers; with `kept` below 1, estimated for all rows
    weight: float  # the weight of all rows, where a negative counts 1 / the share of negatives kept; estimated likewise
    auc: float | None  # the probability that a positive ranks above a negative, ties half; None without both kinds
    log_loss: float | None  # the mean of -ln of the probability given to what happened; None without weight
    calibration: float | None  # the sum of probabilities or predicted numbers over `positives`; None without these
    base_entropy: float | None  # the log loss of always predicting the share of positives; None without weight
    kept: float  # the share of the window's rows that were held to be scored
    is_complete: bool  # whether every row of the window was scored with its first prediction, as far as is known
    mae: float | None = None  # of a label that is a number: the mean absolute error; None of any other
    rmse: float | None = None  # the root of the mean squared error, likewise

    @property
    def window_s(self) -> int:
        """The width of the window."""
        return (self.end_ms - self.begin_ms) // 1_000

    @property
    def normalised_entropy(self) -> float | None:
        """The log loss over the base entropy: below 1 is better than predicting the share of positives."""
        return self.log_loss / self.base_entropy if self.base_entropy and self.log_loss is not None else None


@dataclass(frozen=True, eq=False)
class _Fitted:
    """Rows with everything that scores are computed from; each array has n values."""

    logits: Float64s
    positive: npt.NDArray[np.bool_]
    weights: Float64s
    losses: Float64s
    chances: Float64s

    def of(self, rows: npt.NDArray[np.int64]) -> _Fitted:
        return _Fitted(*(column[rows] for column in vars(self).values()))

    def score(self, window: Window, segment: str, text: str, kept: tuple[float, bool]) -> WindowScore:
        positives, negatives = (float(self.weights[mask].sum()) for mask in (self.positive, ~self.positive))
        weight = positives + negatives
        return WindowScore(
            **vars(window),
            segment=segment,
            text=text,
            rows=len(self.logits),
            positives=positives,
            weight=weight,
            auc=auc_of(self.logits, self.positive, self.weights) if positives and negatives else None,
            log_loss=float((self.losses * self.weights).sum()) / weight if weight else None,
            calibration=float((self.chances * self.weights).sum()) / positives if positives else None,
            base_entropy=_entropy(positives / weight) if weight else None,
            kept=kept[0],
            is_complete=kept[1],
        )


@dataclass(frozen=True, eq=False)
class _FittedNumbers:
    """Rows of a label that is a number; each array has n values."""

    predicted: Float64s
    actual: Float64s
    weights: Float64s

    def of(self, rows: npt.NDArray[np.int64]) -> _FittedNumbers:
        return _FittedNumbers(*(column[rows] for column in vars(self).values()))

    def score(self, window: Window, segment: str, text: str, kept: tuple[float, bool]) -> WindowScore:
        fit = number_fit_of(self.predicted, self.actual, self.weights)
        return WindowScore(
            **vars(window),
            segment=segment,
            text=text,
            rows=len(self.actual),
            positives=float((self.actual * self.weights).sum()),
            weight=float(self.weights.sum()),
            auc=None,
            log_loss=None,
            calibration=None if fit is None else fit.calibration,
            base_entropy=None,
            kept=kept[0],
            is_complete=kept[1],
            mae=None if fit is None else fit.mae,
            rmse=None if fit is None else fit.rmse,
        )


def scores_of(
    window: Window, settled: Sequence[SettledRows], segments: Sequence[tuple[str, Sequence[str]]], *, is_whole: bool
) -> Iterator[WindowScore]:
    """Yield the score of a window, then those of each text of each segment; nothing without rows.

    Parts of the window may be thinned differently: a row counts for all rows it stands for. `segments` holds each
    segment's name and its texts by code. `is_whole` states whether no row is missing that the parts do not know of.
    """
    if not sum(map(len, settled)):
        return
    rows = joined([part.rows for part in settled])
    stand = [(len(part), 2.0**part.halvings) for part in settled]
    kept = len(rows) / sum(count * factor for count, factor in stand)
    is_complete = is_whole and kept == 1.0 and all(part.is_whole for part in settled)
    positive = rows["positive"]
    weights = rows["weight"].astype(np.float64) / np.where(positive, 1.0, rows["rate"])
    weights *= np.repeat([factor for _, factor in stand], [count for count, _ in stand])
    logits = rows["logit"].astype(np.float64)
    fitted: _Fitted | _FittedNumbers
    if "number" in (rows.dtype.names or ()):
        fitted = _FittedNumbers(logits, rows["number"].astype(np.float64), weights)
    else:
        fitted = _Fitted(logits, positive, weights, losses_of(logits, positive), chances_of(logits))
    yield fitted.score(window, "", "", (kept, is_complete))
    for at, (segment, texts) in enumerate(segments):
        codes = rows["codes"][:, at]
        order = np.argsort(codes, kind="stable")
        counts = np.bincount(codes, minlength=len(texts))
        for code, mine in enumerate(np.split(order, np.cumsum(counts)[:-1])):
            if len(mine):
                yield fitted.of(mine).score(window, segment, texts[code], (kept, is_complete))


def _entropy(share: float) -> float:
    return -sum(value * math.log(value) for value in (share, 1.0 - share) if value > 0)
