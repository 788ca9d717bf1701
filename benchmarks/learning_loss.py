"""Learning loss: the log loss of first predictions relative to the optimum, on a synthetic history with known truth.

Every sample is predicted, and then learned. The loss of a prediction is its expectation under the true probability.
The drawn labels are only learned.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from benchmarks.histories.learning_samples import truths
from benchmarks.result import Result
from streamlearn.apps import AppFolder, load_app
from streamlearn.features import CountIn, Product
from streamlearn.models import model_of
from streamlearn.ps import Epoch, PsClient, Shelf
from streamlearn.samples import SampleBatch
from streamlearn.settings.tables import TableSettings
from streamlearn.settings.trainer import TrainerSettings
from streamlearn.table import declared_tables
from streamlearn.trainer.columns import StepColumns, columns_of
from streamlearn.trainer.intake.message import Reached
from streamlearn.trainer.learner import Learner
from streamlearn.trainer.rows import Rows
from streamlearn.trainer.step import Piece, Step
from streamlearn.versions import open_store

__all__ = ["Learning", "Losses", "learned", "plain", "run"]

Note = Callable[[str], None]
Float32s = npt.NDArray[np.float32]
Float64s = npt.NDArray[np.float64]

_EXAMPLE = Path(__file__).parent.parent / "examples" / "synthetic"
WINDOW_SAMPLES = 250_000
"""Number of samples of a figure, the last before its mark; fewer in a quick run."""
_OWN_MARKS: tuple[int, ...] = (1_000_000, 2_000_000, 5_000_000)
_READY_MARKS: tuple[int, ...] = (1_000_000, 2_000_000)
_QUICK_MARKS: tuple[int, ...] = (300_000,)
_QUICK_WINDOW = 100_000
_READY = ("dcn_v2", "deepfm")


class Losses:
    """The losses of the predictions and of the optimum, for all samples so far."""

    def __init__(self, labels: int) -> None:
        self.samples = 0
        self._actual, self._best = np.zeros(labels), np.zeros(labels)
        self._history = [(0, self._actual, self._best)]

    def add(self, logits: Float32s, truth: Float32s) -> None:
        """Add predictions and true probabilities, both float32[n, labels]."""
        sure, logit = truth.astype(np.float64), logits.astype(np.float64)
        self.samples += len(truth)
        self._actual = self._actual + (np.logaddexp(0, logit) - sure * logit).sum(axis=0)
        self._best = self._best - (sure * np.log(sure) + (1 - sure) * np.log1p(-sure)).sum(axis=0)
        self._history.append((self.samples, self._actual, self._best))

    def over_best(self, window: int) -> Float64s:
        """Return, by label, the log loss of about the last `window` samples relative to the optimum, minus 1."""
        since = max(at for at, entry in enumerate(self._history) if entry[0] <= max(0, self.samples - window))
        del self._history[:since]
        _, actual, best = self._history[0]
        return (self._actual - actual) / (self._best - best) - 1


class Learning:
    """The application's model, which predicts and learns samples in their order.

    Args:
        folder: The application.
        labels: The labels to learn, one bit each; by default all.
    """

    def __init__(self, folder: AppFolder, labels: np.uint32 | None = None) -> None:
        app, settings = folder.app, folder.settings
        self._step_rows = settings.trainer.step_rows
        self._learner = Learner(app, model_of(folder), settings.trainer)
        options = declared_tables(app.tables, settings.tables)
        client = PsClient.local(options, Shelf(open_store("file:///nowhere"), app.name), settings.ps)
        client.restore(Epoch(1), None)
        self._rows = Rows(app, client, self._step_rows)
        self._labels = np.uint32((1 << len(app.labels)) - 1) if labels is None else labels

    def learn(self, batch: SampleBatch) -> Float32s:
        """Predict and learn step by step; return the predictions, float32[n, labels]."""
        return np.concatenate([self._step(batch, at) for at in range(0, len(batch), self._step_rows)])

    def predict(self, batch: SampleBatch) -> Float32s:
        """Return the predictions of samples that are not learned, float32[n, labels]."""
        packed = (self._rows.pack(self._columns(batch, at)) for at in range(0, len(batch), self._step_rows))
        return np.concatenate([self._learner.score(one) for one in packed])

    def _columns(self, batch: SampleBatch, at: int) -> StepColumns:
        rows = np.arange(at, min(at + self._step_rows, len(batch)))
        learn = np.full(len(rows), self._labels)
        return columns_of(Step(1, (Piece(batch, rows, learn, np.zeros_like(learn)),), Reached((), ()), len(rows)))

    def _step(self, batch: SampleBatch, at: int) -> Float32s:
        columns = self._columns(batch, at)
        scale = self._learner.rate_scale
        done = self._learner.learn(self._rows.pack(columns))
        self._rows.push(columns, done.gradients, int(batch.settle_time_ms[at + len(columns) - 1]), scale)
        return done.logits


def run(quick: bool, note: Note) -> Result:
    """Measure the application's model and the ready-made ones; if quick, only the application's."""
    result = Result("learning")
    folder = load_app(_EXAMPLE, [])
    window = _QUICK_WINDOW if quick else WINDOW_SAMPLES
    models = [("own", folder, _QUICK_MARKS if quick else _OWN_MARKS)]
    if not quick:
        models += [(name, plain(folder, name), _READY_MARKS) for name in _READY]
    for name, application, marks in models:
        figures = learned(application, marks, window)
        note(f"{name}: {figures['wall_s']:.0f} s")
        result.figures |= {f"{name}.{figure}": value for figure, value in figures.items()}
    return result


def learned(folder: AppFolder, marks: tuple[int, ...], window: int) -> dict[str, float]:
    """Return the figures of an application's model.

    Args:
        folder: The application.
        marks: Numbers of samples after which figures are taken, increasing.
        window: Number of samples of a figure.
    """
    begun_s, begun_cpu_s = time.perf_counter(), time.process_time()
    learning, losses = Learning(folder), Losses(len(folder.app.labels))
    figures: dict[str, float] = {}
    remaining = list(marks)
    for batch, truth in truths(folder.app, marks[-1]):
        losses.add(learning.learn(batch), truth)
        while remaining and losses.samples >= remaining[0]:
            shares = zip(folder.app.labels, losses.over_best(window), strict=True)
            figures |= {
                f"{label.name}_log_loss_over_bayes_{_short(remaining[0])}": float(share) for label, share in shares
            }
            del remaining[0]
    spent = {"wall_s": time.perf_counter() - begun_s, "cpu_s": time.process_time() - begun_cpu_s}
    return figures | {"samples": losses.samples} | spent


def plain(folder: AppFolder, model: str) -> AppFolder:
    """Return the application with a ready-made model: all slots in one table, and default settings.

    It declares the product and the count that the own model computes; which pairs of slots matter, models have to find.
    """
    slots = tuple(replace(slot, table="main", dim=16, initial_range=0.05) for slot in folder.app.features.slots)
    derived = (Product("taste", "quality"), CountIn("category", "recent_categories"))
    app = replace(folder.app, model=model, features=replace(folder.app.features, slots=slots, derived=derived))
    trainer = TrainerSettings(step_rows=folder.settings.trainer.step_rows)
    settings = msgspec.structs.replace(folder.settings, trainer=trainer, tables=TableSettings())
    return replace(folder, app=app, settings=settings)


def _short(samples: int) -> str:
    """Return a number of samples as in names of figures: 300k, 2m."""
    return f"{samples // 1_000_000}m" if samples % 1_000_000 == 0 else f"{samples // 1_000}k"
