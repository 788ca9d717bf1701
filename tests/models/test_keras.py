"""Keras networks as models: weights as arguments, and what is refused."""

from __future__ import annotations

import random
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from streamlearn.errors import SpecError, UsageError
from streamlearn.features import FeatureSpec
from streamlearn.models import KerasModel, Model, PackedSide
from tests.models.networks import Made, one_network, two_networks
from tests.models.packed import filled, most_of_all, no_sequence, only_items, packed, scores_of, tensors_of

LABELS = ("click", "long_view")


class Tower(keras.Model):  # type: ignore[misc]
    """A network that is no functional one, and says nothing of training."""

    def __init__(self, labels: int) -> None:
        super().__init__()
        self.hidden, self.last = keras.layers.Dense(5, activation="relu"), keras.layers.Dense(labels)

    def call(self, inputs: Any) -> Any:
        joined = keras.ops.concatenate(inputs, axis=-1) if isinstance(inputs, list | tuple) else inputs
        return self.last(self.hidden(joined))


def test_scores_are_those_of_the_networks_with_these_weights() -> None:
    features = most_of_all()
    kept: list[Any] = []

    def make(spec: FeatureSpec, labels: int) -> Any:
        kept[:] = two_networks(spec, labels)
        return tuple(kept)

    model, inputs = Made(make), packed(features)
    built = model.build(features, LABELS, 0)
    assert isinstance(model, Model)
    assert model.weight_names == (
        "user_0_kernel", "user_1_bias", "user_2_kernel", "user_3_bias",
        "score_0_kernel", "score_1_bias", "score_2_kernel", "score_3_bias",
    )  # fmt: skip
    before = scores_of(model, built, inputs)
    weights = filled(built)
    scores = scores_of(model, weights, inputs)
    assert np.abs(scores - before).max() > 0.1
    user, score = kept
    variables = [*user.trainable_variables, *score.trainable_variables]
    assert all(np.array_equal(one, two) for one, two in zip(variables, built, strict=True))  # never assigned to
    for variable, weight in zip(variables, weights, strict=True):
        variable.assign(weight)
    taste, places = user([*tensors_of(inputs.user)])
    wanted = score(
        [tf.gather(taste, inputs.user_index), tf.gather(places, inputs.user_index), tf.constant(inputs.item.flat)]
    )
    np.testing.assert_allclose(scores, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("spec", [no_sequence, only_items])
def test_one_network_scores_alone(spec: Any) -> None:
    features = spec()
    inputs = packed(features)
    alone = Made(lambda _, labels: (None, Tower(labels)))
    weights = filled(alone.build(features, LABELS, 0))
    parts = [inputs.item.flat] if inputs.user.flat is None else [inputs.user.flat[inputs.user_index], inputs.item.flat]
    hidden = np.maximum(np.concatenate(parts, axis=1) @ weights[0] + weights[1], 0)
    wanted = hidden @ weights[2] + weights[3]
    np.testing.assert_allclose(scores_of(alone, weights, inputs), wanted, rtol=1e-5, atol=1e-5)


def test_inputs_with_names_are_given_by_them() -> None:
    features = no_sequence()
    model, inputs = Made(one_network), packed(features)
    weights = filled(model.build(features, LABELS, 0))
    wanted = np.concatenate([inputs.user.flat[inputs.user_index], inputs.item.flat], axis=1) @ weights[0] + weights[1]
    np.testing.assert_allclose(scores_of(model, weights, inputs), wanted, rtol=1e-5, atol=1e-5)


def test_a_layer_of_both_networks_is_one_weight() -> None:
    features = no_sequence()

    def make(spec: FeatureSpec, labels: int) -> Any:
        shared = keras.layers.Dense(spec.pack.user.flat_width, use_bias=False)
        flat = keras.Input((spec.pack.user.flat_width,))
        given, item = keras.Input((spec.pack.user.flat_width,)), keras.Input((spec.pack.item.flat_width,))
        joined = keras.layers.Concatenate()([shared(given), item])
        return keras.Model(flat, shared(flat)), keras.Model([given, item], keras.layers.Dense(labels)(joined))

    model, inputs = Made(make), packed(features)
    weights = filled(model.build(features, LABELS, 0))
    assert model.weight_names == ("user_0_kernel", "score_0_kernel", "score_1_bias")
    twice = inputs.user.flat[inputs.user_index] @ weights[0] @ weights[0]
    wanted = np.concatenate([twice, inputs.item.flat], axis=1) @ weights[1] + weights[2]
    np.testing.assert_allclose(scores_of(model, weights, inputs), wanted, rtol=1e-4, atol=1e-4)


def test_gradients_reach_all_weights_when_compiled() -> None:
    features = most_of_all()
    model, inputs = Made(two_networks), packed(features, users=12, candidates=60)
    weights = [tf.constant(one) for one in filled(model.build(features, LABELS, 0))]

    user, item = tensors_of(inputs.user), tensors_of(inputs.item)

    @tf.function(jit_compile=True)  # type: ignore[untyped-decorator]
    def slopes() -> Any:
        with tf.GradientTape() as tape:
            tape.watch(weights)
            loss = tf.reduce_sum(tf.square(model.score(weights, model.user(weights, user), inputs.user_index, item)))
        return tape.gradient(loss, weights)

    assert all(np.abs(slope).max() > 0 for slope in slopes())


def test_the_same_seed_builds_the_same_weights_and_leaves_chance_alone() -> None:
    features = most_of_all()
    random.seed(11)
    state = random.getstate()
    first = Made(two_networks).build(features, LABELS, 5)
    assert random.getstate() == state
    keras.layers.Dense(2)
    random.random()
    model = Made(two_networks)
    again, other = model.build(features, LABELS, 5), Made(two_networks).build(features, LABELS, 6)
    assert all(np.array_equal(one, two) for one, two in zip(first, again, strict=True))
    assert not all(np.array_equal(one, two) for one, two in zip(first, other, strict=True))


def test_what_is_frozen_is_a_constant_and_no_weight() -> None:
    features = most_of_all()
    frozen = keras.layers.Dense(4, name="frozen")
    frozen.trainable = False
    model, inputs = Made(lambda spec, labels: two_networks(spec, labels, frozen)), packed(features)
    built = model.build(features, LABELS, 0)
    assert len(model.weight_names) == len(built) == 8
    scores = scores_of(model, built, inputs)
    frozen.kernel.assign(frozen.kernel + 1)
    assert np.array_equal(scores_of(model, built, inputs), scores)


@pytest.mark.parametrize(
    ("layers", "said", "removed"),
    [
        (
            lambda: keras.layers.BatchNormalization(name="norm"),
            "norm/moving_mean",
            "layers such as BatchNormalization and Dropout",
        ),
        (
            lambda: keras.layers.Dropout(0.5, name="drop"),
            "seed_generator_state",
            "layers such as BatchNormalization and Dropout",
        ),
        (lambda: keras.layers.Dense(3, kernel_regularizer="l2"), "add 1 losses", "regularizers and add_loss"),
    ],
)
def test_state_that_changes_and_losses_of_layers_are_refused(layers: Any, said: str, removed: str) -> None:
    model = Made(lambda spec, labels: two_networks(spec, labels, layers()))
    with pytest.raises(SpecError) as refused:
        model.build(most_of_all(), LABELS, 0)
    assert said in refused.value.message
    assert f"remove {removed}" in refused.value.help


class Nested(Tower):
    """State that only shows when layers within are told of training."""

    def __init__(self, labels: int) -> None:
        super().__init__(labels)
        self.norm = keras.layers.BatchNormalization()

    def call(self, inputs: Any) -> Any:
        return super().call(self.norm(keras.ops.concatenate(inputs, axis=-1)))


def test_state_of_a_layer_within_is_found() -> None:
    with pytest.raises(SpecError, match="state that changes during training"):
        Made(lambda _, labels: (None, Nested(labels))).build(no_sequence(), LABELS, 0)


def wrong_width(_: FeatureSpec, labels: int) -> Any:
    one, two = keras.Input((99,)), keras.Input((4,))
    joined = keras.layers.Concatenate()([one, two])
    return None, keras.Model([one, two], keras.layers.Dense(labels)(joined))


def wrong_name(features: FeatureSpec, labels: int) -> Any:
    inputs = {"items": keras.Input((features.pack.item.flat_width,), name="items")}
    return None, keras.Model(inputs, keras.layers.Dense(labels)(inputs["items"]))


def three_dimensions(features: FeatureSpec, labels: int) -> Any:
    flat = keras.Input((features.pack.user.flat_width,))
    return keras.Model(flat, keras.layers.Reshape((1, 1, 6))(flat)), Tower(labels)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (wrong_width, "the score network does not take user_flat (1, 6), item_flat (1, 4)"),
        (wrong_name, "the score network has an input 'items'"),
        (three_dimensions, "the user network returns (1, 1, 1, 6)"),
        (lambda _, labels: (None, Tower(labels + 1)), "returns (1, 3) for one candidate and 2 labels"),
    ],
)
def test_networks_that_do_not_fit_are_refused(make: Any, said: str) -> None:
    with pytest.raises(SpecError) as refused:
        Made(make).build(no_sequence(), LABELS, 0)
    assert said in refused.value.message
    assert refused.value.help


def test_a_model_of_networks_that_was_not_built_says_so() -> None:
    with pytest.raises(UsageError, match="has no networks yet"):
        Made(one_network).user([], PackedSide(None, None))
    with pytest.raises(TypeError):
        KerasModel()  # type: ignore[abstract]
