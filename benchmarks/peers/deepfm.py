"""DeepFM over rows of a table, in TensorFlow and the installed Keras; each peer has its own table.

It is written for speed: the user side is computed once per request, one lookup serves all slots, each distinct id is
looked up once, and the feed prepares a step while the one before is learned. Whether XLA is faster depends on the
cores: the first steps try both ways, and the faster one is kept.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import tensorflow as tf
from numpy.typing import NDArray

from benchmarks.keys import DIM
from benchmarks.peers.answer import Order
from benchmarks.peers.training_trial import HISTORY_PADDED, REQUESTS_PADDED, WARM_STEPS, Padded, Sizes
from benchmarks.trainer_samples import DENSE_COLUMNS, ITEM_SLOTS, STEP_SAMPLES, USER_SLOTS

__all__ = [
    "ADAGRAD_EPSILON",
    "ADAGRAD_RATE",
    "ADAGRAD_START",
    "HIDDEN",
    "ROW_BOUND",
    "DeepFm",
    "Faster",
    "StepInputs",
    "fed",
    "step_inputs",
    "use_cores",
]

ADAGRAD_RATE, ADAGRAD_START, ADAGRAD_EPSILON = 0.05, 0.1, 1e-7
ROW_BOUND = 0.05  # rows start uniform in [-ROW_BOUND, ROW_BOUND]
_ADAM_RATE = 1e-3
HIDDEN = (256, 128)
_PADDED = Padded(
    user_ids=tf.TensorSpec([REQUESTS_PADDED, USER_SLOTS], tf.int64),
    history_ids=tf.TensorSpec([HISTORY_PADDED], tf.int64),
    history_request=tf.TensorSpec([HISTORY_PADDED], tf.int32),
    item_ids=tf.TensorSpec([STEP_SAMPLES, ITEM_SLOTS], tf.int64),
    request_index=tf.TensorSpec([STEP_SAMPLES], tf.int32),
    dense=tf.TensorSpec([STEP_SAMPLES, DENSE_COLUMNS], tf.float32),
    label=tf.TensorSpec([STEP_SAMPLES], tf.float32),
)


class StepInputs(NamedTuple):
    """The inputs of a step; a process that learns a part of it has those of its `Sizes`.

    Attributes:
        distinct: (D,) the distinct ids or rows.
        at: (REQUESTS_PADDED * USER_SLOTS + HISTORY_PADDED + STEP_SAMPLES * ITEM_SLOTS,) index of each id in `distinct`.
        history_request: (HISTORY_PADDED,).
        request_index: (STEP_SAMPLES,).
        dense: (STEP_SAMPLES, DENSE_COLUMNS).
        label: (STEP_SAMPLES,).
    """

    distinct: Any
    at: Any
    history_request: Any
    request_index: Any
    dense: Any
    label: Any


def step_inputs(step: Padded) -> StepInputs:
    """Return the inputs of a step; part of the feed's graph."""
    ids = tf.concat([tf.reshape(step.user_ids, [-1]), step.history_ids, tf.reshape(step.item_ids, [-1])], axis=0)
    distinct, at = tf.unique(ids)
    return StepInputs(distinct, at, step.history_request, step.request_index, step.dense, step.label)


def fed(steps: Padded | Callable[[], Iterator[Padded]], change: Any = None, *, repeats: bool = False) -> Any:
    """Return steps, which `tf.data` prepares in parallel to training.

    `steps` are stacked arrays in memory, or a function that yields one after the other. `change` maps the
    ids (user_ids, history_ids, item_ids) of each step. With `repeats` they begin again after the last one.
    """

    def prepared(*arrays: NDArray[Any]) -> StepInputs:
        step = Padded(*arrays)
        if change is not None:
            user, history, item = change(step.user_ids, step.history_ids, step.item_ids)
            step = step._replace(user_ids=user, history_ids=history, item_ids=item)
        return step_inputs(step)

    if isinstance(steps, Padded):
        samples = tf.data.Dataset.from_tensor_slices(tuple(steps))
    else:
        samples = tf.data.Dataset.from_generator(lambda: map(tuple, steps()), output_signature=tuple(_PADDED))
    if repeats:
        samples = samples.repeat()
    return iter(samples.map(prepared, num_parallel_calls=1).prefetch(2))


class Faster:
    """A step with and without XLA; keeps the way that was faster in the first steps.

    Args:
        step: Takes `StepInputs` and whether XLA compiles, and returns the log loss.
        sizes: The shape of the inputs.
    """

    def __init__(self, step: Callable[[StepInputs, bool], Any], sizes: Sizes | None = None) -> None:
        requests, history_ids, rows = sizes or Sizes()
        fixed = StepInputs(
            tf.TensorSpec([None], tf.int64),
            tf.TensorSpec([requests * USER_SLOTS + history_ids + rows * ITEM_SLOTS], tf.int32),
            tf.TensorSpec([history_ids], tf.int32),
            tf.TensorSpec([rows], tf.int32),
            tf.TensorSpec([rows, DENSE_COLUMNS], tf.float32),
            tf.TensorSpec([rows], tf.float32),
        )

        def variant(compiled: bool) -> Any:
            # AutoGraph would rewrite TFRA's code, which takes 15 s.
            return tf.function(
                lambda *arrays: step(StepInputs(*arrays), compiled), input_signature=list(fixed), autograph=False
            )

        self._ways = [variant(False), variant(True)]
        self._taken: list[list[float]] = [[], []]

    def __call__(self, samples: StepInputs) -> float:
        """Learn a step and return its log loss."""
        if len(self._ways) == 1:
            return float(self._ways[0](*samples))
        tried = sum(map(len, self._taken)) % 2
        began = time.perf_counter()
        loss = float(self._ways[tried](*samples))
        self._taken[tried].append(time.perf_counter() - began)
        if sum(map(len, self._taken)) == WARM_STEPS:
            # The first call of each includes tracing.
            medians = [statistics.median(taken[1:]) for taken in self._taken]
            kept = medians.index(min(medians))
            self._ways = [self._ways[kept]]
            millis = ", ".join(f"{median * 1e3:.1f} ms" for median in medians)
            print(f"a step without and with XLA: {millis}", file=sys.stderr, flush=True)
        return loss


class DeepFm:
    """The dense part: its weights, and Adam that trains them. `keras` is the package to use."""

    def __init__(self, keras: Any) -> None:
        keras.utils.set_random_seed(1)
        layer = keras.layers.Dense
        width = (USER_SLOTS + 1 + ITEM_SLOTS) * DIM + DENSE_COLUMNS
        # The first layer is the sum of a request's and an item's part, each initialized as one layer.
        bound = (6.0 / (width + HIDDEN[0])) ** 0.5
        whole = keras.initializers.RandomUniform(-bound, bound, seed=2)
        self._user = layer(HIDDEN[0] + 1, use_bias=False, kernel_initializer=whole)
        self._item = layer(HIDDEN[0] + 1, kernel_initializer=whole)
        self._second, self._out = layer(HIDDEN[1], activation="relu"), layer(1)
        self._pairs = layer(1, use_bias=False, kernel_initializer="ones")
        shapes = ((USER_SLOTS + 1) * DIM, ITEM_SLOTS * DIM + DENSE_COLUMNS, HIDDEN[0], HIDDEN[1], DIM)
        layers = (self._user, self._item, self._second, self._out, self._pairs)
        for dense, inputs in zip(layers, shapes, strict=True):
            dense.build((None, inputs))
        self.weights = [weight for dense in layers for weight in dense.trainable_variables]
        self.adam = keras.optimizers.Adam(_ADAM_RATE)
        self.adam.build(self.weights)

    def learn(self, step: StepInputs, rows: Any, *, compiled: bool) -> tuple[Any, Any]:
        """Learn from one step; part of the peer's graph.

        Args:
            step: The inputs.
            rows: (D, DIM) rows of its distinct ids.
            compiled: Whether XLA compiles it.

        Returns:
            The log loss before the step, and the gradients of the distinct rows.
        """
        loss, of_weights, of_rows = self.gradients(step, rows, compiled=compiled)
        self.adam.apply_gradients(list(zip(of_weights, self.weights, strict=True)))
        return loss, of_rows

    def gradients(self, step: StepInputs, rows: Any, *, compiled: bool) -> tuple[Any, Any, Any]:
        """Return the log loss of a step, and the gradients of the weights and of the distinct rows.

        The arguments are those of `learn`; part of the peer's graph.
        """
        items_count, history_ids = step.label.shape[0], step.history_request.shape[0]
        user_ids = step.at.shape[0] - history_ids - items_count * ITEM_SLOTS
        requests = user_ids // USER_SLOTS
        vectors = tf.gather(rows, step.at)
        user, history, item = tf.split(vectors, [user_ids, history_ids, items_count * ITEM_SLOTS])
        lengths = tf.math.bincount(step.history_request, minlength=requests, maxlength=requests)
        shares = tf.gather(1.0 / tf.cast(tf.maximum(lengths, 1), tf.float32), step.history_request)[:, None]
        pooled = tf.math.unsorted_segment_sum(history * shares, step.history_request, requests)
        users = tf.concat([tf.reshape(user, [requests, -1]), pooled], axis=1)
        items = tf.reshape(item, [items_count, -1])
        differentiated = self._differentiated
        if compiled:
            differentiated = tf.function(differentiated, jit_compile=True, autograph=False)
        loss, (of_users, of_items, *of_weights) = differentiated(
            users, items, step.dense, step.request_index, step.label
        )
        of_user, of_pooled = of_users[:, :-DIM], of_users[:, -DIM:]
        of_history = tf.gather(of_pooled, step.history_request) * shares
        parts = [tf.reshape(of_user, [-1, DIM]), of_history, tf.reshape(of_items, [-1, DIM])]
        of_rows = tf.math.unsorted_segment_sum(tf.concat(parts, axis=0), step.at, tf.size(step.distinct))
        return loss, of_weights, of_rows

    def logits(self, users: Any, items: Any, dense: Any, request_index: Any) -> Any:
        """Return (STEP_SAMPLES,) logits from rows by request (REQUESTS_PADDED, slots * DIM) and by item."""
        of_request = tf.concat([self._user(users), *_sums(users)], axis=1)
        of_item = tf.concat([self._item(tf.concat([items, dense], axis=1)), *_sums(items)], axis=1)
        both = of_item + tf.gather(of_request, request_index)
        linear, first, sums, squares = tf.split(both, [1, HIDDEN[0], DIM, DIM], axis=1)
        deep = self._out(self._second(tf.nn.relu(first)))
        return (linear + deep + self._pairs(0.5 * (tf.square(sums) - squares)))[:, 0]

    def _differentiated(self, users: Any, items: Any, dense: Any, request_index: Any, label: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch((users, items))
            logits = self.logits(users, items, dense, request_index)
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(label, logits))
        # Variables of Keras 3 wrap those of TensorFlow.
        weights = [weight if isinstance(weight, tf.Variable) else weight.value for weight in self.weights]
        return loss, tape.gradient(loss, [users, items, *weights])


def use_cores(order: Order) -> None:
    """Let TensorFlow use the cores of this process."""
    cores = len(os.sched_getaffinity(0))
    tf.config.threading.set_intra_op_parallelism_threads(cores)
    tf.config.threading.set_inter_op_parallelism_threads(cores)


def _sums(flat: Any) -> tuple[Any, Any]:
    """Return the sum of concatenated vectors, and the sum of their squares."""
    vectors = tf.reshape(flat, [flat.shape[0], -1, DIM])
    return tf.reduce_sum(vectors, axis=1), tf.reduce_sum(tf.square(vectors), axis=1)
