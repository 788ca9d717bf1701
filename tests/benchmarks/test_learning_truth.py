"""The benchmark of learning: samples are the history's, losses are over the best, a model that learns nears it."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from benchmarks.histories.learning_samples import truths
from benchmarks.learning_loss import Losses, learned, plain
from examples.synthetic.history import SyntheticHistory
from examples.synthetic.options import options_of
from streamlearn.apps import AppFolder, load_app
from streamlearn.settings.trainer import TrainerSettings

__all__: list[str] = []


@pytest.fixture(scope="module")
def folder() -> AppFolder:
    return load_app(Path(__file__).parents[2] / "examples" / "synthetic")


def _logit(share: float | np.typing.NDArray[np.float32]) -> np.typing.NDArray[np.float32]:
    sure = np.asarray(share, np.float64)
    return np.log(sure / (1 - sure)).astype(np.float32)


def test_who_knows_the_truth_loses_nothing_and_who_does_not_what_entropy_says() -> None:
    truth = np.array([[0.1, 0.02], [0.3, 0.05], [0.6, 0.4]], np.float32)
    knowing, guessing = Losses(2), Losses(2)
    knowing.add(_logit(truth), truth)
    assert knowing.over_best(3) == pytest.approx([0, 0], abs=1e-6)
    guessing.add(np.zeros_like(truth), truth)
    best = -(truth * np.log(truth) + (1 - truth) * np.log1p(-truth)).sum(axis=0)
    assert guessing.over_best(3) == pytest.approx(3 * np.log(2) / best - 1, rel=1e-5)


def test_a_figure_is_of_the_last_samples_alone() -> None:
    losses, truth = Losses(1), np.full((10, 1), 0.2, np.float32)
    losses.add(np.full((10, 1), 3.0, np.float32), truth)
    losses.add(_logit(truth), truth)
    assert losses.over_best(20)[0] > 1
    assert losses.over_best(10) == pytest.approx([0], abs=1e-6)
    losses.add(_logit(truth), truth)
    assert losses.over_best(15) == pytest.approx([0], abs=1e-6)


def test_samples_are_what_is_shown_and_their_labels_are_as_likely_as_the_truth_says(folder: AppFolder) -> None:
    batches = list(truths(folder.app, 100_000))
    samples = sum(len(batch) for batch, _ in batches)
    assert 100_000 <= samples < 130_000
    assert all(len(batch) == len(truth) for batch, truth in batches)
    truth = np.concatenate([one for _, one in batches]).astype(np.float64)
    values = np.array([np.concatenate([batch.labels[at].value for batch, _ in batches]) for at in (0, 1)]).T
    assert (values[:, 1] <= values[:, 0]).all()
    deviation = np.sqrt((truth * (1 - truth)).sum(axis=0))
    assert (np.abs(values.sum(axis=0) - truth.sum(axis=0)) < 4 * deviation).all()
    # Where a click is likely there are many: rows have not slipped against their truth.
    likely = truth[:, 0] > np.quantile(truth[:, 0], 0.9)
    assert values[likely, 0].sum() > 0.9 * truth[likely, 0].sum()
    blocks = SyntheticHistory(options_of({"events": "86000"})).blocks_with_truth(10_000)
    first = next(known for block, known in blocks if block.impressions_rows)
    assert np.array_equal(batches[0][1][:, 0], first.click)


def test_equal_calls_draw_equal_labels(folder: AppFolder) -> None:
    one, two = (next(islice(truths(folder.app, 5_000), 1))[0] for _ in range(2))
    assert all(np.array_equal(left.value, right.value) for left, right in zip(one.labels, two.labels, strict=True))


def test_the_applications_model_learns_and_says_so(folder: AppFolder) -> None:
    found = learned(folder, (20_000, 100_000), 20_000)
    early, late = (found[f"click_log_loss_over_bayes_{mark}"] for mark in ("20k", "100k"))
    assert 0.02 < late < 0.2 < early
    assert found["samples"] >= 100_000
    assert found["long_view_log_loss_over_bayes_100k"] < found["long_view_log_loss_over_bayes_20k"]


def test_a_ready_made_model_comes_with_nothing_of_the_applications_settings(folder: AppFolder) -> None:
    one = plain(folder, "deepfm")
    assert [spec.name for spec in one.app.features.tables] == ["main"]
    assert {(slot.dim, slot.initial_range) for slot in one.app.features.slots} == {(16, 0.05)}
    assert (one.app.model, one.settings.tables.rates, one.settings.trainer.rate) == (
        "deepfm",
        {},
        TrainerSettings().rate,
    )
    assert [slot.keys_of for slot in one.app.features.slots] == [slot.keys_of for slot in folder.app.features.slots]
