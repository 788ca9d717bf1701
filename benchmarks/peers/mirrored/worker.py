"""A process of the peer MultiWorkerMirroredStrategy: it learns its half of each step, with the other process.

A process has all weights and rows. Gradients are summed over processes by the strategy: those of weights as one vector
with the loss, those of rows as the distinct rows of each process. Then each process applies the same sums. It starts
from the newest checkpoint, if there is one.
"""

from __future__ import annotations

import math
import os
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from benchmarks.keys import DIM
from benchmarks.peers.answer import Wrong
from benchmarks.peers.deepfm import ADAGRAD_EPSILON, ADAGRAD_RATE, ADAGRAD_START, DeepFm, Faster, StepInputs, fed
from benchmarks.peers.keras_static import first_rows, row_of_ids
from benchmarks.peers.mirrored.ring import ring_strategy
from benchmarks.workers.halves import HALF, read_halves
from benchmarks.workers.orders import Orders

__all__ = ["MirroredLearner"]

_RESUMED_STEPS = 8  # the queue of prepared steps fills while the peer waits for its turn
_CHECKPOINT_S = 1.0
_FAILED = 1


class MirroredLearner:
    """DeepFM on a table of fixed size, as `keras_static` has it, in one of the strategy's processes.

    Attributes:
        step: The number of steps that the model has learned.
    """

    def __init__(self, folder: Path, half: int, keys_count: int) -> None:
        self._strategy, self._keys_count = ring_strategy(), keys_count
        self._model = DeepFm(keras)
        self._table = tf.Variable(first_rows((keys_count, DIM)))
        self._accumulators = tf.Variable(tf.fill([keys_count, DIM], ADAGRAD_START))
        self._shapes = [tuple(weight.shape) for weight in self._model.weights]
        self._counter = tf.Variable(0, dtype=tf.int64)
        kept = [weight.value for weight in (*self._model.weights, *self._model.adam.variables)]
        saved = tf.train.Checkpoint(variables=[self._table, self._accumulators, self._counter, *kept])
        self._checkpoints = tf.train.CheckpointManager(saved, str(folder / "checkpoints"), max_to_keep=2)
        if newest := self._checkpoints.latest_checkpoint:
            saved.restore(newest).assert_existing_objects_matched()
        self.step = int(self._counter.numpy())
        self._feed = fed(read_halves(folder, half, self.step), row_of_ids(keys_count), repeats=True)
        self._learn = Faster(self._learned, HALF)

    def learn(self) -> float:
        """Learn a step, and return its log loss before that."""
        loss = self._learn(next(self._feed))
        self.step += 1
        if not math.isfinite(loss):
            message = f"the log loss of step {self.step} is not finite"
            raise Wrong(message)
        return loss

    def save(self) -> None:
        """Write a checkpoint."""
        self._counter.assign(self.step)
        self._checkpoints.save(self.step)

    def digest(self) -> int:
        """Return a hash of all weights and rows."""
        digest = zlib.crc32(self._table.numpy())
        for weight in self._model.weights:
            digest = zlib.crc32(weight.numpy(), digest)
        return digest

    def _learned(self, samples: StepInputs, compiled: bool) -> Any:
        weights, slices = self._strategy.run(
            self._gradients, args=(samples, tf.gather(self._table, samples.distinct), compiled)
        )
        lengths = [math.prod(shape) for shape in self._shapes]
        *parts, loss = tf.split(weights, [*lengths, 1])
        pairs = zip(parts, self._shapes, self._model.weights, strict=True)
        self._model.adam.apply_gradients([(tf.reshape(part, shape), weight) for part, shape, weight in pairs])
        distinct, at = tf.unique(slices.indices)
        gradients = tf.math.unsorted_segment_sum(slices.values, at, tf.size(distinct))
        squares = tf.gather(self._accumulators, distinct) + tf.square(gradients)
        moved = tf.gather(self._table, distinct) - ADAGRAD_RATE * gradients / (tf.sqrt(squares) + ADAGRAD_EPSILON)
        self._table.scatter_update(tf.IndexedSlices(moved, distinct))
        self._accumulators.scatter_update(tf.IndexedSlices(squares, distinct))
        return loss[0]

    def _gradients(self, samples: StepInputs, rows: Any, compiled: bool) -> Any:
        """Return the sums over processes of the gradients of weights, with the loss, and of rows."""
        loss, of_weights, of_rows = self._model.gradients(samples, rows, compiled=compiled)
        context = tf.distribute.get_replica_context()
        share = 1.0 / context.num_replicas_in_sync
        flat = tf.concat([*(tf.reshape(part, [-1]) for part in of_weights), [loss]], axis=0) * share
        shape = tf.constant([self._keys_count, DIM], tf.int64)
        slices = tf.IndexedSlices(of_rows * share, tf.identity(samples.distinct), shape)
        return context.all_reduce(tf.distribute.ReduceOp.SUM, [flat, slices])


def _window(learner: MirroredLearner, steps: int) -> dict[str, float]:
    for _ in range(_RESUMED_STEPS):
        learner.learn()
    began, cpu_s = time.perf_counter(), time.process_time()
    losses = [learner.learn() for _ in range(steps)]
    took_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu_s
    return {"took_s": took_s, "cpu_s": cpu_s, "loss": sum(losses) / steps, "digest": learner.digest()}


def _train(learner: MirroredLearner, orders: Orders, *, saves: bool) -> None:
    """Learn until a sum fails; answer when the first step is learned, after each checkpoint, and at the end."""
    try:
        learner.learn()
        orders.answer(step=learner.step, at_s=time.monotonic())
        saved_s = time.monotonic()
        while True:
            learner.learn()
            if saves and time.monotonic() > saved_s + _CHECKPOINT_S:
                learner.save()
                saved_s = time.monotonic()
                orders.answer(step=learner.step, at_s=saved_s)
    except tf.errors.OpError as error:
        orders.answer(step=learner.step, at_s=time.monotonic(), failed=True)
        print(f"a sum failed: {error.message[:200]}", file=sys.stderr, flush=True)
        os._exit(_FAILED)  # an ordinary exit waits for the other process


def _main() -> None:
    orders = Orders()
    folder, half, keys_count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    learner = MirroredLearner(folder, half, keys_count)
    orders.answer(step=learner.step)
    for verb, *words in orders:
        if verb == "train":
            _train(learner, orders, saves=half == 0)
        else:
            orders.answer(**_window(learner, int(words[0])))


if __name__ == "__main__":
    _main()
