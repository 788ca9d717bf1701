"""The lower bound: an array of rows in PyTorch and FBGEMM, where the id is the row number, without hashing or growth.

It is not a table, but shows the cost without keys. FBGEMM runs as its wheels install it. PyTorch's wheel has two copies
of cpuinfo, and FBGEMM reads the one that is not initialized, so it finds no AVX2 and row-wise Adagrad uses a scalar
kernel. With AVX2 detected it was half as fast on Intel's family 6, where mixing SSE and AVX is slow.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import numpy as np
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)
from numpy.typing import NDArray

from benchmarks.keys import BATCH_KEYS, DIM, Keys
from benchmarks.peers.answer import Order, answer
from benchmarks.peers.trial import Memory, Rule, lookups, train

__all__ = ["StaticLearner", "StaticTable"]


class StaticTable:
    """An array read by `torch.nn.functional.embedding`."""

    def __init__(self, keys_count: int) -> None:
        self._rows = torch.zeros(keys_count, DIM)

    def ready(self, array: NDArray[Any]) -> Any:
        """Return a tensor."""
        return torch.from_numpy(array)

    def insert(self, keys: Any, rows: Any) -> None:
        """Write rows."""
        self._rows[keys] = rows

    def lookup(self, keys: Any) -> Any:
        """Return rows as a tensor."""
        return torch.nn.functional.embedding(keys, self._rows)

    def array(self, rows: Any) -> NDArray[np.float32]:
        """Return the tensor's memory."""
        array: NDArray[np.float32] = rows.numpy()
        return array

    def count(self) -> int:
        """Return the number of rows."""
        return len(self._rows)


class StaticLearner:
    """FBGEMM's table-batched embedding on the CPU, with the optimizer fused into its backward pass.

    Args:
        keys_count: Number of rows.
        rowwise: Use row-wise Adagrad instead of Adagrad.
    """

    def __init__(self, keys_count: int, *, rowwise: bool) -> None:
        self.rule = Rule(rate=0.05, start=0.0, epsilon=1e-8, rowwise=rowwise)
        self._embedding = SplitTableBatchedEmbeddingBagsCodegen(
            [(keys_count, DIM, EmbeddingLocation.HOST, ComputeDevice.CPU)],
            optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD if rowwise else EmbOptimType.EXACT_ADAGRAD,
            learning_rate=self.rule.rate,
            eps=self.rule.epsilon,
        )
        self._embedding.init_embedding_weights_uniform(-0.1, 0.1)
        self._offsets = torch.arange(BATCH_KEYS + 1)

    def ready(self, array: NDArray[Any]) -> Any:
        """Return a tensor."""
        return torch.from_numpy(array)

    def step(self, keys: Any, gradients: Any) -> None:
        """Run forward and backward; the optimizer is part of backward."""
        self._embedding(keys, self._offsets[: len(keys) + 1]).backward(gradients)

    def rows(self, keys: Any) -> NDArray[np.float32]:
        """Return the rows of ids."""
        rows: NDArray[np.float32] = self._embedding.split_embedding_weights()[0][keys].detach().numpy()
        return rows


def _use_cores(order: Order) -> None:
    torch.set_num_threads(len(os.sched_getaffinity(0)))


def _unchanged(ids: NDArray[np.int64]) -> NDArray[np.int64]:
    return ids


def _fill(order: Order) -> dict[str, float]:
    """Write rows, untimed, and measure reads."""
    keys, memory = Keys(order.seed), Memory()
    table = StaticTable(order.keys_count)
    for begin in range(0, order.keys_count, BATCH_KEYS):
        ids = np.arange(begin, begin + BATCH_KEYS)
        table.insert(table.ready(ids), table.ready(keys.rows(ids)))
    figures = {"bytes_per_key": memory.grown_bytes() / order.keys_count}
    return figures | lookups(table, order, _unchanged)


def _train(order: Order) -> dict[str, float]:
    figures: dict[str, float] = {}
    for prefix, rowwise in (("adagrad", False), ("rowwise", True)):
        make = functools.partial(StaticLearner, order.keys_count, rowwise=rowwise)
        figures |= train(make, order, _unchanged, prefix)
    return figures


if __name__ == "__main__":
    answer({"fill": _fill, "train": _train}, _use_cores)
