"""One figure over a span of windows, with bounds by users, else by windows. It reads and draws nothing."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt

from streamlearn.cli.report.users import FIGURES, UserSums, bounds_of, draws
from streamlearn.errors import ScoresMissing
from streamlearn.times import parse_time_ms, time_text
from streamlearn.trainer.validation import ScoreColumns

__all__ = ["SERVED", "Span", "SpanScore", "span_of", "times_ms_of", "windows_of", "within"]

Floats = npt.NDArray[np.float64]
_SPAN_WIDTHS = 2  # figures of a span are of the shortest windows, or of the next wider ones
_NORMAL = 1.96  # standard errors on each side that make a 95 % interval
SERVED = ("served_auc_ratio", "served_log_loss_nats", "served_mae")
"""The columns of scores with figures of what nodes answered."""


@dataclass(frozen=True)
class SpanScore:
    """The figures of a label over all windows of a span, of all rows or of those with one text of a segment.

    Attributes:
        windows: How many windows there are; those without rows do not count.
        auc: The mean AUC of the windows, weighted by their pairs of a positive and a negative. It compares no rows of
            different windows.
        auc_low: The lower bound of its 95 % interval; likewise `auc_high` and those of other figures. None if unknown.
        interval: "users", over which the intervals are, or "windows" if some windows have no sums by user or there are
            too few users. Then log loss and calibration have none, and users count as others in each window.
        calibration: None if a window has no positives, because what was predicted there is not in the log.
        served_rows: The rows that a node had scored. `served_auc` and the others are of what nodes answered for them,
            with the weights of the figures beside them: if all rows were scored, both can be compared.
    """

    label: str
    segment: str
    text: str
    windows: int
    rows: int
    auc: float | None
    auc_low: float | None
    auc_high: float | None
    log_loss: float | None
    log_loss_low: float | None
    log_loss_high: float | None
    normalised_entropy: float | None
    calibration: float | None
    calibration_low: float | None
    calibration_high: float | None
    mae: float | None
    mae_low: float | None
    mae_high: float | None
    rmse: float | None
    served_rows: int
    served_auc: float | None
    served_log_loss: float | None
    served_mae: float | None
    interval: str


@dataclass(frozen=True)
class Span:
    """The figures of the windows of a width, from the begin of the first to the end of the last."""

    window_s: int
    begin_ms: int
    end_ms: int
    scores: tuple[SpanScore, ...]


def within(scores: ScoreColumns, begin: str, end: str) -> ScoreColumns:
    """Return the windows between two times, given as texts; raises `ScoresMissing` without any."""
    begin_ms, end_ms = times_ms_of(begin, end)
    is_within = np.ones(len(scores), np.bool_)
    if begin_ms is not None:
        is_within &= scores["begin_ms"] >= begin_ms
    if end_ms is not None:
        is_within &= scores["end_ms"] <= end_ms
    if not is_within.any():
        first, last = time_text(int(scores["begin_ms"].min())), time_text(int(scores["end_ms"].max()))
        message = "no window lies between --from and --to"
        raise ScoresMissing(message, help=f"windows were scored from {first} to {last} UTC")
    return scores.where(is_within)


def times_ms_of(begin: str, end: str) -> tuple[int | None, int | None]:
    """Return two times, given as texts; None for an empty one."""
    now = datetime.now(UTC)
    begin_ms, end_ms = (parse_time_ms(text, now) if text else None for text in (begin, end))
    return begin_ms, end_ms


def windows_of(scores: ScoreColumns) -> ScoreColumns:
    """Return the windows that figures of a span are of: hours, or the shortest ones if there are not two hours."""
    widths_ms = scores["end_ms"] - scores["begin_ms"]
    known_ms = np.unique(widths_ms).tolist()[:_SPAN_WIDTHS]
    several = [width_ms for width_ms in known_ms if len(np.unique(scores["begin_ms"][widths_ms == width_ms])) > 1]
    return scores.where(widths_ms == max(several, default=known_ms[0]))


def span_of(scores: ScoreColumns) -> Span:
    """Return the figures over all windows of `windows_of`."""
    windows = windows_of(scores)
    width_ms = int(windows["end_ms"][0] - windows["begin_ms"][0])
    at: dict[tuple[str, str, str], list[int]] = {}
    for row, key in enumerate(zip(*(windows[name].tolist() for name in ("label", "segment", "text")), strict=True)):
        at.setdefault(key, []).append(row)
    order = {label: number for number, label in enumerate(dict.fromkeys(scores["label"].tolist()))}
    found = [_score(*key, windows.where(np.array(rows, np.int64))) for key, rows in at.items()]
    found.sort(key=lambda one: (one.segment, order[one.label], -one.rows, one.text))
    return Span(width_ms // 1_000, int(windows["begin_ms"].min()), int(windows["end_ms"].max()), tuple(found))


def _score(label: str, segment: str, text: str, windows: ScoreColumns) -> SpanScore:
    windows = windows.where(windows["rows"] > 0)
    weight, positive = windows["all_weight"], windows["positives_weight"]
    squares, ratios = windows["rmse"] ** 2, windows["calibration_ratio"]
    errors, pairs, answered = windows["standard_error"], positive * (weight - positive), windows["served_rows"]
    answered = answered / windows["rows"]
    auc, auc_low, auc_high = _bounded(windows["auc_ratio"], pairs, errors)
    mae, mae_low, mae_high = _bounded(windows["mae"], weight, errors)
    log_loss, mean_square = _mean(windows["log_loss_nats"], weight), _mean(squares, weight)
    share = float(positive.sum() / weight.sum()) if mae is None and weight.sum() else 0.0
    base = -share * np.log(share) - (1 - share) * np.log1p(-share) if 0 < share < 1 else None
    served = (pairs * answered**2, weight * answered, weight * answered)
    users = UserSums(windows)
    is_by_user = users.has_all and users.has_enough
    by_user = {figure: bounds_of(users.values(figure, draws())) if is_by_user else (None, None) for figure in FIGURES}
    if is_by_user:
        (auc_low, auc_high), (mae_low, mae_high) = by_user["auc"], by_user["mae"]
    return SpanScore(
        label, segment, text, len(windows), int(windows["rows"].sum()), auc, auc_low, auc_high, log_loss,
        log_loss_low=by_user["log_loss"][0], log_loss_high=by_user["log_loss"][1],
        normalised_entropy=None if log_loss is None or base is None else float(log_loss / base),
        calibration=None if np.isnan(ratios).any() else _mean(ratios, positive),
        calibration_low=by_user["calibration"][0], calibration_high=by_user["calibration"][1],
        mae=mae, mae_low=mae_low, mae_high=mae_high, rmse=None if mean_square is None else mean_square**0.5,
        served_rows=int(windows["served_rows"].sum()), served_auc=_mean(windows[SERVED[0]], served[0]),
        served_log_loss=_mean(windows[SERVED[1]], served[1]),
        served_mae=_mean(windows[SERVED[2]], served[2]), interval="users" if is_by_user else "windows",
    )  # fmt: skip


def _mean(values: Floats, weights: Floats) -> float | None:
    """Return the weighted mean of the values that are defined; None without any."""
    is_known = ~np.isnan(values) & (weights > 0)
    return float(np.average(values[is_known], weights=weights[is_known])) if is_known.any() else None


def _bounded(values: Floats, weights: Floats, errors: Floats) -> tuple[float | None, float | None, float | None]:
    """Return the weighted mean and its 95 % interval; None for the bounds if the error of a value is unknown."""
    is_known = ~np.isnan(values) & (weights > 0)
    mean, shares = _mean(values, weights), weights[is_known] / weights[is_known].sum()
    if mean is None or np.isnan(errors[is_known]).any():
        return mean, None, None
    error = _NORMAL * float(np.sqrt(((shares * errors[is_known]) ** 2).sum()))
    return mean, mean - error, mean + error
