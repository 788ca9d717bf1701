"""Labels that are numbers: what is declared, what is learned of an action, and what a prediction costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from streamlearn.apps import App
from streamlearn.errors import SpecError
from streamlearn.features import FeatureSpec, Label, LabelGroup, Number, Slot
from streamlearn.features.labels import Output
from streamlearn.models.label_outputs import predictions_of
from streamlearn.trainer.loss import loss_of

LOSSES = ("squared", "huber", "poisson", "quantile", "weighted_logistic")


def app_of(number: Number, **more: Any) -> App:
    features = FeatureSpec(slots=(Slot("user_id", "user"), Slot("item_id", "item")), item_id="item_id")
    groups = (LabelGroup("fast", 60, 600), LabelGroup("day", 600, 600))
    labels = (Label("click", "click", "fast"), Label("rating", "rate", "day", number=number, **more))
    return App("rated", features, groups, labels)


def test_what_is_known_of_an_item_is_its_number_within_bounds_or_what_is_declared_for_none() -> None:
    number = Number(missing=0, low=-1, high=5)
    values = np.array([9.0, 2.0, 7.0, -3.0], np.float32)
    assert number.known(values, np.array([True, True, False, True])).tolist() == [5.0, 2.0, 0.0, -1.0]
    assert replace(number, missing=3).known(values, np.zeros(4, bool)).tolist() == [3.0] * 4
    # An absurd value counts as a million scales, and no step becomes infinite of it.
    assert Number(missing=0, scale=30.0).known(np.array([1e30, -1e30]), np.ones(2, bool)).tolist() == [3e7, -3e7]


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (Number(missing="none"), "missing is 'none'"),  # type: ignore[arg-type]
        (Number(missing=float("nan")), "missing is nan"),
        (Number(missing=0, loss="square"), "loss is 'square'"),  # type: ignore[arg-type]
        (Number(missing=0, combine="mean"), "combine is 'mean'"),  # type: ignore[arg-type]
        (Number(missing=0, scale=0.0), "scale is 0.0"),
        (Number(missing=0, low=5, high=5), "low is 5 and high 5"),
        (Number(missing=0, quantile=1.0), "quantile is 1.0"),
        (Number(missing=0, loss="poisson", low=-1), "low is -1"),
        (Number(missing=0, loss="weighted_logistic", center=2.0), "center is 2.0"),
        (Number(missing=0, low=1, center=2.0), "missing is 0, outside 1 to"),
        (Number(missing="unlabelled", low=1, high=5), "center is 0.0, outside 1 to 5"),
    ],
)
def test_a_number_that_contradicts_itself_is_refused(number: Number, words: str) -> None:
    with pytest.raises(SpecError) as refused:
        app_of(number)
    assert words in refused.value.message


def test_a_number_is_not_sampled_and_follows_nothing() -> None:
    number = Number(missing=0)
    for more, words in (({"sample_rate": 0.5}, "sample_rate"), ({"follows": "click"}, "follows 'click'")):
        with pytest.raises(SpecError, match=words):
            app_of(number, **more)
    app = app_of(number)
    follower = replace(app.labels[0], group="day", follows="rating")
    with pytest.raises(SpecError, match="'click' follows it"):
        replace(app, labels=(follower, app.labels[1]), groups=app.groups[1:])


def test_only_what_changes_samples_or_the_meaning_of_predictions_changes_fingerprints() -> None:
    plain = app_of(Number(missing=0))
    learned_otherwise = app_of(Number(missing=2, loss="huber", delta=3.0, high=9.0))
    assert learned_otherwise.samples_fingerprint == plain.samples_fingerprint
    assert learned_otherwise.window_settings == plain.window_settings
    assert learned_otherwise.model_fingerprint == plain.model_fingerprint
    for number in (Number(missing=0, combine="sum"), Number(missing="unlabelled")):
        assert app_of(number).window_settings != plain.window_settings
    for number in (Number(missing=0, loss="poisson"), Number(missing=0, scale=2.0), Number(missing=0, center=2.0)):
        assert app_of(number).model_fingerprint != plain.model_fingerprint
    binary = replace(plain, labels=(plain.labels[0], replace(plain.labels[1], number=None)))
    assert binary.samples_fingerprint != plain.samples_fingerprint


@pytest.mark.parametrize("loss", LOSSES)
def test_training_and_figures_have_one_loss_and_it_is_least_at_the_truth(loss: Any) -> None:
    number = Number(missing=0, loss=loss, scale=2.0, center=0.0 if loss in LOSSES[2:5:2] else 1.0, delta=0.7)
    output, actual = Output(number=number), np.array([0.0, 0.5, 3.0, 8.0])
    said = np.linspace(-2.5, 2.5, 41)

    def trained(z: float) -> np.ndarray[Any, Any]:
        targets = np.zeros((len(actual), 1, 4), np.float32)
        targets[:, 0, 0], targets[:, 0, 1] = actual, 1.0
        return np.array(
            [float(loss_of(tf.constant([[z]], tf.float32), row[None], [output])) for row in tf.constant(targets)]
        )

    def figured(z: float) -> np.ndarray[Any, Any]:
        predicted = float(predictions_of(tf.constant([[z]], tf.float32), [output])[0, 0])
        return number.losses(np.full(len(actual), predicted), actual)

    both = np.array([[trained(z), figured(z)] for z in said])  # (said, 2, actual)
    constant = both[:, 0] - both[:, 1]
    np.testing.assert_allclose(constant, np.broadcast_to(constant[20], constant.shape), atol=2e-4)
    assert (both[:, 1] >= -1e-9).all()
    truth = number.losses(actual, actual)
    np.testing.assert_allclose(truth, 0, atol=1e-6)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ("squared", np.mean),
        ("poisson", np.mean),
        ("weighted_logistic", np.mean),
        ("quantile", lambda numbers: np.quantile(numbers, 0.9)),
        ("huber", np.median),
    ],
)
def test_the_best_prediction_is_the_mean_the_median_or_the_quantile(loss: Any, expected: Callable[..., float]) -> None:
    numbers = np.random.default_rng(3).exponential(4.0, 20_000)
    number = Number(missing=0, loss=loss, quantile=0.9, delta=1e-3)
    guesses = np.linspace(0.5, 12, 1_151)
    costs = [float(number.losses(np.full(len(numbers), guess), numbers).mean()) for guess in guesses]
    assert abs(guesses[int(np.argmin(costs))] - expected(numbers)) < 0.1
