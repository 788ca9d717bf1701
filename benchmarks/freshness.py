"""Freshness: the AUC of KuaiRand's clicks by the interval between versions.

One model learns the week once, in the order of time. A row shown in an interval is predicted by weights that had
learned all rows whose labels were known before the interval began, as if a version had been published and served at
that moment. All intervals use the same training run, so that they differ only in age.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from benchmarks.histories.freshness_rows import Week, read_week
from benchmarks.result import Result
from streamlearn.apps import AppFolder, load_app
from streamlearn.models import model_of
from streamlearn.ps import Epoch, PsClient, Shelf
from streamlearn.publisher.logit_scores import auc_of
from streamlearn.table import declared_tables
from streamlearn.trainer.columns import columns_of
from streamlearn.trainer.intake.message import Reached
from streamlearn.trainer.learner import Learner
from streamlearn.trainer.rows import Rows
from streamlearn.trainer.step import Piece, Step
from streamlearn.versions import open_store

__all__ = ["INTERVALS", "FreshModel", "Predictions", "Predictor", "figures_of", "run", "scored"]

Note = Callable[[str], None]
Int64s = npt.NDArray[np.int64]
Float64s = npt.NDArray[np.float64]

_EXAMPLE = Path(__file__).parent.parent / "examples" / "kuairand"
_MODELS = ("deepfm", "dcn_v2", "mmoe")
_BEST = "mmoe"  # by the AUC of the second and third day, with a version a minute
_MINUTE_MS, _DAY_MS, _ZONE_MS = 60_000, 86_400_000, 8 * 3_600_000
INTERVALS = {
    "1min": _MINUTE_MS,
    "10min": 10 * _MINUTE_MS,
    "1h": 60 * _MINUTE_MS,
    "6h": 360 * _MINUTE_MS,
    "24h": _DAY_MS,
}
"""Event time between two versions, by the name in figures. Intervals start at midnight in China."""
_FROZEN = "frozen"
# Day 1 is the first whole day.
_DAYS, _LEARNED_DAYS = (4, 6), 3
_QUICK_DAYS, _QUICK_LEARNED_DAYS = (2, 2), 1
_LEARN_ROWS, _SCORE_ROWS = 64, 1_024


@dataclass(frozen=True, eq=False)
class Predictions:
    """The predictions of each row, by interval between versions.

    Attributes:
        logits: float32[n, labels] by interval, and for the frozen version; NaN for rows without a prediction.
        wall_s: Duration.
        cpu_s: CPU time of all threads.
    """

    logits: Mapping[str, npt.NDArray[np.float32]]
    wall_s: float
    cpu_s: float


class Predictor(Protocol):
    """A model that learns and predicts rows of a week, by row number."""

    def learn(self, begin: int, end: int) -> None:
        """Learn rows."""

    def predict(self, begin: int, end: int, out: npt.NDArray[np.float32]) -> None:
        """Predict rows with the current weights, into the same rows of `out`."""


class FreshModel:
    """The trainer's model as `Predictor`."""

    def __init__(self, folder: AppFolder, week: Week) -> None:
        app, settings = folder.app, folder.settings
        self._week = week
        self._learner = Learner(app, model_of(folder), settings.trainer)
        options = declared_tables(app.tables, settings.tables)
        client = PsClient.local(options, Shelf(open_store("file:///nowhere"), app.name), settings.ps)
        client.restore(Epoch(1), None)
        self._learn_rows, self._score_rows = (Rows(app, client, rows) for rows in (_LEARN_ROWS, _SCORE_ROWS))
        self._all = np.uint32((1 << len(app.labels)) - 1)

    def learn(self, begin: int, end: int) -> None:
        """Learn rows, in steps of at most `_LEARN_ROWS`."""
        for at in range(begin, end, _LEARN_ROWS):
            columns = columns_of(self._step(at, min(at + _LEARN_ROWS, end)))
            scale = self._learner.rate_scale
            learned = self._learner.learn(self._learn_rows.pack(columns))
            now_ms = int(self._week.settled_ms[min(at + _LEARN_ROWS, end) - 1])
            self._learn_rows.push(columns, learned.gradients, now_ms, scale)

    def predict(self, begin: int, end: int, out: npt.NDArray[np.float32]) -> None:
        """Predict rows with the current weights."""
        size, rows = (_LEARN_ROWS, self._learn_rows) if end - begin <= _LEARN_ROWS else (_SCORE_ROWS, self._score_rows)
        for at in range(begin, end, size):
            until = min(at + size, end)
            out[at:until] = self._learner.score(rows.pack(columns_of(self._step(at, until))))

    def _step(self, begin: int, end: int) -> Step:
        rows = np.arange(begin, end)
        learn = np.full(len(rows), self._all)
        piece = Piece(self._week.batch, rows, learn, np.zeros_like(learn))
        return Step(1, (piece,), Reached((), ()), len(rows))


def scored(fresh: Predictor, week: Week, days: tuple[int, int], learned_days: int) -> Predictions:
    """Learn the week up to the last of some days, and predict these days.

    Args:
        fresh: The model.
        week: The rows.
        days: The first and the last day to predict; day 1 is the first whole day.
        learned_days: The day after which the frozen version stops learning.
    """
    begun_s, begun_cpu_s = time.perf_counter(), time.process_time()
    labels = len(week.batch.labels)
    names = (*INTERVALS, _FROZEN)
    logits = {name: np.full((len(week.shown_ms), labels), np.nan, np.float32) for name in names}
    first_ms, last_ms = _day_begin_ms(week, days[0]), _day_begin_ms(week, days[1] + 1)
    learned = 0
    for now_ms in _minutes(week, last_ms):
        known = int(np.searchsorted(week.settled_ms, now_ms))
        fresh.learn(learned, known)
        learned = known
        if now_ms == _day_begin_ms(week, learned_days + 1):
            fresh.predict(*_shown(week, first_ms, last_ms), logits[_FROZEN])
        for name, interval_ms in INTERVALS.items() if now_ms >= first_ms else ():
            if (now_ms + _ZONE_MS) % interval_ms == 0:
                fresh.predict(*_shown(week, now_ms, now_ms + interval_ms), logits[name])
    return Predictions(logits, time.perf_counter() - begun_s, time.process_time() - begun_cpu_s)


def run(quick: bool, note: Note) -> Result:
    """Learn the week with each model; if quick, two days with one model."""
    result = Result("freshness")
    folder = load_app(_EXAMPLE, [])
    week = read_week(folder)
    note(f"{len(week.shown_ms):,} rows")
    days, learned_days = (_QUICK_DAYS, _QUICK_LEARNED_DAYS) if quick else (_DAYS, _LEARNED_DAYS)
    for name in _MODELS[:1] if quick else _MODELS:
        chosen = replace(folder, app=replace(folder.app, model=f"model:{name}"))
        predicted = scored(FreshModel(chosen, week), week, days, learned_days)
        note(f"{name}: {predicted.wall_s:.0f} s")
        figures = figures_of(week, predicted, days) | {"wall_s": predicted.wall_s, "cpu_s": predicted.cpu_s}
        result.figures |= {f"{name}.{figure}": value for figure, value in figures.items()}
        if name == _BEST:
            result.figures["best.click_auc_1min"] = figures["click_auc_1min"]
            result.figures["best.click_gain"] = figures["click_auc_gain"]
    return result


def figures_of(week: Week, predicted: Predictions, days: tuple[int, int]) -> dict[str, float]:
    """Return the AUC of each label by interval, for the rows of some days, and the gain by freshness."""
    begin, end = _shown(week, _day_begin_ms(week, days[0]), _day_begin_ms(week, days[1] + 1))
    figures = {}
    for number, label in enumerate(week.batch.labels):
        positive = label.value[begin:end] != 0
        for name, logits in predicted.logits.items():
            chances = logits[begin:end, number].astype(np.float64)
            figures[f"{label.name}_auc_{name}"] = auc_of(chances, positive, np.ones(end - begin))
        figures[f"{label.name}_auc_gain"] = figures[f"{label.name}_auc_1min"] - figures[f"{label.name}_auc_{_FROZEN}"]
    return figures


def _minutes(week: Week, end_ms: int) -> Iterator[int]:
    """Yield every full minute from the first row, before the end."""
    begin_ms = int(week.shown_ms[0]) // _MINUTE_MS * _MINUTE_MS
    yield from range(begin_ms, end_ms, _MINUTE_MS)


def _day_begin_ms(week: Week, day: int) -> int:
    """Return the start of a day in China, in ms; the week begins late on day 0."""
    return (int(week.shown_ms[0]) + _ZONE_MS) // _DAY_MS * _DAY_MS + day * _DAY_MS - _ZONE_MS


def _shown(week: Week, begin_ms: int, end_ms: int) -> tuple[int, int]:
    begin, end = np.searchsorted(week.shown_ms, [begin_ms, end_ms]).tolist()
    return begin, end
