"""WindowScore: how well first predictions of one label in one window match the final labels. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamlearn.publisher.logit_scores import auc_of, chances_of, losses_of
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
    positives: float  # the weight of positives; with `kept` below 1, estimated for all rows
    weight: float  # the weight of all rows, where a negative counts 1 / the share of negatives kept; estimated likewise
    auc: float | None  # the probability that a positive ranks above a negative, ties half; None without both kinds
    log_loss: float | None  # the mean of -ln of the probability given to what happened; None without weight
    calibration: float | None  # the sum of probabilities over the weight of positives; None without positives
    base_entropy: float | None  # the log loss of always predicting the share of positives; None without weight
    kept: float  # the share of the window's rows that were held to be scored
    is_complete: bool  # whether every row of the window was scored with its first prediction, as far as is known

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
    fitted = _Fitted(logits, positive, weights, losses_of(logits, positive), chances_of(logits))
    yield _score(window, "", "", fitted, (kept, is_complete))
    for at, (segment, texts) in enumerate(segments):
        codes = rows["codes"][:, at]
        order = np.argsort(codes, kind="stable")
        counts = np.bincount(codes, minlength=len(texts))
        for code, mine in enumerate(np.split(order, np.cumsum(counts)[:-1])):
            if len(mine):
                yield _score(window, segment, texts[code], fitted.of(mine), (kept, is_complete))


def _score(window: Window, segment: str, text: str, rows: _Fitted, kept: tuple[float, bool]) -> WindowScore:
    positives, negatives = (float(rows.weights[mask].sum()) for mask in (rows.positive, ~rows.positive))
    weight = positives + negatives
    return WindowScore(
        **vars(window),
        segment=segment,
        text=text,
        rows=len(rows.logits),
        positives=positives,
        weight=weight,
        auc=auc_of(rows.logits, rows.positive, rows.weights) if positives and negatives else None,
        log_loss=float((rows.losses * rows.weights).sum()) / weight if weight else None,
        calibration=float((rows.chances * rows.weights).sum()) / positives if positives else None,
        base_entropy=_entropy(positives / weight) if weight else None,
        kept=kept[0],
        is_complete=kept[1],
    )


def _entropy(share: float) -> float:
    return -sum(value * math.log(value) for value in (share, 1.0 - share) if value > 0)
