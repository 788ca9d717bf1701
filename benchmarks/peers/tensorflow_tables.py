"""The peers in TensorFlow: the dense and the mutable hash table of `tf.lookup`."""

from __future__ import annotations

import itertools
import os
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from benchmarks.keys import DIM
from benchmarks.peers.answer import Order, answer
from benchmarks.peers.latency import latency
from benchmarks.peers.trial import fill

__all__ = ["TensorFlowTable", "use_cores"]

_numbers = itertools.count()


class TensorFlowTable:
    """A table of TensorFlow, used with eager operations on prepared tensors.

    Args:
        kind: `dense_hash_table` or `mutable_hash_table`.
    """

    def __init__(self, kind: str) -> None:
        name, nothing = f"table_{next(_numbers)}", [0.0] * DIM
        if kind == "dense_hash_table":
            self._table = tf.lookup.experimental.DenseHashTable(
                tf.int64, tf.float32, nothing, empty_key=-1, deleted_key=-2, name=name
            )
        else:
            self._table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, nothing, name=name)

    def ready(self, array: NDArray[Any]) -> Any:
        """Return a tensor."""
        return tf.constant(array)

    def insert(self, keys: Any, rows: Any) -> None:
        """Insert or replace rows."""
        self._table.insert(keys, rows)

    def lookup(self, keys: Any) -> Any:
        """Return rows as a tensor."""
        return self._table.lookup(keys)

    def array(self, rows: Any) -> NDArray[np.float32]:
        """Return the tensor's memory."""
        array: NDArray[np.float32] = rows.numpy()
        return array

    def count(self) -> int:
        """Return the number of keys."""
        return int(self._table.size())


def use_cores(order: Order) -> None:
    """Let TensorFlow use the cores of this process; only one core if a reader and a writer share them."""
    cores = 1 if "latency" in order.figures else len(os.sched_getaffinity(0))
    tf.config.threading.set_intra_op_parallelism_threads(cores)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def _fill(order: Order) -> dict[str, float]:
    return fill(lambda: TensorFlowTable(order.peer), order)


def _latency(order: Order) -> dict[str, float]:
    return latency(lambda: TensorFlowTable(order.peer), order)


if __name__ == "__main__":
    answer({"fill": _fill, "latency": _latency}, use_cores)
