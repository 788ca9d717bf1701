"""Checks: the default checks that every version is judged by. Each looks at one aspect."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.errors import UsageError, VersionRefused
from streamlearn.features import Number
from streamlearn.features.combination import CURVES
from streamlearn.publisher.case import Case, Scorer
from streamlearn.publisher.figures import KEY, NAN, NOT_FINITE, RMS
from streamlearn.publisher.logit_scores import (
    Fit,
    auc_error_of,
    fit_of,
    loss_error_of,
    mean_error_of,
    number_fit_of,
)
from streamlearn.samples import SampleBatch
from streamlearn.settings import JudgeSettings
from streamlearn.versions import Finding

__all__ = ["Finite", "Learned", "Norms", "Scores"]

Float32s = npt.NDArray[np.float32]

_NAMES_MAX = 10
# Smaller norms count as this: numbers that began at zero may grow by any factor without harm.
_NORM_FLOOR = 0.1
# A difference between two versions counts from this many of its standard errors on: by chance alone, one comparison in
# 700 has such a fall.
_ERRORS = 3
# With fewer rows of either class, AUC and calibration say too little, and their errors are too small.
_CLASS_ROWS_MIN = 30


class Finite:
    """Rejects a version with a number that is NaN or infinite."""

    name = "finite"

    def judge(self, case: Case) -> Finding:
        """See `Check`."""
        counts = {name: count for name, count in case.metrics.items() if name.endswith(NOT_FINITE)}
        bad = {name: count for name, count in counts.items() if count}
        if not bad:
            text = f"all numbers of {len(counts)} tables and tensors are finite"
            return Finding(check=self.name, is_ok=True, said=text)
        shown = dict(sorted(bad.items())[:_NAMES_MAX])
        text = "; ".join(_described(case, name.removesuffix(NOT_FINITE), count) for name, count in shown.items())
        return Finding(check=self.name, is_ok=False, said=f"not finite: {text}", values=shown)


def _described(case: Case, name: str, count: float) -> str:
    """The bad numbers of a table, a tensor or a metric, in words."""
    nan = case.metrics.get(f"{name}{NAN}", 0.0)
    kinds = [f"{number:g} {kind}" for number, kind in ((nan, "NaN"), (count - nan, "infinite")) if number]
    begin = f"{name}{NOT_FINITE}{KEY}"
    keys = [metric.removeprefix(begin) for metric in case.metrics if metric.startswith(begin)]
    return f"{name} ({', '.join(kinds)}{'; first keys ' if keys else ''}{', '.join(keys)})"


class Learned:
    """Rejects a version that learned from too few rows.

    The first version, a revert, and a version published although nothing was learned pass, and the finding says so.
    """

    name = "learned"

    def judge(self, case: Case) -> Finding:
        """See `Check`."""
        rows_min, version = case.settings.samples_rows_min, case.version
        rows = case.metrics.get("learned_rows")
        if version.parent is None or version.content_of is not None or rows is None:
            return Finding(check=self.name, is_ok=True, said="the version was not written by training")
        values = {"learned_rows": rows}
        if not rows:
            return Finding(check=self.name, is_ok=True, said="nothing was learned since its parent", values=values)
        text = f"it learned from {rows:g} rows since its parent; at least {rows_min} are required"
        return Finding(check=self.name, is_ok=rows >= rows_min, said=text, values=values)


class Norms:
    """Rejects a version if the norm of a table's rows or of a dense tensor changed by a large factor.

    The norm is the root mean square of all numbers that the version changed, so that one row of absurd numbers shows;
    norms under 0.1 count as 0.1.
    """

    name = "norms"

    def judge(self, case: Case) -> Finding:
        """See `Check`."""
        ratio_max = case.settings.norm_ratio_max
        if not ratio_max:
            return Finding(check=self.name, is_ok=True, said="norm_ratio_max is 0: this check is off")
        jumps: dict[str, float] = {}
        texts: list[str] = []
        compared = 0
        for name, now in case.metrics.items():
            is_norm = name.startswith(("rows.", "dense.")) and name.endswith(RMS)
            # Curves are not learned bit by bit: the first ones take the place of zeros. Scores tell if they are bad.
            before = case.before(name) if is_norm and not name.startswith(f"dense.{CURVES}") else None
            if before is None:
                continue
            compared += 1
            ratio = max(now, _NORM_FLOOR) / max(before[1], _NORM_FLOOR)
            if not 1 / ratio_max <= ratio <= ratio_max:
                jumps[name] = ratio
                texts.append(f"{name} is {now:.4g}, but {before[1]:.4g} in version {before[0]}")
        if jumps:
            values = dict(sorted(jumps.items())[:_NAMES_MAX])
            return Finding(check=self.name, is_ok=False, said="; ".join(texts[:_NAMES_MAX]), values=values)
        return Finding(check=self.name, is_ok=True, said=f"{compared} norms are within a factor of {ratio_max:g}")


@dataclass(frozen=True)
class _Scored:
    """One label of all samples that settle it, scored by two versions."""

    name: str
    labels: npt.NDArray[np.bool_]
    numbers: npt.NDArray[np.float64] | None  # of a label that is a number
    weights: npt.NDArray[np.float64]
    now: npt.NDArray[np.float64]
    before: npt.NDArray[np.float64]


class Scores:
    """Rejects a version whose AUC, loss or calibration on the same samples is worse than the active one's.

    A difference that may be due to chance, because it is less than three of its standard errors, rejects nothing. The
    weight of a negative is divided by its keep rate. The version is not checked, and the finding says why, if there
    is no scorer, if the active version's rows are gone, or if too few samples have closed windows.
    """

    name = "scores"

    def judge(self, case: Case) -> Finding:
        """See `Check`."""
        if case.scorer is None or case.samples is None:
            return self._not_checked("samples are no longer scored by this version")
        if case.active is None:
            return self._not_checked("no version is active, so there is none to compare with")
        batches = _newest(case.samples(), case.settings.scored_rows_max)
        rows = sum(len(batch) for batch in batches)
        if rows < case.settings.scored_rows_min:
            text = f"{rows} samples are in closed windows; at least {case.settings.scored_rows_min} are required"
            return self._not_checked(text, {"rows": float(rows)})
        try:
            scored = _scored(case.scorer, case.version.version, case.active.version, batches)
        except VersionRefused as error:
            return self._not_checked(f"the samples cannot be scored: {error.message}")
        bad = [label.name for label in scored if not np.isfinite(label.now).all()]
        if bad:
            return Finding(check=self.name, is_ok=False, said=f"scores of {', '.join(bad)} are NaN or infinite")
        return self._compared(scored, case)

    def _compared(self, scored: Sequence[_Scored], case: Case) -> Finding:
        worse: list[str] = []
        texts: list[str] = []
        values: dict[str, float] = {}
        for label in scored:
            if label.numbers is not None and len(label.numbers):
                said, bad, figures = _compared_numbers(label, case)
                texts.append(said)
                worse += bad
                values |= figures
                continue
            now, before = (fit_of(scores, label.labels, label.weights) for scores in (label.now, label.before))
            if now is None or before is None:
                texts.append(f"{label.name}: all {len(label.labels)} rows are of one class")
                continue
            for when, fit in (("", now), ("active.", before)):
                for name in ("auc", "log_loss", "calibration"):
                    values[f"{when}{name}.{label.name}"] = getattr(fit, name)
            texts.append(
                f"{label.name}: AUC {now.auc:.4f} ({before.auc:.4f}), log loss {now.log_loss:.4f} "
                f"({before.log_loss:.4f}), calibration {now.calibration:.3f} ({before.calibration:.3f})"
            )
            worse += [f"{label.name}: {what}" for what in _worse(label, now, before, case.settings)]
        text = "; ".join([*worse, *texts])
        if not values:
            return self._not_checked(text)
        return Finding(check=self.name, is_ok=not worse, said=text, values=dict(list(values.items())[:1_000]))

    def _not_checked(self, text: str, values: dict[str, float] | None = None) -> Finding:
        return Finding(check=self.name, is_ok=True, is_checked=False, said=text, values=values or {})


def _compared_numbers(label: _Scored, case: Case) -> tuple[str, list[str], dict[str, float]]:
    """How a label that is a number is predicted, the limits that are exceeded by more than chance, and the figures."""
    number, actual, settings = case.numbers[label.name], label.numbers, case.settings
    assert actual is not None
    fits = [number_fit_of(predicted, actual, label.weights) for predicted in (label.now, label.before)]
    losses = [number.losses(predicted, actual) for predicted in (label.now, label.before)]
    now, before = fits
    if now is None or before is None:
        return f"{label.name}: its rows have no weight", [], {}
    loss, loss_before = (float((one * label.weights).sum()) / float(label.weights.sum()) for one in losses)
    values = {
        f"{when}{name}.{label.name}": value
        for when, fit, mean in (("", now, loss), ("active.", before, loss_before))
        for name, value in (*vars(fit).items(), ("loss", mean))
        if value is not None
    }
    text = f"{label.name}: mean absolute error {now.mae:.4g} ({before.mae:.4g}), loss {loss:.4g} ({loss_before:.4g})"
    worse = []
    # One row may have most of the loss, as the largest of all prices has: no row counts for more than ten of its like.
    most = 10 * loss_before or 1.0
    bounded = np.clip(losses[0] - losses[1], -most, most)
    error, bounded_rise = mean_error_of(bounded, label.weights), np.average(bounded, weights=label.weights)
    limit, rise = settings.log_loss_rise_ratio_max, loss - loss_before
    if limit and rise > limit * loss_before and bounded_rise > _ERRORS * error:
        worse.append(f"{label.name}: its loss rose from {loss_before:.4g} to {loss:.4g} (standard error {error:.2g})")
    if now.calibration is not None and before.calibration is not None:
        text += f", calibration {now.calibration:.3f} ({before.calibration:.3f})"
        if _is_miscalibrated(label, number, (now.calibration, before.calibration), settings):
            worse.append(f"{label.name}: calibration is {now.calibration:.3f}")
    return text, worse, values


def _is_miscalibrated(
    label: _Scored, number: Number, calibrations: tuple[float, float], settings: JudgeSettings
) -> bool:
    """Whether the sum of predictions left its limits by more than chance, where it should be that of the numbers."""
    ratio_max, actual = settings.calibration_ratio_max, label.numbers
    assert actual is not None
    if not ratio_max or not number.predicts_mean or len(actual) < _CLASS_ROWS_MIN or actual.min() < 0:
        return False
    now, before = map(_miscalibration, calibrations)
    errors = label.now - actual
    off = abs(float(np.average(errors, weights=label.weights)))
    return now > ratio_max >= before and off > _ERRORS * mean_error_of(errors, label.weights)


def _worse(label: _Scored, now: Fit, before: Fit, settings: JudgeSettings) -> list[str]:
    """The limits that a fit exceeds by more than chance, in words."""
    texts = []
    both = (label.now, label.before, label.labels, label.weights)
    has_enough = min(label.labels.sum(), (~label.labels).sum()) >= _CLASS_ROWS_MIN
    limit, fall = settings.auc_drop_ratio_max, before.auc - now.auc
    if has_enough and limit and fall > limit * before.auc and fall > _ERRORS * (error := auc_error_of(*both)):
        texts.append(f"AUC fell by {fall / before.auc:.2%} (standard error {error / before.auc:.2%})")
    limit, rise = settings.log_loss_rise_ratio_max, now.log_loss - before.log_loss
    if limit and rise > limit * before.log_loss and rise > _ERRORS * (error := loss_error_of(*both)):
        texts.append(f"log loss rose from {before.log_loss:.4g} to {now.log_loss:.4g} (standard error {error:.2g})")
    ratio_max = settings.calibration_ratio_max
    if has_enough and ratio_max and _miscalibration(now.calibration) > ratio_max >= _miscalibration(before.calibration):
        texts.append(f"calibration is {now.calibration:.3f}")
    return texts


def _miscalibration(calibration: float) -> float:
    return max(calibration, 1 / calibration) if calibration > 0 else float("inf")


def _newest(batches: Iterable[SampleBatch], rows_max: int) -> list[SampleBatch]:
    """The last batches that have at most `rows_max` rows together."""
    newest: list[SampleBatch] = []
    rows = 0
    for batch in reversed(list(batches)):
        rows += len(batch)
        if rows > rows_max:
            break
        newest.append(batch)
    return newest[::-1]


def _scored(scorer: Scorer, now: int, before: int, batches: Sequence[SampleBatch]) -> list[_Scored]:
    """Every label of the samples, scored by both versions."""
    scores = [[_checked(scorer.score(version, batch), batch) for version in (now, before)] for batch in batches]
    scored = []
    for at, label in enumerate(batches[0].labels):
        columns = [batch.labels[at] for batch in batches]
        settles = [column.settles.astype(bool) for column in columns]
        labels = np.concatenate([column.value[kept] for column, kept in zip(columns, settles, strict=True)]) > 0
        rates = _joined(column.sample_rate[kept] for column, kept in zip(columns, settles, strict=True))
        weights = _joined(column.weight[kept] for column, kept in zip(columns, settles, strict=True))
        known = [None if one.number is None else one.number[kept] for one, kept in zip(columns, settles, strict=True)]
        numbers = _joined(part for part in known if part is not None) if known[0] is not None else None
        now_logits, old_logits = (
            _joined(pair[which][kept, at] for pair, kept in zip(scores, settles, strict=True)) for which in (0, 1)
        )
        weights = weights / np.where(labels, 1.0, rates)  # a number has rate 1
        scored.append(_Scored(label.name, labels, numbers, weights, now_logits, old_logits))
    return scored


def _joined(arrays: Iterable[npt.NDArray[Any]]) -> npt.NDArray[np.float64]:
    return np.concatenate(list(arrays)).astype(np.float64)


def _checked(scores: Float32s, batch: SampleBatch) -> Float32s:
    expected = (len(batch), len(batch.labels))
    if scores.shape != expected:
        message = f"a scorer returned scores of shape {scores.shape}, expected {expected}"
        raise UsageError(message, help="return float32[rows, labels], with the labels in the order of the application")
    return scores
