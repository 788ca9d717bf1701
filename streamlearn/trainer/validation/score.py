"""WindowScore: how well first predictions of one label in one window fitted what happened. Pure."""

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
    """A window of one label: impressions from `begin_ms` on and before `end_ms`, event time."""

    label: str
    begin_ms: int
    end_ms: int


@dataclass(frozen=True)
class WindowScore:
    """The score of one window, of all its rows or of those with one text of a segment.

    Attributes:
        label: The label.
        begin_ms: Impressions from here on, event time.
        end_ms: Impressions before here.
        segment: The segment; empty for all rows.
        text: Its text.
        rows: Rows that were scored.
        positives: Weight of positives. With `kept` below 1, what it is estimated to be for all rows.
        weight: Weight of all, a negative's over the share of negatives kept; estimated likewise.
        auc: The chance that a positive is above a negative, a tie counted half; None without both kinds.
        log_loss: The mean of -ln of the chance given to what happened; None without weight.
        calibration: The sum of chances over the weight of positives; None without positives.
        base_entropy: The log loss of always saying the share of positives; log loss over it is the normalised
            entropy. None without weight.
        kept: The share of the window's rows that were held to be scored.
        is_complete: Whether every row of the window was scored as it was first predicted, as far as is known.
    """

    label: str
    begin_ms: int
    end_ms: int
    segment: str
    text: str
    rows: int
    positives: float
    weight: float
    auc: float | None
    log_loss: float | None
    calibration: float | None
    base_entropy: float | None
    kept: float
    is_complete: bool

    @property
    def window_s(self) -> int:
        """How wide the window is."""
        return (self.end_ms - self.begin_ms) // 1_000

    @property
    def normalised_entropy(self) -> float | None:
        """The log loss in shares of the base entropy: below 1 is better than the share of positives alone."""
        return self.log_loss / self.base_entropy if self.base_entropy and self.log_loss is not None else None


@dataclass(frozen=True, eq=False)
class _Fitted:
    """Rows with all that scores are made of; each array has n values."""

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
    """The score of a window, then those of each text of each segment; none without rows.

    Args:
        window: The window.
        settled: Its rows. Where parts of it were thinned unlike, each row weighs as many as it stands for.
        segments: The names of the segments, each with its texts by code.
        is_whole: Whether nothing is known to be missing, beyond what the rows themselves say.
    """
    if not sum(map(len, settled)):
        return
    rows = joined([one.rows for one in settled])
    stand = [(len(one), 2.0**one.halvings) for one in settled]
    kept = len(rows) / sum(count * factor for count, factor in stand)
    is_complete = is_whole and kept == 1.0 and all(one.is_whole for one in settled)
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
    positives, negatives = (float(rows.weights[one].sum()) for one in (rows.positive, ~rows.positive))
    weight = positives + negatives
    return WindowScore(
        label=window.label,
        begin_ms=window.begin_ms,
        end_ms=window.end_ms,
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
    return -sum(one * math.log(one) for one in (share, 1.0 - share) if one > 0)
