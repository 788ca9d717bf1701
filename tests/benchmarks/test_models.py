"""The benchmark of models: models of both labels learn, and one of a label alone learns that label."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from benchmarks.freshness import FreshModel, scored
from benchmarks.histories.freshness_rows import Week, read_week
from benchmarks.models import Turns, of_one_label
from streamlearn.apps import AppFolder, load_app
from streamlearn.publisher.logit_scores import auc_of

__all__: list[str] = []

_LEARNED, _UNTIL = 6_000, 9_000


@pytest.fixture(scope="module")
def folder() -> AppFolder:
    return load_app(Path(__file__).parents[2] / "examples" / "kuairand", [])


@pytest.fixture(scope="module")
def week(folder: AppFolder) -> Week:
    return read_week(folder)


def test_an_application_of_one_label_has_that_label_and_no_numbers_of_the_other(folder: AppFolder, week: Week) -> None:
    alone, of_label = of_one_label(folder, week, 1)
    assert alone.app.label_names == ("long_view",)
    assert of_label.batch.labels == (week.batch.labels[1],)
    before = {slot.name: slot.dim for slot in folder.app.features.slots}
    assert {slot.name: slot.dim + 1 for slot in alone.app.features.slots} == before


class _Told:
    """Predicts its own number, in as many columns as it has labels."""

    def __init__(self, number: int) -> None:
        self._number = number

    def learn(self, begin: int, end: int) -> None:
        del begin, end

    def predict(self, begin: int, end: int, out: npt.NDArray[np.float32]) -> None:
        out[begin:end] = self._number


def test_models_in_turns_predict_the_same_rows_each_for_itself(folder: AppFolder, week: Week) -> None:
    _, of_label = of_one_label(folder, week, 0)
    models: Any = [(_Told(1), week), (_Told(2), of_label), (_Told(3), week)]
    turns = Turns(models)
    first = scored(turns, week, (2, 2), 1)
    for number, columns in enumerate((2, 1, 2)):
        found = turns.of(number, first)
        for name, logits in found.logits.items():
            is_asked = ~np.isnan(first.logits[name][:, 0])
            assert is_asked.any()
            assert logits.shape == (len(week.batch), columns)
            assert (logits[is_asked] == number + 1).all()
            assert np.isnan(logits[~is_asked]).all()


@pytest.mark.parametrize("model", ["mmoe", "ple"])
def test_mixtures_learn_both_labels_of_the_example(folder: AppFolder, week: Week, model: str) -> None:
    fresh = FreshModel(replace(folder, app=replace(folder.app, model=f"model:{model}")), week)
    fresh.learn(0, _LEARNED)
    logits = np.zeros((len(week.batch), 2), np.float32)
    fresh.predict(_LEARNED, _UNTIL, logits)
    seen = slice(_LEARNED, _UNTIL)
    for number, label in enumerate(week.batch.labels):
        auc = auc_of(logits[seen, number].astype(np.float64), label.value[seen] != 0, np.ones(_UNTIL - _LEARNED))
        assert auc > 0.6
