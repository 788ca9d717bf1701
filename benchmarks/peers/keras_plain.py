"""The peer in typical Keras code: an Embedding of fixed size, samples from `tf.data`, and the step of `fit`.

The user side is computed for each sample, one optimizer trains everything, and Keras chooses to compile with XLA.
`keras_static` is the same model in optimized TensorFlow code. The row of an id is its remainder in its slot's range.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from benchmarks.keys import DIM
from benchmarks.peers.answer import Order, Turn, answer_in_turns
from benchmarks.peers.deepfm import ADAGRAD_EPSILON, ADAGRAD_RATE, ADAGRAD_START, HIDDEN, use_cores
from benchmarks.peers.keras_static import first_rows
from benchmarks.peers.training_trial import learn
from benchmarks.trainer_samples import (
    DENSE_COLUMNS,
    HISTORY_IDS_MAX,
    ITEM_SLOTS,
    SLOTS,
    STEP_SAMPLES,
    USER_SLOTS,
    StepSamples,
)

__all__ = ["PlainLearner"]

_Features = dict[str, NDArray[Any]]


class PlainLearner:
    """A compiled functional model. Its table has `keys_count` rows, and row 0 for padding."""

    def __init__(self, keys_count: int) -> None:
        self._each = keys_count // SLOTS
        self._model = _model(keys_count)

    def feed(self, steps: Sequence[StepSamples]) -> Iterator[Any]:
        """Yield steps from arrays, one row per sample, which `tf.data` prepares in parallel to training."""
        rows = [self._rows(step) for step in steps]
        features = {name: np.concatenate([step_rows[name] for step_rows in rows]) for name in rows[0]}
        labels = np.concatenate([step.label for step in steps])
        samples = tf.data.Dataset.from_tensor_slices((features, labels)).batch(STEP_SAMPLES).prefetch(2)
        once = iter(samples)
        self._model.make_train_function()
        return (once for _ in steps)

    def step(self, samples: Any) -> float:
        """Learn a batch as `fit` does, and return its log loss."""
        self._model.reset_metrics()
        return float(self._model.train_function(samples)["loss"])

    def insert(self, ids: NDArray[np.int64]) -> None:
        """Do nothing: all rows exist."""

    def count(self) -> int | None:
        """Return None: all rows exist."""
        return None

    def _rows(self, step: StepSamples) -> _Features:
        first = 1 + np.arange(SLOTS) * self._each
        lengths = np.bincount(step.history_request, minlength=step.requests)
        column = np.arange(len(step.history_ids)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        history = np.zeros((step.requests, HISTORY_IDS_MAX), np.int64)
        history[step.history_request, column] = step.history_ids % self._each + first[USER_SLOTS]
        of = step.request_index
        return {
            "user": (step.user_ids % self._each + first[:USER_SLOTS])[of],
            "history": history[of],
            "item": step.item_ids % self._each + first[USER_SLOTS + 1 :],
            "numbers": step.dense,
        }


def _model(keys_count: int) -> Any:
    layers = keras.layers
    inputs = {
        "user": keras.Input((USER_SLOTS,), dtype="int64", name="user"),
        "history": keras.Input((HISTORY_IDS_MAX,), dtype="int64", name="history"),
        "item": keras.Input((ITEM_SLOTS,), dtype="int64", name="item"),
        "numbers": keras.Input((DENSE_COLUMNS,), name="numbers"),
    }
    ops, (user, history, item, numbers) = keras.ops, inputs.values()
    table = layers.Embedding(keys_count + 1, DIM, embeddings_initializer=first_rows)
    vectors = table(layers.Concatenate(axis=1)([user, item, history]))
    ones, several = vectors[:, : USER_SLOTS + ITEM_SLOTS], vectors[:, USER_SLOTS + ITEM_SLOTS :]
    there = ops.cast(history != 0, "float32")[:, :, None]
    pooled = ops.sum(several * there, axis=1, keepdims=True) / ops.sum(there, axis=1, keepdims=True)
    slots = layers.Concatenate(axis=1)([ones, pooled])
    flat = layers.Concatenate(axis=1)([layers.Flatten()(slots), numbers])
    deep = flat
    for width in HIDDEN:
        deep = layers.Dense(width, activation="relu")(deep)
    pairs = 0.5 * (ops.square(ops.sum(slots, axis=1)) - ops.sum(ops.square(slots), axis=1))
    logit = layers.Dense(1)(deep) + layers.Dense(1, use_bias=False)(flat) + layers.Dense(1, use_bias=False)(pairs)
    model = keras.Model(inputs, logit)
    adagrad = keras.optimizers.Adagrad(ADAGRAD_RATE, ADAGRAD_START, epsilon=ADAGRAD_EPSILON)
    model.compile(adagrad, keras.losses.BinaryCrossentropy(from_logits=True))
    return model


def _learn(order: Order, turn: Turn) -> dict[str, float]:
    return learn(lambda: PlainLearner(order.keys_count), order, "learn", filled=True, turn=turn)


if __name__ == "__main__":
    answer_in_turns({"learn": _learn}, use_cores)
