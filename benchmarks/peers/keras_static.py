"""The peer most people have: DeepFM in Keras on a table of fixed size, where an id's place is its rest.

Ids of a slot share its part of the table, as many places as ids, so some collide; nothing is stored that was not
there from the start. `stock` is the same with Keras's own Adagrad, which knows no distinct rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from benchmarks.keys import DIM
from benchmarks.peers.answer import Order, answer
from benchmarks.peers.deepfm import (
    ADAGRAD_EPSILON,
    ADAGRAD_RATE,
    ADAGRAD_START,
    ROW_BOUND,
    DeepFm,
    Faster,
    Wanted,
    fed,
    use_cores,
)
from benchmarks.peers.learning import learn, padded
from benchmarks.trainer_samples import SLOTS, USER_SLOTS, StepSamples

__all__ = ["StaticLearner", "first_rows"]


class StaticLearner:
    """One table for all slots.

    Args:
        keys_count: How many places it has.
        stock: Whether Keras's own Adagrad trains it.
    """

    def __init__(self, keys_count: int, *, stock: bool) -> None:
        self._each = keys_count // SLOTS
        self._table = keras.layers.Embedding(keys_count, DIM, embeddings_initializer=first_rows)
        self._table.build()
        variable = self._table.embeddings.value
        self._model = DeepFm(keras)
        if stock:
            adagrad = keras.optimizers.Adagrad(ADAGRAD_RATE, ADAGRAD_START, ADAGRAD_EPSILON)
            adagrad.build([self._table.embeddings])
        else:
            accumulators = tf.Variable(tf.fill([keys_count, DIM], ADAGRAD_START))

        def step(samples: Wanted, compiled: bool) -> Any:
            rows = tf.gather(variable, samples.distinct)
            loss, gradients = self._model.learn(samples, rows, compiled=compiled)
            if stock:
                slices = tf.IndexedSlices(gradients, samples.distinct, tf.shape(variable, out_type=tf.int64))
                adagrad.apply([slices], [self._table.embeddings])
            else:
                # Two gathers and two scatters: a little less than TensorFlow's own operation takes on a large table.
                squares = tf.gather(accumulators, samples.distinct) + tf.square(gradients)
                moved = rows - ADAGRAD_RATE * gradients / (tf.sqrt(squares) + ADAGRAD_EPSILON)
                variable.scatter_update(tf.IndexedSlices(moved, samples.distinct))
                accumulators.scatter_update(tf.IndexedSlices(squares, samples.distinct))
            return loss

        self._step = Faster(step)

    def feed(self, steps: Sequence[StepSamples]) -> Iterator[Any]:
        """From arrays, places instead of ids."""
        first = np.arange(SLOTS) * self._each

        def places(user: Any, history: Any, item: Any) -> tuple[Any, Any, Any]:
            return (
                user % self._each + first[:USER_SLOTS],
                history % self._each + first[USER_SLOTS],
                item % self._each + first[USER_SLOTS + 1 :],
            )

        found: Iterator[Any] = fed(padded(steps), places)
        return found

    def step(self, samples: Any) -> float:
        """One step of Adagrad and Adam."""
        return self._step(samples)

    def insert(self, ids: NDArray[np.int64]) -> None:
        """Nothing: all places are there."""

    def count(self) -> int | None:
        """None: all places are there."""
        return None


def first_rows(shape: tuple[int, ...], dtype: Any = None) -> NDArray[np.float32]:
    """By NumPy: Keras's own keep the memory of what they compute on the way, twice the table."""
    rows = np.random.default_rng(1).random(shape, np.float32)
    rows *= 2 * ROW_BOUND
    rows -= ROW_BOUND
    return rows


def _learn(order: Order) -> dict[str, float]:
    return learn(lambda: StaticLearner(order.keys_count, stock=False), order, "learn", filled=True)


def _stock(order: Order) -> dict[str, float]:
    return learn(lambda: StaticLearner(order.keys_count, stock=True), order, "stock", filled=True)


if __name__ == "__main__":
    answer({"learn": _learn, "stock": _stock}, use_cores)
