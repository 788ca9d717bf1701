"""Latency of small reads, one after another: first alone, then while another thread writes.

It runs in the environments of peers, so it imports only numpy. The process has two cores, one for each thread. All
columns of a written row have the same number, so a row with two numbers is torn.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from itertools import cycle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.keys import BATCH_KEYS, DIM, Keys, zipf
from benchmarks.peers.answer import Order, Wrong
from benchmarks.peers.trial import Table

__all__ = ["latency"]

READ_KEYS = 1_000
WRITE_KEYS = 10_000
READ_BATCHES = 500
_NUMBERS = 8  # columns of rows have a number from 1 to this
_CHECK_EVERY = 64
_WRITES_PER_S_MAX = 500  # prepared batches of new keys per second; a faster writer starts over
_JOIN_S_MAX = 120.0


def latency(make: Callable[[], Table], order: Order) -> dict[str, float]:
    """Measure reads of 1,000 ids: alone, during updates, and during inserts that make the table grow."""
    keys, table = Keys(order.seed), make()
    ones = table.ready(np.ones((BATCH_KEYS, DIM), np.float32))
    for begin in range(0, order.keys_count, BATCH_KEYS):
        table.insert(table.ready(keys.between(begin, begin + BATCH_KEYS)), ones)
    drawn = keys.of(zipf(order.keys_count, READ_BATCHES * READ_KEYS, order.seed))
    reads = [table.ready(batch) for batch in np.split(drawn, READ_BATCHES)]
    assert len(os.sched_getaffinity(0)) >= 2, "a reader and a writer need a core each"
    figures: dict[str, float] = {}
    for figure, batches in (("quiet", []), ("update", _updates(order, keys)), ("insert", _inserts(order, keys))):
        ready_batches = [table.ready(batch) for batch in batches]
        writer = _Writer(table, ready_batches)
        taken_ms, torn = _read(table, reads, order.latency_s, writer)
        figures |= {
            f"reader_{figure}_p99_ms": float(np.percentile(taken_ms, 99)),
            f"reader_{figure}_p999_ms": float(np.percentile(taken_ms, 99.9)),
            f"reader_{figure}_max_ms": float(taken_ms.max()),
        }
        if ready_batches:
            figures[f"writer_{figure}_per_s"] = writer.per_s
            figures[f"reader_{figure}_torn_rows"] = float(torn)
    return figures


class _Writer:
    """A thread that writes at full speed inside its context."""

    def __init__(self, table: Table, ready: list[Any]) -> None:
        self.per_s = 0.0
        self._table, self._ready = table, ready
        self._rows = [table.ready(np.full((WRITE_KEYS, DIM), number, np.float32)) for number in range(1, _NUMBERS + 1)]
        self._begun, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)

    def __enter__(self) -> None:
        if self._ready:
            self._thread.start()
            self._begun.wait(_JOIN_S_MAX)

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        if self._ready:
            self._thread.join(_JOIN_S_MAX)
            if self._thread.is_alive() or not self.per_s:
                message = "the writer failed, or did not end"
                raise Wrong(message)

    def _write(self) -> None:
        written, began = 0, time.perf_counter()
        try:
            for keys, rows in zip(cycle(self._ready), cycle(self._rows), strict=False):
                self._table.insert(keys, rows)
                written += WRITE_KEYS
                self._begun.set()
                if self._ended.is_set():
                    break
            self.per_s = written / (time.perf_counter() - began)
        finally:
            self._begun.set()


def _read(table: Table, reads: list[Any], seconds: float, writer: _Writer) -> tuple[NDArray[np.float64], int]:
    """Return the milliseconds of each read, and the number of torn rows among those checked."""
    taken: list[float] = []
    torn = 0
    for ready in reads[:50]:
        table.lookup(ready)
    with writer:
        until = time.perf_counter() + seconds
        for number, ready in enumerate(cycle(reads)):
            began = time.perf_counter()
            if taken and began > until:  # one read at least
                break
            rows = table.lookup(ready)
            taken.append(time.perf_counter() - began)
            if number % _CHECK_EVERY == 0:
                torn += _torn(table.array(rows))
    return np.array(taken) * 1e3, torn


def _torn(rows: NDArray[np.float32]) -> int:
    if rows.shape != (READ_KEYS, DIM) or not np.isin(rows, np.arange(1, _NUMBERS + 1)).all():
        message = "a read returned numbers that were never written"
        raise Wrong(message)
    return int((rows != rows[:, :1]).any(axis=1).sum())


def _updates(order: Order, keys: Keys) -> list[NDArray[np.int64]]:
    batches = 100
    return np.split(keys.of(zipf(order.keys_count, batches * WRITE_KEYS, order.seed + 1)), batches)


def _inserts(order: Order, keys: Keys) -> list[NDArray[np.int64]]:
    batches = max(1, round(order.latency_s * _WRITES_PER_S_MAX))
    return np.split(keys.between(order.keys_count, order.keys_count + batches * WRITE_KEYS), batches)
