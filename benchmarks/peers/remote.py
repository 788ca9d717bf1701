"""The trial of parameter servers: rows pulled from another process and gradients pushed to it, with a core each.

It runs in the environments of peers, so it imports only numpy. The server has the first core of this process, and this
process the second.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks.keys import BATCH_KEYS, DIM, uniform, zipf
from benchmarks.peers.answer import Order, Turn, Wrong

__all__ = ["RATE", "START", "Remote", "cores_apart", "remote"]

RATE = 0.05
START = 0.1  # initial value of Adagrad's accumulators
_BATCHES = 15
_WINDOW_BATCHES = 5
_SMALL_KEYS = 1_000
_SMALL_READS = 500
_CHECK_KEYS = 1_000


class Remote(Protocol):
    """Rows in another process, which learn by Adagrad."""

    def ready(self, array: NDArray[Any]) -> Any:
        """Convert ids or gradients for the client; not timed."""

    def pull(self, ids: Any) -> NDArray[np.float32]:
        """Return the row of each id, in memory of this process."""

    def push(self, ids: Any, gradients: Any) -> None:
        """Apply gradients; return when they are applied."""


def cores_apart() -> tuple[int, int]:
    """Return the cores of server and client, and move this process to the second."""
    cores = sorted(os.sched_getaffinity(0))
    server, client = cores[0], cores[1]
    os.sched_setaffinity(0, {client})
    return server, client


def remote(server: Remote, order: Order, turn: Turn) -> dict[str, float]:
    """Measure pulled and pushed ids per second and the latency of small pulls: medians of windows.

    The server must hold every id below `keys_count`.
    """
    _check(server)
    gradients = np.random.default_rng(order.seed).standard_normal((BATCH_KEYS, DIM), np.float32)
    ready_gradients, batches = server.ready(gradients), {}
    for law, draw in (("zipf", zipf), ("uniform", uniform)):
        drawn = np.split(draw(order.keys_count, _BATCHES * BATCH_KEYS, order.seed), _BATCHES)
        batches[law] = cycle([server.ready(ids) for ids in drawn])
    small = np.split(zipf(order.keys_count, _SMALL_READS * _SMALL_KEYS, order.seed), _SMALL_READS)
    reads = cycle([server.ready(ids) for ids in small])

    def window() -> dict[str, float]:
        figures = {}
        for law, ready in batches.items():
            figures[f"pull_{law}"] = BATCH_KEYS / _median(server.pull, ready)
            figures[f"push_{law}"] = BATCH_KEYS / _median(lambda ids: server.push(ids, ready_gradients), ready)
        taken = [_seconds(server.pull, ids) for ids in islice(reads, _SMALL_READS)]
        figures["pull_1000_p50_ms"] = float(np.percentile(taken, 50)) * 1e3
        figures["pull_1000_p99_ms"] = float(np.percentile(taken, 99)) * 1e3
        return figures

    windows = [window()]  # the first one warms up, and does not count
    for number in range(order.windows):
        turn(windows[-1] if number else {})
        windows.append(window())
    turn(windows[-1])
    return {name: float(np.median([one[name] for one in windows[1:]])) for name in windows[0]}


def _median(work: Callable[[Any], Any], ready: Iterator[Any]) -> float:
    work(next(ready))
    return float(np.median([_seconds(work, batch) for batch in islice(ready, _WINDOW_BATCHES)]))


def _seconds(work: Callable[[Any], Any], given: Any) -> float:
    began = time.perf_counter()
    work(given)
    return time.perf_counter() - began


def _check(server: Remote) -> None:
    """Compare one push of distinct ids with Adagrad computed here."""
    ids = server.ready(np.arange(_CHECK_KEYS, dtype=np.int64))
    gradients = np.random.default_rng(0).standard_normal((_CHECK_KEYS, DIM), np.float32)
    before = server.pull(ids).copy()
    server.push(ids, server.ready(gradients))
    expected = before - RATE * gradients / np.sqrt(START + gradients**2)
    apart = float(np.abs(server.pull(ids) - expected).max())
    if not apart < 1e-4:
        message = f"after one push rows differ from the expected ones by {apart:g}"
        raise Wrong(message)
