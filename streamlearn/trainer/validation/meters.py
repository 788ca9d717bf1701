"""Meters: what progressive validation says of itself to prometheus. It decides nothing."""

from __future__ import annotations

from streamlearn.telemetry import counter, gauge
from streamlearn.trainer.validation.score import WindowScore

__all__ = ["ScoreMeters"]


class ScoreMeters:
    """The metrics of the validation of this process."""

    def __init__(self) -> None:
        by_label = ["label"]
        newest = "of first predictions in the newest closed window"
        self.auc = gauge("trainer", "validation_auc", "ratio", f"AUC {newest}", by_label)
        self.log_loss = gauge("trainer", "validation_log_loss", "nats", f"Log loss {newest}", by_label)
        self.calibration = gauge(
            "trainer", "validation_calibration", "ratio", f"Predicted over observed positives {newest}", by_label
        )
        self.kept = gauge(
            "trainer", "validation_kept", "ratio", "Share of that window's rows that was scored", by_label
        )
        self.held = gauge("trainer", "validation_held", "ratio", "Predictions held, as a share of rows_max")
        self.windows = counter("trainer", "validation_windows", "Windows scored", by_label)
        self.unscored = counter(
            "trainer",
            "validation_unscored",
            "Samples and predictions that were not scored, by reason",
            ["label", "reason"],
        )

    def scored(self, score: WindowScore) -> None:
        """One of the shortest windows was scored, all rows of it."""
        self.windows.labels(score.label).inc()
        self.kept.labels(score.label).set(score.kept)
        for metric, value in (
            (self.auc, score.auc),
            (self.log_loss, score.log_loss),
            (self.calibration, score.calibration),
        ):
            metric.labels(score.label).set(float("nan") if value is None else value)
