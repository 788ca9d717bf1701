"""Scores: the version predicts recent samples about as well as the active one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamlearn.errors import UsageError, VersionRefused
from streamlearn.publisher.case import Case
from streamlearn.publisher.logit_scores import Fit, fit_of
from streamlearn.samples import SampleBatch
from streamlearn.settings import JudgeSettings
from streamlearn.versions import Finding
from streamlearn.versions.format.scorer import Scorer

__all__ = ["Scores"]

Float32s = npt.NDArray[np.float32]


@dataclass(frozen=True)
class _Scored:
    """One label of all samples that settle it, scored by two versions."""

    name: str
    labels: npt.NDArray[np.bool_]
    weights: npt.NDArray[np.float64]
    now: npt.NDArray[np.float64]
    before: npt.NDArray[np.float64]


class Scores:
    """Refuses a version whose AUC, log loss or calibration on the same samples is worse than the active one's.

    Negatives weigh one over their keep rate. Where nobody can score, the active version's rows are gone, or too few
    samples are closed, it says so and passes.
    """

    name = "scores"

    def judge(self, case: Case) -> Finding:
        """See `Check`."""
        if case.scorer is None or case.samples is None:
            return self._passed("samples are no longer scored by this version")
        if case.active is None:
            return self._passed("there is not an active version to compare with")
        batches = _newest(case.samples(), case.settings.scored_rows_max)
        rows = sum(len(one) for one in batches)
        if rows < case.settings.scored_rows_min:
            said = f"{rows} samples are in closed windows; at least {case.settings.scored_rows_min} are required"
            return self._passed(said, {"rows": float(rows)})
        try:
            scored = _scored(case.scorer, case.version.version, case.active.version, batches)
        except VersionRefused as error:
            return self._passed(f"the samples cannot be scored: {error.message}")
        bad = [one.name for one in scored if not np.isfinite(one.now).all()]
        if bad:
            return Finding(check=self.name, is_ok=False, said=f"scores of {', '.join(bad)} are NaN or infinite")
        return self._compared(scored, case)

    def _compared(self, scored: Sequence[_Scored], case: Case) -> Finding:
        wrong: list[str] = []
        said: list[str] = []
        values: dict[str, float] = {}
        for one in scored:
            now, before = (fit_of(scores, one.labels, one.weights) for scores in (one.now, one.before))
            if now is None or before is None:
                said.append(f"{one.name}: all {len(one.labels)} rows are of one class")
                continue
            for when, fit in (("", now), ("active.", before)):
                for name in ("auc", "log_loss", "calibration"):
                    values[f"{when}{name}.{one.name}"] = getattr(fit, name)
            said.append(
                f"{one.name}: AUC {now.auc:.4f} ({before.auc:.4f}), log loss {now.log_loss:.4f} "
                f"({before.log_loss:.4f}), calibration {now.calibration:.3f} ({before.calibration:.3f})"
            )
            wrong += [f"{one.name}: {what}" for what in _worse(now, before, case.settings)]
        text = "; ".join([*wrong, *said])
        return Finding(check=self.name, is_ok=not wrong, said=text[:2_000], values=dict(list(values.items())[:1_000]))

    def _passed(self, said: str, values: dict[str, float] | None = None) -> Finding:
        return Finding(check=self.name, is_ok=True, said=said[:2_000], values=values or {})


def _worse(now: Fit, before: Fit, settings: JudgeSettings) -> list[str]:
    """What of a fit is worse than it may be."""
    found = []
    drop = (before.auc - now.auc) / before.auc if before.auc else 0.0
    if settings.auc_drop_ratio_max and drop > settings.auc_drop_ratio_max:
        found.append(f"AUC fell by {drop:.2%}")
    rise = (now.log_loss - before.log_loss) / before.log_loss if before.log_loss else 0.0
    if settings.log_loss_rise_ratio_max and rise > settings.log_loss_rise_ratio_max:
        found.append(f"log loss rose by {rise:.2%}")
    most = settings.calibration_ratio_max
    if most and _off(now.calibration) > most >= _off(before.calibration):
        found.append(f"calibration is {now.calibration:.3f}")
    return found


def _off(calibration: float) -> float:
    return max(calibration, 1 / calibration) if calibration > 0 else float("inf")


def _newest(batches: Iterable[SampleBatch], rows_max: int) -> list[SampleBatch]:
    """The last batches, as many as have so many rows."""
    found: list[SampleBatch] = []
    rows = 0
    for batch in reversed(list(batches)):
        rows += len(batch)
        if rows > rows_max:
            break
        found.append(batch)
    return found[::-1]


def _scored(scorer: Scorer, now: int, before: int, batches: Sequence[SampleBatch]) -> list[_Scored]:
    """Every label of the samples, scored by both versions."""
    scores = [(_checked(scorer.score(now, one), one), _checked(scorer.score(before, one), one)) for one in batches]
    found = []
    for at, label in enumerate(batches[0].labels):
        columns = [one.labels[at] for one in batches]
        settles = [column.settles.astype(bool) for column in columns]
        labels = np.concatenate([column.value[kept] for column, kept in zip(columns, settles, strict=True)]) > 0
        rates = np.concatenate([column.sample_rate[kept] for column, kept in zip(columns, settles, strict=True)])
        weights = np.concatenate([column.weight[kept] for column, kept in zip(columns, settles, strict=True)])
        both = [
            np.concatenate([pair[which][kept, at] for pair, kept in zip(scores, settles, strict=True)])
            for which in (0, 1)
        ]
        weighted = weights.astype(np.float64) / np.where(labels, 1.0, rates.astype(np.float64))
        found.append(_Scored(label.name, labels, weighted, both[0].astype(np.float64), both[1].astype(np.float64)))
    return found


def _checked(scores: Float32s, batch: SampleBatch) -> Float32s:
    expected = (len(batch), len(batch.labels))
    if scores.shape != expected:
        message = f"a scorer returned scores of shape {scores.shape}, expected {expected}"
        raise UsageError(message, help="return float32[rows, labels], with the labels in the order of the application")
    return scores
