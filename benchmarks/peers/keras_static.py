"""The most common peer: DeepFM in Keras on a table of fixed size, where the row of an id is its remainder.

Each slot has a range of rows, as many as ids, so some ids collide. All rows exist from the start. `stock` uses Keras's
Adagrad, which does not deduplicate rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from benchmarks.keys import DIM
from benchmarks.peers.answer import Order, Turn, answer_in_turns
from benchmarks.peers.deepfm import (
    ADAGRAD_EPSILON,
    ADAGRAD_RATE,
    ADAGRAD_START,
    ROW_BOUND,
    DeepFm,
    Faster,
    StepInputs,
    fed,
    use_cores,
)
from benchmarks.peers.streamed import fed_from, topic_of
from benchmarks.peers.training_trial import learn
from benchmarks.trainer_samples import SLOTS, USER_SLOTS, StepSamples

__all__ = ["StaticLearner", "first_rows", "row_of_ids"]


class StaticLearner:
    """One table of `keys_count` rows for all slots.

    `stock` trains it with Keras's Adagrad. With a `topic`, samples come from a topic in that folder.
    """

    def __init__(self, keys_count: int, *, stock: bool = False, topic: Path | None = None) -> None:
        self._keys_count, self._topic = keys_count, topic
        self._table = keras.layers.Embedding(keys_count, DIM, embeddings_initializer=first_rows)
        self._table.build()
        variable = self._table.embeddings.value
        self._model = DeepFm(keras)
        if stock:
            adagrad = keras.optimizers.Adagrad(ADAGRAD_RATE, ADAGRAD_START, ADAGRAD_EPSILON)
            adagrad.build([self._table.embeddings])
        else:
            accumulators = tf.Variable(tf.fill([keys_count, DIM], ADAGRAD_START))

        def step(samples: StepInputs, compiled: bool) -> Any:
            rows = tf.gather(variable, samples.distinct)
            loss, gradients = self._model.learn(samples, rows, compiled=compiled)
            if stock:
                slices = tf.IndexedSlices(gradients, samples.distinct, tf.shape(variable, out_type=tf.int64))
                adagrad.apply([slices], [self._table.embeddings])
            else:
                # On a large table two gathers and two scatters are a little faster than TensorFlow's operation.
                squares = tf.gather(accumulators, samples.distinct) + tf.square(gradients)
                moved = rows - ADAGRAD_RATE * gradients / (tf.sqrt(squares) + ADAGRAD_EPSILON)
                variable.scatter_update(tf.IndexedSlices(moved, samples.distinct))
                accumulators.scatter_update(tf.IndexedSlices(squares, samples.distinct))
            return loss

        self._step = Faster(step)

    def feed(self, steps: Sequence[StepSamples]) -> Iterator[Any]:
        """Yield steps, with rows instead of ids."""
        source = fed_from(steps, self._keys_count, self._topic)
        batches: Iterator[Any] = fed(source, row_of_ids(self._keys_count))
        return batches

    def step(self, samples: Any) -> float:
        """Learn a step with Adagrad and Adam."""
        return self._step(samples)

    def insert(self, ids: NDArray[np.int64]) -> None:
        """Do nothing: all rows exist."""

    def count(self) -> int | None:
        """Return None: all rows exist."""
        return None


def row_of_ids(keys_count: int) -> Callable[[Any, Any, Any], tuple[Any, Any, Any]]:
    """Return what maps ids to rows: a remainder in the slot's range; part of the feed's graph."""
    each = keys_count // SLOTS
    first = np.arange(SLOTS) * each

    def rows(user: Any, history: Any, item: Any) -> tuple[Any, Any, Any]:
        return (
            user % each + first[:USER_SLOTS],
            history % each + first[USER_SLOTS],
            item % each + first[USER_SLOTS + 1 :],
        )

    return rows


def first_rows(shape: tuple[int, ...], dtype: Any = None) -> NDArray[np.float32]:
    """Return initial rows from NumPy: Keras's initializers keep temporary memory of twice the table."""
    rows = np.random.default_rng(1).random(shape, np.float32)
    rows *= 2 * ROW_BOUND
    rows -= ROW_BOUND
    return rows


def _learn(order: Order, turn: Turn) -> dict[str, float]:
    with topic_of(order) as topic:
        return learn(lambda: StaticLearner(order.keys_count, topic=topic), order, "learn", filled=True, turn=turn)


def _stock(order: Order, turn: Turn) -> dict[str, float]:
    return learn(lambda: StaticLearner(order.keys_count, stock=True), order, "stock", filled=True, turn=turn)


if __name__ == "__main__":
    answer_in_turns({"learn": _learn, "stock": _stock}, use_cores)
