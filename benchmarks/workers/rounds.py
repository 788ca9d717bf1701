"""Rounds of one process: it gives a vector, waits for the sum over all processes, and begins again."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.answer import Wrong
from benchmarks.workers.orders import Orders

__all__ = ["PROCESSES", "VECTOR", "Sums", "answer_rounds", "vector_of"]

PROCESSES = 2
VECTOR = 117_593  # the weights of DeepFM in the trainer's benchmark
Float32s: TypeAlias = NDArray[np.float32]


class Sums(Protocol):
    """Sums over processes."""

    def ready(self, values: Float32s) -> Any:
        """Convert a vector; not timed."""

    def sum(self, given: Any) -> Float32s:
        """Give this process's vector of the next round, and return the sum over all."""


def vector_of(index: int) -> Float32s:
    """Return the vector of a process."""
    return np.random.default_rng((index, 1)).standard_normal(VECTOR, np.float32)


def answer_rounds(make: Callable[[int], Sums]) -> None:
    """Do as many rounds as each order says, and answer with the times of each and the processor's time of all.

    `make` gets the number of the process. The first round is not timed: the other process may begin later.
    """
    orders, index = Orders(), int(sys.argv[1])
    sums = make(index)
    given = sums.ready(vector_of(index))
    orders.answer()
    for (words,) in orders:
        sums.sum(given)
        taken = np.zeros(int(words) + 1)
        cpu_s, taken[0] = time.process_time(), time.perf_counter()
        for number in range(1, len(taken)):
            found = sums.sum(given)
            taken[number] = time.perf_counter()
        cpu_s = time.process_time() - cpu_s
        _check(found)
        orders.answer(took_ms=[round(took * 1e3, 4) for took in np.diff(taken)], cpu_ms=cpu_s * 1e3)


def _check(found: Float32s) -> None:
    expected = vector_of(0)
    for index in range(1, PROCESSES):
        expected = expected + vector_of(index)
    if not np.array_equal(found, expected):
        message = "the sum is not that of the vectors"
        raise Wrong(message)
