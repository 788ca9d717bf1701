"""The peer made for this purpose: the dynamic embeddings of TensorFlow Recommenders Addons."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_recommenders_addons as tfra
import tf_keras
from numpy.typing import NDArray

from benchmarks.keys import DIM, Keys
from benchmarks.peers.answer import Order, answer
from benchmarks.peers.latency import latency
from benchmarks.peers.tensorflow_tables import use_cores
from benchmarks.peers.trial import Rule, fill, train

__all__ = ["DynamicEmbedding", "DynamicLearner"]

_KEYS_FIRST = 8_192  # initial size in its examples; the table grows

_numbers = itertools.count()


class DynamicEmbedding:
    """A dynamic embedding used as a table."""

    def __init__(self, first: float = 0.0) -> None:
        self.variable = tfra.dynamic_embedding.get_variable(
            f"table_{next(_numbers)}",
            key_dtype=tf.int64,
            value_dtype=tf.float32,
            dim=DIM,
            initializer=first,
            init_size=_KEYS_FIRST,
        )

    def ready(self, array: NDArray[Any]) -> Any:
        """Return a tensor."""
        return tf.constant(array)

    def insert(self, keys: Any, rows: Any) -> None:
        """Insert or replace rows."""
        self.variable.upsert(keys, rows)

    def lookup(self, keys: Any) -> Any:
        """Return rows as a tensor."""
        return self.variable.lookup(keys)

    def array(self, rows: Any) -> NDArray[np.float32]:
        """Return the tensor's memory."""
        array: NDArray[np.float32] = rows.numpy()
        return array

    def count(self) -> int:
        """Return the number of keys."""
        return int(self.variable.size())


class DynamicLearner:
    """A dynamic embedding with its optimizer: distinct keys, lookup, gradient and Adagrad, in one graph."""

    rule = Rule(rate=0.05, start=0.1, epsilon=1e-7)

    def __init__(self) -> None:
        self._table = DynamicEmbedding(first=0.25)
        shadow = tfra.dynamic_embedding.shadow_ops.ShadowVariable(self._table.variable, name=f"shadow_{next(_numbers)}")
        # Its optimizer wraps the Keras 2 one, with the defaults in the rule above.
        adagrad = tf_keras.optimizers.legacy.Adagrad(
            self.rule.rate, initial_accumulator_value=self.rule.start, epsilon=self.rule.epsilon
        )
        optimizer = tfra.dynamic_embedding.DynamicEmbeddingOptimizer(adagrad)

        def step(keys: Any, gradients: Any) -> None:
            distinct, place = tf.unique(keys)
            with tf.GradientTape() as tape:
                rows = tfra.dynamic_embedding.shadow_ops.embedding_lookup(shadow, distinct)
                loss = tf.reduce_sum(tf.gather(rows, place) * gradients)
            optimizer.apply_gradients([(tape.gradient(loss, shadow), shadow)])

        signature = [tf.TensorSpec([None], tf.int64), tf.TensorSpec([None, DIM], tf.float32)]
        self._step = tf.function(step, input_signature=signature)

    def ready(self, array: NDArray[Any]) -> Any:
        """Return a tensor."""
        return tf.constant(array)

    def step(self, keys: Any, gradients: Any) -> None:
        """Learn a step with Adagrad."""
        self._step(keys, gradients)

    def rows(self, keys: Any) -> NDArray[np.float32]:
        """Return the row of each key."""
        return self._table.array(self._table.lookup(keys))


def _fill(order: Order) -> dict[str, float]:
    return fill(DynamicEmbedding, order)


def _train(order: Order) -> dict[str, float]:
    return train(DynamicLearner, order, Keys(order.seed).of, "adagrad")


def _latency(order: Order) -> dict[str, float]:
    return latency(DynamicEmbedding, order)


if __name__ == "__main__":
    answer({"fill": _fill, "train": _train, "latency": _latency}, use_cores)
