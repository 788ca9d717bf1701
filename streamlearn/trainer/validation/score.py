"""WindowScore: how well first predictions of one label in one window match the final labels. Pure functions.

Windows are scored together: nothing here loops over them but the making of their scores.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from streamlearn.errors import BadRecord
from streamlearn.publisher.logit_scores import chances_of, logits_of, losses_of
from streamlearn.trainer.validation.rows import ARM, USER_GROUPS, Rows, SettledRows, joined, taken

__all__ = ["ClosedWindows", "Parts", "WindowScore", "scores_of", "user_sums_of"]

Bools = npt.NDArray[np.bool_]
Float64s = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]
Objects = npt.NDArray[np.object_]  # float64, or None

_CODES = 256  # codes of texts are bytes
_BY_USER_MS = 3_600_000  # windows of at least this width have sums by group of users of all figures
_PARTED = ("positive", "negative", "error", "weight")  # the columns that standard errors need by row


class WindowScore(msgspec.Struct, frozen=True, gc=False):
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
    standard_error: float | None = None  # of the AUC or the MAE; rows of one user count as one. None with one user
    user_sums: str = ""  # of an arm, and of a window of an hour or more: sums by group of users; see `user_sums_of`
    served_rows: int = 0  # the rows among them that a node had scored
    served_auc: float | None = None  # the AUC of what nodes answered for these rows; likewise the others
    served_log_loss: float | None = None
    served_mae: float | None = None

    @property
    def window_s(self) -> int:
        """The width of the window."""
        return (self.end_ms - self.begin_ms) // 1_000

    @property
    def normalised_entropy(self) -> float | None:
        """The log loss over the base entropy: below 1 is better than predicting the share of positives."""
        return self.log_loss / self.base_entropy if self.base_entropy and self.log_loss is not None else None


@dataclass(frozen=True, eq=False)
class ClosedWindows:
    """W windows of one label with N rows: impressions of the `width_ms` before `end_ms` of event time."""

    label: str
    width_ms: int
    end_ms: Int64s  # int64[W]
    rows: Rows  # N rows, window by window
    counts: Int64s  # int64[W]: the rows of each window, at least one
    stand_for: Float64s  # float64[N]: how many rows a row stands for
    is_complete: Bools  # bool[W]


@dataclass(frozen=True, eq=False)
class Parts:
    """The rows of P settled windows, joined; each array but `rows` has a value for each."""

    rows: Rows
    counts: Int64s
    factors: Float64s  # how many rows a row stands for
    is_whole: Bools

    @classmethod
    def of(cls, settled: Sequence[SettledRows]) -> Parts:
        """Join settled windows; there is at least one."""
        counts = np.array([len(part) for part in settled], np.int64)
        factors = np.array([2.0**part.halvings for part in settled])
        return cls(
            joined([part.rows for part in settled]), counts, factors, np.array([part.is_whole for part in settled])
        )

    def windows(
        self, label: str, width_ms: int, end_ms: Int64s, span: slice, lacking_ms: Sequence[int]
    ) -> ClosedWindows:
        """Return windows made of the parts in `span`; parts with the same end in `end_ms` follow each other.

        `lacking_ms` holds the ends of windows that lack rows which no part knows of.
        """
        counts, factors = self.counts[span], self.factors[span]
        first = int(self.counts[: span.start].sum())
        begins = np.flatnonzero(np.append(True, end_ms[1:] != end_ms[:-1]))
        is_complete = self.is_whole[span] & (factors == 1.0) & ~np.isin(end_ms, lacking_ms)
        return ClosedWindows(
            label,
            width_ms,
            end_ms[begins],
            self.rows[first : first + int(counts.sum())],
            np.add.reduceat(counts, begins),
            np.repeat(factors, counts),
            np.logical_and.reduceat(is_complete, begins),
        )


def scores_of(
    closed: ClosedWindows, segments: Sequence[tuple[str, Sequence[str]]], *, learned_before_ms: int | None = None
) -> list[WindowScore]:
    """Return the scores of all windows, then those of each text of each segment.

    `segments` holds each segment's name and its texts by code. Windows that do not begin after `learned_before_ms` are
    not complete.
    """
    scores = _scores_of(closed, segments, learned_before_ms)
    is_served = np.isfinite(closed.rows["served"])
    if not is_served.any():
        return scores
    served = {
        (one.end_ms, one.segment, one.text): one for one in _scores_of(_served(closed, is_served), segments, None)
    }
    return [
        msgspec.structs.replace(
            score, served_rows=one.rows, served_auc=one.auc, served_log_loss=one.log_loss, served_mae=one.mae
        )
        if (one := served.get((score.end_ms, score.segment, score.text)))
        else score
        for score in scores
    ]


def _served(closed: ClosedWindows, is_served: Bools) -> ClosedWindows:
    """Return the windows with the rows that a node scored, and its scores as predictions."""
    counts = np.add.reduceat(is_served, np.cumsum(closed.counts) - closed.counts, dtype=np.int64)
    rows = taken(closed.rows, is_served)
    rows["logit"] = rows["served"] if "number" in (rows.dtype.names or ()) else logits_of(rows["served"])
    some = counts > 0
    return replace(
        closed, end_ms=closed.end_ms[some], rows=rows, counts=counts[some], stand_for=closed.stand_for[is_served],
        is_complete=closed.is_complete[some],
    )  # fmt: skip


def _scores_of(
    closed: ClosedWindows, segments: Sequence[tuple[str, Sequence[str]]], learned_before_ms: int | None
) -> list[WindowScore]:
    rows, is_complete = closed.rows, closed.is_complete
    if learned_before_ms is not None:
        is_complete = is_complete & (closed.end_ms - closed.width_ms > learned_before_ms)
    weights = rows["weight"].astype(np.float64) / np.where(rows["positive"], 1.0, rows["rate"]) * closed.stand_for
    is_number = "number" in (rows.dtype.names or ())
    summed = _number_columns(rows, weights) if is_number else _positive_columns(rows, weights)
    del weights
    kept = closed.counts / np.add.reduceat(closed.stand_for, np.cumsum(closed.counts) - closed.counts)
    window = np.repeat(np.arange(len(closed.counts)), closed.counts)
    scores: list[WindowScore] = []
    for at, (segment, texts) in enumerate([("", ("",)), *segments]):
        codes = rows["codes"][:, at - 1] if at else np.zeros(len(rows), np.uint8)
        group = window * _CODES + codes
        order = np.lexsort((rows["logit"], group))
        begins = np.flatnonzero(np.append(True, np.diff(group[order]) != 0))
        of_group, first = window[order[begins]], order[begins]
        del group
        columns, sums = dict[str, Float64s](), dict[str, Float64s]()
        for name, column in summed.items():
            ordered = column[order]
            sums[name] = np.add.reduceat(ordered, begins)
            if name in _PARTED:
                columns[name] = ordered
        counts = np.diff(np.append(begins, len(rows)))
        if is_number:
            fields, errors = _number_fields(sums)
            parts = _error_parts(columns, sums, counts)
        else:
            auc, parts = _aucs(rows["logit"][order], columns["positive"], columns["negative"], begins)
            fields, errors = _positive_fields(sums, auc)
        errors = (*errors, _standard_errors(parts, rows["user"][order], counts))
        by_user: Sequence[str] = ()
        if closed.width_ms >= _BY_USER_MS or segment == ARM:
            more = parts if closed.width_ms >= _BY_USER_MS else None
            by_user = _user_sums(summed, order, rows["user"], counts, more)
        scores += map(
            WindowScore,
            repeat(closed.label),
            (closed.end_ms[of_group] - closed.width_ms).tolist(),
            closed.end_ms[of_group].tolist(),
            repeat(segment),
            [texts[code] for code in codes[first].tolist()],
            counts.tolist(),
            *(field.tolist() for field in fields),
            kept[of_group].tolist(),
            is_complete[of_group].tolist(),
            *(error.tolist() for error in errors),
            by_user or repeat(""),
        )
    return scores


def _positive_columns(rows: Rows, weights: Float64s) -> dict[str, Float64s]:
    """Return what the scores of a label are sums of, by row."""
    logits, is_positive = rows["logit"].astype(np.float64), rows["positive"]
    return {
        "positive": np.where(is_positive, weights, 0.0),
        "negative": np.where(is_positive, 0.0, weights),
        "loss": losses_of(logits, is_positive) * weights,
        "chance": chances_of(logits) * weights,
    }


def _positive_fields(sums: dict[str, Float64s], auc: Objects) -> tuple[tuple[Any, ...], tuple[Objects, ...]]:
    """Return the fields of scores from `positives` to `base_entropy`; then `mae` and `rmse`, all None."""
    positives, weight = sums["positive"], sums["positive"] + sums["negative"]
    share = np.divide(positives, weight, out=np.zeros_like(weight), where=weight > 0)
    entropy = sum((-one * np.log(np.where(one > 0, one, 1.0)) for one in (share, 1.0 - share)), np.zeros(len(share)))
    log_loss, calibration = _ratio(sums["loss"], weight), _ratio(sums["chance"], positives)
    none = np.full(len(weight), None)
    return (positives, weight, auc, log_loss, calibration, _known(entropy, weight > 0)), (none, none)


def _number_columns(rows: Rows, weights: Float64s) -> dict[str, Float64s]:
    """Return what the scores of a label that is a number are sums of, by row."""
    predicted, actual = rows["logit"].astype(np.float64), rows["number"].astype(np.float64)
    error = predicted - actual
    return {
        "actual": actual * weights,
        "weight": weights,
        "predicted": predicted * weights,
        "error": np.abs(error) * weights,
        "square": error * error * weights,
    }


def _number_fields(sums: dict[str, Float64s]) -> tuple[tuple[Any, ...], tuple[Objects, ...]]:
    """Return the same fields of a label that is a number."""
    actual, weight, none = sums["actual"], sums["weight"], np.full(len(sums["weight"]), None)
    square = np.divide(sums["square"], weight, out=np.zeros_like(weight), where=weight > 0)
    errors = _ratio(sums["error"], weight), _known(np.sqrt(square), weight > 0)
    return (actual, weight, none, none, _ratio(sums["predicted"], actual), none), errors


def _error_parts(columns: dict[str, Float64s], sums: dict[str, Float64s], counts: Int64s) -> Float64s:
    """Return what each row adds to the deviation of its group's mean absolute error; see `_standard_errors`."""
    weight = np.repeat(sums["weight"], counts)
    mean = np.divide(np.repeat(sums["error"], counts), weight, out=np.zeros_like(weight), where=weight > 0)
    parts = columns["error"] - mean * columns["weight"]
    return np.divide(parts, weight, out=np.full_like(weight, np.nan), where=weight > 0)


def _aucs(logits: Rows, positive: Float64s, negative: Float64s, begins: Int64s) -> tuple[Objects, Float64s]:
    """Return the AUC of each group of rows, sorted by group and logit, and what each row adds to its deviation.

    A row adds the share of pairs that it wins, less the AUC (DeLong, DeLong and Clarke-Pearson, 1988).
    """
    is_tie = np.append(True, logits[1:] != logits[:-1])
    is_tie[begins] = True
    ties = np.flatnonzero(is_tie)
    of_ties = [np.add.reduceat(weights, ties) for weights in (positive, negative)]
    totals = [np.add.reduceat(weights, begins) for weights in (positive, negative)]
    first = np.searchsorted(ties, begins)
    sizes = np.diff(np.append(first, len(ties)))
    # For each tie, the weight of its group's negatives below it, and of its positives; half of its own.
    positives, negatives = (np.cumsum(weights) - weights / 2 for weights in of_ties)
    for passed, weights in ((positives, of_ties[0]), (negatives, of_ties[1])):
        passed -= np.repeat(passed[first] - weights[first] / 2, sizes)
    won = np.add.reduceat(of_ties[0] * negatives, first)
    del of_ties
    pairs = totals[0] * totals[1]
    auc = np.divide(won, pairs, out=np.full(len(won), np.nan), where=pairs > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        negatives -= np.repeat(auc * totals[1], sizes)
        negatives /= np.repeat(pairs, sizes)
        positives -= np.repeat((1 - auc) * totals[0], sizes)
        positives /= np.repeat(-pairs, sizes)
        tie_of = np.cumsum(is_tie, dtype=np.int32) - np.int32(1)
        parts = negatives[tie_of]
        parts *= positive
        parts += positives[tie_of] * negative
    return _known(auc, ~np.isnan(auc)), parts


def _standard_errors(parts: Float64s, users: Rows, counts: Int64s) -> Objects:
    """Return the standard error of each group's figure. `parts` has what each row adds to the figure's deviation.

    Users are independent of each other, but the rows of one user are not. So the parts are summed by groups of users
    and squared; this has the same mean as with sums by user.
    """
    key = np.repeat(np.arange(len(counts)), counts) * USER_GROUPS + users
    order = np.argsort(key, kind="stable")
    begins = np.flatnonzero(np.append(True, np.diff(key[order]) != 0))
    squares = np.add.reduceat(parts[order], begins) ** 2
    group = key[order[begins]] // USER_GROUPS
    several = np.bincount(group, minlength=len(counts))
    variance = np.bincount(group, squares, len(counts)) * several / np.maximum(several - 1, 1)
    return _known(np.sqrt(variance), (several > 1) & ~np.isnan(variance))


def _user_sums(
    summed: dict[str, Float64s], order: Int64s, users: Rows, counts: Int64s, parts: Float64s | None
) -> list[str]:
    """Return sums by group of users for each group of ordered rows: all of `user_sums_of`, or two without `parts`."""
    key = np.repeat(np.arange(len(counts)), counts) * USER_GROUPS + users[order]
    happened, loss, predicted = (
        ("actual", "error", "predicted") if "actual" in summed else ("positive", "loss", "chance")
    )
    columns = [summed[happened][order]]
    columns.append((summed["weight"] if "weight" in summed else summed[happened] + summed["negative"])[order])
    if parts is not None:
        columns += [summed[loss][order], summed[predicted][order], np.nan_to_num(parts)]
    sums = [np.bincount(key, column, len(counts) * USER_GROUPS).reshape(-1, USER_GROUPS) for column in columns]
    packed = (zlib.compress(one.astype("<f4").tobytes()) for one in np.stack(sums, 1))
    return [base64.b64encode(one).decode() for one in packed]


def user_sums_of(text: str) -> Float64s:
    """Return what a score's `user_sums` says: float64[S, USER_GROUPS].

    Two sums are what happened and the weight. Windows of an hour or more have five: then the log losses or absolute
    errors, the predictions, and what the users add to the deviation of the AUC, which sums to zero.

    Raises:
        BadRecord: The text is damaged.
    """
    try:
        unpacked = zlib.decompressobj().decompress(base64.b64decode(text, validate=True), 5 * USER_GROUPS * 4)
        return np.frombuffer(unpacked, "<f4").reshape(-1, USER_GROUPS).astype(np.float64)
    except (ValueError, zlib.error) as error:
        message = f"the log of scores has sums by user that cannot be read: {error}"
        raise BadRecord(message, help="restore its files from a copy, or remove the line") from None


def _ratio(values: Float64s, over: Float64s) -> Objects:
    """Return a ratio for each group; None where there is nothing to divide by."""
    return _known(np.divide(values, over, out=np.zeros_like(values), where=over > 0), over > 0)


def _known(values: Float64s, is_known: Bools) -> Objects:
    known = values.astype(np.object_)
    known[~is_known] = None
    return known
