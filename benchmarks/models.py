"""Models: one model of several labels against a model for each, on KuaiRand's week; and what histories teach.

The histories: delayed conversions, categories, numbers, and news whose freshness decides.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.freshness import FreshModel, Predictions, figures_of, scored
from benchmarks.histories.categorical import categorical_figures
from benchmarks.histories.conversions import conversion_figures
from benchmarks.histories.freshness_rows import Week, read_week
from benchmarks.histories.news import news_figures
from benchmarks.histories.numbers import number_figures
from benchmarks.nodes.serving_rich import rich_figures
from benchmarks.result import Result
from streamlearn.apps import AppFolder, load_app
from streamlearn.samples import SegmentColumns
from streamlearn.trainer.validation import Predicted, ProgressiveValidation

__all__ = ["Turns", "of_one_label", "run"]

Note = Callable[[str], None]
Float32s = npt.NDArray[np.float32]

_EXAMPLE = Path(__file__).parent.parent / "examples" / "kuairand"
_TOGETHER, _SINGLE = ("mmoe", "ple"), "deepfm"
# Days as in `freshness`: nothing was chosen by the last three.
_DAYS, _QUICK_DAYS, _LEARNED_DAYS = (4, 6), (2, 2), 1
_WINDOWS = 100_000
# Hours of conversions, and impressions of each.
_HOURS, _QUICK_HOURS = (72, 20_000), (24, 2_000)
_ROWS, _QUICK_ROWS = 500_000, 50_000
# Minutes watched, and evenings with ratings.
_NUMBERS, _QUICK_NUMBERS = (2_000_000, 40_000), (100_000, 8_000)


class Turns:
    """Models that learn and predict the same rows in turns, so that noise of the machine hits all; a `Predictor`.

    The caller gets the predictions of the first model. `of` returns those of any model.

    Attributes:
        cpu_s: The processor time of each model.
    """

    def __init__(self, models: Sequence[tuple[FreshModel, Week]]) -> None:
        self._models = models
        self._others: list[tuple[Float32s, list[Float32s]]] = []
        self.cpu_s = [0.0] * len(models)

    def learn(self, begin: int, end: int) -> None:
        """Learn rows with each model."""
        for number, (model, _) in enumerate(self._models):
            self._timed(number, partial(model.learn, begin, end))

    def predict(self, begin: int, end: int, out: Float32s) -> None:
        """Predict rows with each model."""
        for number, own in enumerate([out, *self._of_others(out)]):
            self._timed(number, partial(self._models[number][0].predict, begin, end, own))

    def of(self, number: int, predicted: Predictions) -> Predictions:
        """Return the predictions of one model; `predicted` has those of the first, made with `scored`."""
        logits = {name: [out, *self._of_others(out)][number] for name, out in predicted.logits.items()}
        return replace(predicted, logits=logits, cpu_s=self.cpu_s[number])

    def _of_others(self, out: Float32s) -> list[Float32s]:
        for known, others in self._others:
            if known is out:
                return others
        widths = [len(week.batch.labels) for _, week in self._models[1:]]
        others = [np.full((len(out), width), np.nan, np.float32) for width in widths]
        self._others.append((out, others))
        return others

    def _timed(self, number: int, act: Callable[[], None]) -> None:
        begun_s = time.process_time()
        act()
        self.cpu_s[number] += time.process_time() - begun_s


def run(quick: bool, note: Note) -> Result:
    """Learn the week with models of both labels and with a model for each; if quick, two days.

    All learn the same rows in the same steps; the AUC is that of a version a minute.
    """
    result = Result("models")
    folder = load_app(_EXAMPLE, [])
    week = read_week(folder)
    labels = [label.name for label in folder.app.labels]
    both = [(_with(folder, model), week) for model in _TOGETHER]
    alone = [of_one_label(folder, week, number) for number in range(len(labels))]
    pairs = [*both, *((_with(app, _SINGLE), of_label) for app, of_label in alone)]
    turns = Turns([(FreshModel(app, of_label), of_label) for app, of_label in pairs])
    days = _QUICK_DAYS if quick else _DAYS
    predicted = scored(turns, week, days, _LEARNED_DAYS)
    note(f"{len(pairs)} models: {predicted.wall_s:.0f} s")
    figures = [figures_of(of_label, turns.of(number, predicted), days) for number, (_, of_label) in enumerate(pairs)]
    auc = [{name: found[f"{name}_auc_1min"] for name in labels if f"{name}_auc_1min" in found} for found in figures]
    single = {name: value for found in auc[len(both) :] for name, value in found.items()}
    result.figures |= {f"{_SINGLE}.{name}_auc": value for name, value in single.items()}
    result.figures |= {f"{_SINGLE}.cpu_s": sum(turns.cpu_s[len(both) :])}
    for number, model in enumerate(_TOGETHER):
        result.figures |= {f"{model}.{name}_auc": auc[number][name] for name in labels}
        result.figures |= {
            f"{model}.cpu_s": turns.cpu_s[number],
            f"{model}_auc_to_single": min(auc[number][name] - single[name] for name in labels),
            f"{model}_cpu_to_single": turns.cpu_s[number] / sum(turns.cpu_s[len(both) :]),
        }
    result.figures |= conversion_figures(*(_QUICK_HOURS if quick else _HOURS))
    result.figures |= categorical_figures(_QUICK_ROWS if quick else _ROWS, note)
    result.figures |= number_figures(*(_QUICK_NUMBERS if quick else _NUMBERS), note)
    if not quick:
        result.figures |= news_figures((), note)
        result.figures |= rich_figures(note)
        result.figures["windows_100k_close_s"] = _windows_close_s(folder)
    return result


def _windows_close_s(folder: AppFolder) -> float:
    """Return how long it takes to score 100,000 windows of a minute, with a row each, that close at once."""
    validation, labels = ProgressiveValidation(folder.app), len(folder.app.labels)
    every, none = np.full(_WINDOWS, (1 << labels) - 1, np.uint32), np.zeros(_WINDOWS, np.uint32)
    ones = np.ones((_WINDOWS, labels), np.float32)
    times = np.arange(_WINDOWS, dtype=np.int64) * 60_000
    validation.add(
        Predicted(
            np.arange(_WINDOWS, dtype=np.uint64),
            times,
            np.zeros_like(ones),
            every,
            none,
            every,
            ones,
            ones,
            tuple(
                SegmentColumns(one.name, ("a",), np.zeros(_WINDOWS, np.int32)) for one in folder.app.features.segments
            ),
        )
    )
    begun_s = time.perf_counter()
    closed = validation.close(int(times[-1]) + 10 * 86_400_000)
    assert len(closed) > labels * _WINDOWS
    return time.perf_counter() - begun_s


def _with(folder: AppFolder, model: str) -> AppFolder:
    return replace(folder, app=replace(folder.app, model=f"model:{model}"))


def of_one_label(folder: AppFolder, week: Week, number: int) -> tuple[AppFolder, Week]:
    """Return the application and its week with one label alone: rows lack the numbers of the others."""
    app, fewer = folder.app, len(folder.app.labels) - 1
    # Rows have their columns, and actions of other labels are unknown to the application.
    slots = tuple(replace(slot, dim=slot.dim - fewer, computed=None) for slot in app.features.slots)
    dense = tuple(replace(column, computed=None) for column in app.features.dense)
    label = app.labels[number]
    alone = replace(app, features=replace(app.features, slots=slots, dense=dense), labels=(label,))
    return replace(folder, app=alone), replace(week, batch=replace(week.batch, labels=(week.batch.labels[number],)))
