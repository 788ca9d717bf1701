"""The trial of tables: filling a growing table, reading, training, and reading during writes.

The trial checks the rows that a table returns. It runs in the environments of peers, so it imports only numpy. Arrays
are converted to a table's types before the measurement.
"""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks.keys import BATCH_KEYS, DIM, Keys, uniform, zipf
from benchmarks.peers.answer import Order, Wrong

__all__ = [
    "Learner",
    "Memory",
    "Rule",
    "Table",
    "check_rows",
    "fill",
    "lookups",
    "train",
]

BATCHES = 30
_WARM_KEYS = 1_000


class Table(Protocol):
    """A map from keys to rows."""

    def ready(self, array: NDArray[Any]) -> Any:
        """Convert keys or rows for the table; not timed."""

    def insert(self, keys: Any, rows: Any) -> None:
        """Insert or replace the row of each key."""

    def lookup(self, keys: Any) -> Any:
        """Return the row of each key; zeros for a missing key."""

    def array(self, rows: Any) -> NDArray[np.float32]:
        """Convert the result of `lookup` to an array (keys, dim); not timed."""

    def count(self) -> int:
        """Return the number of keys."""


@dataclass(frozen=True)
class Rule:
    """The learning rule of a learner.

    Attributes:
        rate: The learning rate.
        start: Initial value of accumulators.
        epsilon: Added to the root of accumulators.
        rowwise: Whether a row has one accumulator, of the mean square of its gradient.
    """

    rate: float
    start: float
    epsilon: float
    rowwise: bool = False


class Learner(Protocol):
    """Rows that learn by Adagrad."""

    rule: Rule

    def ready(self, array: NDArray[Any]) -> Any:
        """Convert keys or gradients for the learner; not timed."""

    def step(self, keys: Any, gradients: Any) -> None:
        """Look up the row of each key, then apply all gradients; a repeated key has several."""

    def rows(self, keys: Any) -> NDArray[np.float32]:
        """Return the row of each key, (keys, dim)."""


class Memory:
    """The growth of resident memory since the construction."""

    def __init__(self) -> None:
        _trim()
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        self._before = _status_bytes("VmRSS")

    def grown_bytes(self) -> int:
        """Return the growth of resident memory."""
        _trim()
        return _status_bytes("VmRSS") - self._before

    def peak_bytes(self) -> int:
        """Return the growth of peak resident memory."""
        return _status_bytes("VmHWM") - self._before


def fill(make: Callable[[], Table], order: Order) -> dict[str, float]:
    """Measure a table that is filled from empty to `keys_count` keys and then read."""
    keys = Keys(order.seed)
    _warm(make(), keys)
    memory = Memory()
    table, taken = make(), []
    for begin in range(0, order.keys_count, BATCH_KEYS):
        batch = keys.between(begin, begin + BATCH_KEYS)
        ready, rows = table.ready(batch), table.ready(keys.rows(batch))
        began = time.perf_counter()
        table.insert(ready, rows)
        taken.append(time.perf_counter() - began)
    del batch, ready, rows
    figures = {
        "insert_per_s": order.keys_count / sum(taken),
        "insert_worst_ms": max(taken) * 1e3,
        "bytes_per_key": memory.grown_bytes() / order.keys_count,
        "bytes_per_key_peak": memory.peak_bytes() / order.keys_count,
    }
    if table.count() != order.keys_count:
        message = f"{order.keys_count} keys were inserted, and the table has {table.count()}"
        raise Wrong(message)
    absent = keys.between(order.keys_count, order.keys_count + _WARM_KEYS)
    check_rows(table.array(table.lookup(table.ready(absent))), np.zeros((_WARM_KEYS, DIM), np.float32))
    return figures | lookups(table, order, keys.of)


def lookups(table: Table, order: Order, name: Callable[[NDArray[np.int64]], NDArray[np.int64]]) -> dict[str, float]:
    """Measure lookups per second, medians of batches, by Zipf's law and uniform; every row is checked.

    The table must have the rows of all keys. `name` maps ids to the table's keys.
    """
    keys, figures = Keys(order.seed), {}
    for figure, draw in (("lookup_zipf", zipf), ("lookup_uniform", uniform)):
        batches = np.split(name(draw(order.keys_count, BATCHES * BATCH_KEYS, order.seed)), BATCHES)
        taken = []
        for number, batch in enumerate((batches[0], *batches)):
            ready = table.ready(batch)
            began = time.perf_counter()
            rows = table.lookup(ready)
            taken.append(time.perf_counter() - began)
            check_rows(table.array(rows), keys.rows(batch))
            if number == 0:
                taken.clear()  # the first is the warm-up
        figures[figure] = BATCH_KEYS / float(np.median(taken))
    return figures


def train(
    make: Callable[[], Learner], order: Order, name: Callable[[NDArray[np.int64]], NDArray[np.int64]], prefix: str
) -> dict[str, float]:
    """Measure a learner that learns all keys once, and is then trained by Zipf's law and uniformly.

    Args:
        make: Returns a new learner.
        order: The number of keys, and the seed.
        name: Maps ids to the learner's keys.
        prefix: Prefix of the figures' names: `adagrad` or `rowwise`.
    """
    learner = make()
    _check_learner(learner, order, name)
    gradients = np.random.default_rng(order.seed).standard_normal((BATCH_KEYS, DIM), np.float32)
    ready_gradients = learner.ready(gradients)
    del learner
    memory = Memory()
    learner = make()
    for begin in range(0, order.keys_count, BATCH_KEYS):
        learner.step(learner.ready(name(np.arange(begin, begin + BATCH_KEYS))), ready_gradients)
    figures = {
        f"bytes_per_key_{prefix}": memory.grown_bytes() / order.keys_count,
        f"bytes_per_key_{prefix}_peak": memory.peak_bytes() / order.keys_count,
    }
    for law, draw in (("zipf", zipf), ("uniform", uniform)):
        batches = np.split(name(draw(order.keys_count, BATCHES * BATCH_KEYS, order.seed)), BATCHES)
        taken = []
        for ready in [learner.ready(batch) for batch in (batches[0], *batches)]:
            began = time.perf_counter()
            learner.step(ready, ready_gradients)
            taken.append(time.perf_counter() - began)
        figures[f"{prefix}_{law}"] = BATCH_KEYS / float(np.median(taken[1:]))
    _check_learning(learner.rows(learner.ready(batches[-1])))
    return figures


def check_rows(rows: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    """Compare rows with the inserted ones, bit for bit.

    Raises:
        Wrong: They differ.
    """
    if rows.shape != expected.shape or not np.array_equal(rows, expected):
        differ = int((rows != expected).any(axis=1).sum()) if rows.shape == expected.shape else len(expected)
        message = f"{differ} of {len(expected)} rows differ from the inserted ones"
        raise Wrong(message)


def _warm(table: Table, keys: Keys) -> None:
    """Run the code once, so that its pages do not count as the table's memory."""
    batch = keys.between(0, _WARM_KEYS)
    table.insert(table.ready(batch), table.ready(keys.rows(batch)))
    check_rows(table.array(table.lookup(table.ready(batch))), keys.rows(batch))


def _check_learner(
    learner: Learner, order: Order, name: Callable[[NDArray[np.int64]], NDArray[np.int64]], steps: int = 3
) -> None:
    """Compare a few steps with repeated keys with Adagrad computed here."""
    rng, rule = np.random.default_rng(order.seed), learner.rule
    ids = zipf(order.keys_count, _WARM_KEYS, order.seed)
    distinct, place = np.unique(name(ids), return_inverse=True)
    expected = learner.rows(learner.ready(distinct)).astype(np.float64)
    accumulated = np.full((len(distinct), 1 if rule.rowwise else DIM), rule.start)
    for _ in range(steps):
        gradients = rng.standard_normal((_WARM_KEYS, DIM)).astype(np.float32)
        learner.step(learner.ready(name(ids)), learner.ready(gradients))
        summed = np.zeros((len(distinct), DIM))
        np.add.at(summed, place, gradients.astype(np.float64))
        squares = summed**2
        accumulated += squares.mean(axis=1, keepdims=True) if rule.rowwise else squares
        expected -= rule.rate * summed / (np.sqrt(accumulated) + rule.epsilon)
    apart = float(np.abs(learner.rows(learner.ready(distinct)) - expected).max())
    if not apart < 1e-4 * rule.rate * steps + 1e-5:
        message = f"after {steps} steps of Adagrad rows differ from the expected ones by {apart:g}"
        raise Wrong(message)


def _check_learning(rows: NDArray[np.float32]) -> None:
    if not np.isfinite(rows).all() or float(np.ptp(rows)) == 0.0:
        message = "trained rows are not finite, or all equal"
        raise Wrong(message)


def _trim() -> None:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def _status_bytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))
