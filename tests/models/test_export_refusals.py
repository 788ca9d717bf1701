"""What export refuses: graphs that hold weights, have state, or that XLA does not compile."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

from streamlearn.errors import SpecError
from streamlearn.features import FeatureSpec
from streamlearn.models import PackedSide, export_graphs
from tests.models.packed import no_sequence

LABELS = ("click",)


class Plain:
    """A layer over the candidate, added to one over the user; it can be exported."""

    def build(self, features: FeatureSpec, labels: Sequence[str], seed: int) -> list[Any]:
        rng = np.random.default_rng(seed)
        shapes = [(features.pack.user.flat_width, 1), (features.pack.item.flat_width, 1), (1,)]
        self.numbers = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
        return [tf.constant(one) for one in self.numbers]

    def user(self, weights: Any, inputs: PackedSide) -> PackedSide:
        return PackedSide(tf.matmul(inputs.flat, weights[0]), None)

    def score(self, weights: Any, user: PackedSide, user_index: Any, inputs: PackedSide) -> Any:
        return self.changed(tf.gather(user.flat, user_index) + tf.matmul(inputs.flat, weights[1]), weights[2])

    def changed(self, logits: Any, bias: Any) -> Any:
        return logits + bias


class Variable(Plain):
    def build(self, features: FeatureSpec, labels: Sequence[str], seed: int) -> list[Any]:
        self.kept = tf.Variable([[2.0]], name="kept")
        return super().build(features, labels, seed)

    def changed(self, logits: Any, bias: Any) -> Any:
        return logits * self.kept + bias


class LargeTensor(Plain):
    large = tf.zeros([600, 1])

    def changed(self, logits: Any, bias: Any) -> Any:
        return logits + bias + tf.reduce_sum(self.large)


class SmallTensor(Plain):
    small = tf.constant([3.0])

    def changed(self, logits: Any, bias: Any) -> Any:
        return logits + bias * self.small


class OwnWeight(Plain):
    """Takes its bias from itself, in whose place another seed would have another."""

    def changed(self, logits: Any, bias: Any) -> Any:
        return logits + self.numbers[2] + 0 * bias


class IdleWeight(Plain):
    """Takes numbers that are the same for each seed from somewhere else than its weights."""

    def changed(self, logits: Any, bias: Any) -> Any:
        return logits + tf.zeros([1])


class Chance(Plain):
    def changed(self, logits: Any, bias: Any) -> Any:
        return logits + bias + tf.random.uniform([1])


class ChanceWithin(Plain):
    """Chance in a function that the graph calls."""

    def changed(self, logits: Any, bias: Any) -> Any:
        return tf.function(lambda one: one + bias + tf.random.uniform([1]), autograph=False)(logits)


class Python(Plain):
    def changed(self, logits: Any, bias: Any) -> Any:
        return tf.reshape(tf.py_function(lambda one: one, [logits + bias], tf.float32), [-1, 1])


class Text(Plain):
    def changed(self, logits: Any, bias: Any) -> Any:
        return logits + bias + tf.cast(tf.strings.length(tf.strings.as_string(logits)), tf.float32)


class Barrier(Plain):
    """XLA has the operation, and nodes do not load it."""

    def changed(self, logits: Any, bias: Any) -> Any:
        return gen_xla_ops.xla_optimization_barrier([logits + bias])[0]


class Unique(Plain):
    """XLA has the operation, but its rows are fewer than the candidates."""

    def changed(self, logits: Any, bias: Any) -> Any:
        return tf.unique(logits[:, 0])[0][:, None] + bias


class MoreLabels(Plain):
    def changed(self, logits: Any, bias: Any) -> Any:
        return tf.concat([logits, logits + bias], axis=1)


class Half(Plain):
    def changed(self, logits: Any, bias: Any) -> Any:
        return tf.cast(logits + bias, tf.float16)


class PythonBranch(Plain):
    def changed(self, logits: Any, bias: Any) -> Any:
        return logits if bias > 0 else -logits


class OneRank(Plain):
    def user(self, weights: Any, inputs: PackedSide) -> PackedSide:
        return PackedSide(tf.matmul(inputs.flat, weights[0])[:, 0], None)


class HalfWeight(Plain):
    def build(self, features: FeatureSpec, labels: Sequence[str], seed: int) -> list[Any]:
        return [tf.cast(one, tf.float16) for one in super().build(features, labels, seed)]


class NoWeights(Plain):
    def build(self, features: FeatureSpec, labels: Sequence[str], seed: int) -> list[Any]:
        return [1 // (len(labels) - 1)]


class TwoOfAName(Plain):
    weight_names = ("one", "one", "two")


@pytest.mark.parametrize(
    ("model", "said", "helped"),
    [
        (
            Variable,
            "closes over 1 tensors instead of taking them as arguments: the variable kept:0 of shape (1, 1)",
            "from `weights`",
        ),
        (
            LargeTensor,
            "closes over 1 tensors instead of taking them as arguments: a float32 tensor of shape (600, 1)",
            "from `weights`",
        ),
        (
            SmallTensor,
            "closes over 1 tensors instead of taking them as arguments: a float32 tensor of shape (1,)",
            "inside the graph",
        ),
        (OwnWeight, "score of OwnWeight changes with the seed of the model", "from `weights`"),
        (IdleWeight, "no graph of IdleWeight uses the weights weight_2", "`weights`"),
        (Chance, "state, chance or side effects: RandomUniform", "the same result for the same arguments"),
        (ChanceWithin, "state, chance or side effects: RandomUniform", "the same result for the same arguments"),
        (Python, "state, chance or side effects: EagerPyFunc", "no side effects"),
        (Text, "XLA refuses score of Text: it has no AsString", "operations that XLA supports"),
        (
            Barrier,
            "score of Barrier has operations that nodes refuse to load: XlaOptimizationBarrier",
            "numbers from numbers",
        ),
        (Unique, "score of Unique returns `scores` with 1 rows for 3 input rows", "one row for each input row"),
        (MoreLabels, "returns float32 of shape (any, 2) for 1 labels", "(candidates, 1)"),
        (Half, "returns float16 of shape (any, 1) for 1 labels", "float32 logits"),
        (PythonBranch, "score of PythonBranch failed, at ", "TensorFlow operations"),
        (NoWeights, f"build of NoWeights failed, at {__file__}:", "Choose and write models"),
        (OneRank, "user of OneRank returns as `flat` float32 of shape (any)", "(users, fixed width)"),
        (HalfWeight, "weight 'weight_0' of HalfWeight is float16", "return float32 weights"),
        (TwoOfAName, "TwoOfAName has 3 weights but 2 different names", "one name for each weight"),
    ],
)
def test_what_could_not_be_served_is_refused(tmp_path: Path, model: type[Plain], said: str, helped: str) -> None:
    with pytest.raises(SpecError) as refused:
        export_graphs(model(), no_sequence(), LABELS, tmp_path / "graphs")
    assert said in refused.value.message
    assert helped in refused.value.help
    assert not list(tmp_path.iterdir())


def test_a_model_without_any_of_it_is_exported(tmp_path: Path) -> None:
    described = export_graphs(Plain(), no_sequence(), LABELS, tmp_path / "graphs")
    assert [one.name for one in described.weights] == ["weight_0", "weight_1", "weight_2"]
