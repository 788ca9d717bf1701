"""The peer with a growing table: DeepFM on a dynamic embedding of TensorFlow Recommenders Addons."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_recommenders_addons as tfra
import tf_keras
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
from benchmarks.trainer_samples import StepSamples

__all__ = ["DynamicLearner"]

_KEYS_FIRST = 8_192  # initial size in its examples; the table grows
_ACCUMULATOR = "accumulator"

_dynamic = tfra.dynamic_embedding
_numbers = itertools.count()


class DynamicLearner:
    """One dynamic table for all slots, with an initial capacity of `keys_first` keys.

    With a `topic`, samples come from a topic in that folder.
    """

    def __init__(self, keys_first: int = _KEYS_FIRST, *, topic: Path | None = None) -> None:
        self._keys_first, self._topic = keys_first, topic
        number = next(_numbers)
        self._table = _dynamic.get_variable(
            f"rows_{number}",
            key_dtype=tf.int64,
            value_dtype=tf.float32,
            dim=DIM,
            initializer=tf_keras.initializers.RandomUniform(-ROW_BOUND, ROW_BOUND, seed=1),
            init_size=keys_first,
        )
        self._shadow = _dynamic.shadow_ops.ShadowVariable(self._table, name=f"rows_shadow_{number}")
        adagrad = tf_keras.optimizers.legacy.Adagrad(
            ADAGRAD_RATE, initial_accumulator_value=ADAGRAD_START, epsilon=ADAGRAD_EPSILON
        )
        self._adagrad = _dynamic.DynamicEmbeddingOptimizer(adagrad)
        # Create all variables now: keys need accumulators before the first step, and tracing must not create variables.
        self._adagrad._create_all_weights([self._shadow])
        self._model = DeepFm(tf_keras)

        def step(samples: StepInputs, compiled: bool) -> Any:
            rows = _dynamic.shadow_ops.embedding_lookup(self._shadow, samples.distinct)
            loss, gradients = self._model.learn(samples, tf.ensure_shape(rows, [None, DIM]), compiled=compiled)
            self._adagrad.apply_gradients([(gradients, self._shadow)])
            return loss

        self._step = Faster(step)

    def feed(self, steps: Sequence[StepSamples]) -> Iterator[Any]:
        """Yield steps."""
        batches: Iterator[Any] = fed(fed_from(steps, self._keys_first, self._topic))
        return batches

    def step(self, samples: Any) -> float:
        """Learn a step with Adagrad and Adam."""
        return self._step(samples)

    def insert(self, ids: NDArray[np.int64]) -> None:
        """Store rows and accumulators."""
        keys = tf.constant(ids)
        rows = tf.random.stateless_uniform([len(ids), DIM], [1, int(ids[0] % 2**31)], -ROW_BOUND, ROW_BOUND)
        self._table.upsert(keys, rows)
        self._adagrad.get_slot(self._shadow, _ACCUMULATOR).params.upsert(keys, tf.fill([len(ids), DIM], ADAGRAD_START))

    def count(self) -> int | None:
        """Return the number of keys."""
        return int(self._table.size())


def _learn(order: Order, turn: Turn) -> dict[str, float]:
    with topic_of(order) as topic:
        return learn(lambda: DynamicLearner(order.keys_count, topic=topic), order, "learn", filled=True, turn=turn)


def _grow(order: Order, turn: Turn) -> dict[str, float]:
    return learn(DynamicLearner, order, "grow", filled=False, turn=turn)


if __name__ == "__main__":
    answer_in_turns({"learn": _learn, "grow": _grow}, use_cores)
