"""Meters: the Prometheus metrics of progressive validation. It decides nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from streamlearn.telemetry import counter, gauge
from streamlearn.trainer.validation.score import WindowScore

__all__ = ["ScoreMeters"]


class ScoreMeters:
    """The validation metrics of this process."""

    def __init__(self) -> None:
        by_label = ["label"]
        newest = "of first predictions in the newest closed window"
        self.auc = gauge("trainer", "validation_auc", "ratio", f"AUC {newest}", by_label)
        self.log_loss = gauge("trainer", "validation_log_loss", "nats", f"Log loss {newest}", by_label)
        help = f"Predicted over observed positives {newest}"
        self.calibration = gauge("trainer", "validation_calibration", "ratio", help, by_label)
        of_number = f"{newest}, of a label that is a number, in its own unit"
        self.mae = gauge("trainer", "validation_mae", "units", f"Mean absolute error {of_number}", by_label)
        self.rmse = gauge("trainer", "validation_rmse", "units", f"Root mean squared error {of_number}", by_label)
        self.kept = gauge(
            "trainer", "validation_kept", "ratio", "Share of that window's rows that was scored", by_label
        )
        self.held = gauge("trainer", "validation_held", "ratio", "Predictions held, as a share of rows_max")
        self.windows = counter("trainer", "validation_windows", "Windows scored", by_label)
        by_reason = ["label", "reason"]
        unscored = "Samples and predictions that were not scored, by reason"
        self.unscored = counter("trainer", "validation_unscored", unscored, by_reason)

    def scored(self, scores: Sequence[WindowScore]) -> None:
        """Count scores of the shortest windows, over all rows of each, and set the metrics to those of the newest."""
        counts = Counter(score.label for score in scores)
        for score in {score.label: score for score in scores}.values():
            self.windows.labels(score.label).inc(counts[score.label])
            self.kept.labels(score.label).set(score.kept)
            numbers, positives = ("mae", "rmse", "calibration"), ("auc", "log_loss", "calibration")
            for name in positives if score.mae is None else numbers:
                value = getattr(score, name)
                getattr(self, name).labels(score.label).set(float("nan") if value is None else value)
