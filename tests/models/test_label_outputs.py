"""Labels that follow others: the score is the product, in training and in exported graphs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from streamlearn.features.labels import Output
from streamlearn.models import DcnV2, PackedSide, export_graphs, load_graphs
from streamlearn.models.label_outputs import predictions_of
from tests.models.packed import filled, no_sequence, packed, scores_of

Floats = npt.NDArray[Any]


def sigmoid(logits: Floats) -> Floats:
    found: Floats = 1 / (1 + np.exp(-logits.astype(np.float64)))
    return found


def products(logits: Floats, followed: Sequence[int | None]) -> Floats:
    """The probabilities of labels, each times those of the labels before it."""
    own, whole = sigmoid(logits), np.ones(logits.shape)
    for label in range(logits.shape[1]):
        at: int | None = label
        while at is not None:
            whole[:, label] *= own[:, at]
            at = followed[at]
    return whole


@given(st.lists(st.tuples(*[st.floats(-15, 15)] * 4), min_size=1, max_size=9))
def test_the_probability_of_a_label_is_the_product_along_what_it_follows(rows: list[tuple[float, ...]]) -> None:
    followed = (2, None, 1, None)  # 0 after 2 after 1, and 3 by itself
    logits = np.array(rows, np.float32)
    found = predictions_of(tf.constant(logits), [Output(followed=at) for at in followed]).numpy()
    np.testing.assert_allclose(sigmoid(found), products(logits, followed), rtol=1e-5)
    assert np.array_equal(found[:, [1, 3]], logits[:, [1, 3]])


@pytest.mark.parametrize("positive", [0.0, 1.0])
@pytest.mark.parametrize("extreme", [-3e4, -90.0, 90.0, 3e4])
def test_logits_of_any_size_have_finite_losses_and_slopes(extreme: float, positive: float) -> None:
    for logits in ([extreme, 1.0], [1.0, extreme], [extreme, extreme]):
        tensor = tf.constant([logits])
        with tf.GradientTape() as tape:
            tape.watch(tensor)
            whole = predictions_of(tensor, [Output(), Output(followed=0)])[:, 1]
            loss = tf.nn.sigmoid_cross_entropy_with_logits(labels=[positive], logits=whole)
        slope = tape.gradient(loss, tensor).numpy()
        assert np.isfinite([*loss.numpy(), *slope.ravel()]).all()
        assert (np.abs(slope) <= 1 + 1e-6).all()


def test_exported_graphs_give_the_product(tmp_path: Path) -> None:
    features, labels = no_sequence(), ("click", "order")
    model, inputs = DcnV2(hidden=(6,), rank=3), packed(features)
    export_graphs(model, features, labels, tmp_path / "graphs", outputs=(Output(), Output(followed=0)))
    graphs = load_graphs(tmp_path / "graphs")
    weights = filled(model.build(features, labels, 0))
    named = graphs.weights(dict(zip(model.weight_names, weights, strict=True)))
    user, item = (PackedSide(*(None if one is None else tf.constant(one) for one in side)) for side in inputs[::2])
    found = graphs.score(named, graphs.user(named, user), tf.constant(inputs.user_index), item)
    np.testing.assert_allclose(
        sigmoid(found.numpy()), products(scores_of(model, weights, inputs), (None, 0)), rtol=1e-5
    )
