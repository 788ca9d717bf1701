"""TensorFlow's sums over processes: the ring that MultiWorkerMirroredStrategy uses on CPUs, over gRPC.

The strategy connects the processes. The sum is the operation that it calls itself, but outside of a graph, which is
faster by a fifth.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from benchmarks.workers.rounds import PROCESSES, answer_rounds

__all__ = ["RingSums", "ring_strategy"]

_GROUP = 1 << 20  # above those of the strategy


class RingSums:
    """One process of the ring."""

    def __init__(self, index: int) -> None:
        self._strategy = ring_strategy()

    def ready(self, values: NDArray[np.float32]) -> Any:
        """Return a tensor."""
        return tf.constant(values)

    def sum(self, given: Any) -> NDArray[np.float32]:
        """Give this process's tensor of the next round, and wait for the sum.

        One key serves all rounds, and no time limit is set: another key takes memory for good, and a limit two threads
        that sleep until it is over.
        """
        total: NDArray[np.float32] = tf.raw_ops.CollectiveReduceV2(
            input=given,
            group_size=PROCESSES,
            group_key=_GROUP,
            instance_key=1,
            ordering_token=[],
            merge_op="Add",
            final_op="Id",
            communication_hint="RING",
        ).numpy()
        return total


def ring_strategy() -> Any:
    """Return the strategy of the processes that `TF_CONFIG` names, with the ring as the way to reduce."""
    ring = tf.distribute.experimental.CommunicationImplementation.RING
    options = tf.distribute.experimental.CommunicationOptions(implementation=ring)
    return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)


if __name__ == "__main__":
    answer_rounds(RingSums)
