"""What a version costs a node: blocks with changed rows, searches beside that, and memory."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable

import numpy as np

from benchmarks.result import Result
from benchmarks.retrieval.vectors import Vectors, blocks_of, encoded, none
from streamlearn.native import native

__all__ = ["measure", "median_s"]

Note = Callable[[str], None]
_ITEMS, _QUICK_ITEMS, _CHANGED_SHARE = 1_000_000, 20_000, 10
_REPEATS, _USERS, _K, _PHASES = 7, 32, 500, 4


def measure(note: Note, result: Result, *, quick: bool) -> None:
    """Measure blocks whose rows change, a tenth at a time; and searches, quiet and beside such changes."""
    items, repeats = (_QUICK_ITEMS, 3) if quick else (_ITEMS, _REPEATS)
    note("a tenth of all rows changes")
    vectors = Vectors.made(items, 1.5)
    blocks, rng = blocks_of(vectors.items), np.random.default_rng(2)
    keys = rng.choice(items, items // _CHANGED_SHARE, replace=False).astype(np.uint64)
    rows = encoded(vectors.items[rng.integers(0, items, len(keys))])
    result.figures["apply_1e5_ms"] = 1e3 * median_s(lambda: blocks.apply(keys, *rows, none()), repeats)
    everything = encoded(vectors.items[::-1].copy())
    all_keys = np.arange(items, dtype=np.uint64)
    result.figures["apply_1e6_ms"] = 1e3 * median_s(lambda: blocks.apply(all_keys, *everything, none()), 3)
    quiet, beside = list[float](), list[float]()
    stop = threading.Event()

    def search(taken_s: list[float], seconds: float) -> None:
        until_s = time.perf_counter() + seconds
        while time.perf_counter() < until_s:
            begin_s = time.thread_time()
            blocks.search(vectors.users[:_USERS], _K)
            taken_s.append(time.thread_time() - begin_s)

    def change() -> None:
        while not stop.is_set():
            blocks.apply(keys, *rows, none())

    for _ in range(_PHASES):
        search(quiet, 0.2 if quick else 4.0)
        stop.clear()
        changing = threading.Thread(target=change)
        changing.start()
        try:
            search(beside, 0.2 if quick else 4.0)
        finally:
            stop.set()
            changing.join()
    for name, taken_s in (("quiet", quiet), ("beside", beside)):
        result.figures[f"search_32_p50_{name}_ms"] = 1e3 * float(np.median(taken_s))
        result.figures[f"search_32_p99_{name}_ms"] = 1e3 * float(np.quantile(taken_s, 0.99))
    result.figures["apply_p99_to_quiet"] = float(np.quantile(beside, 0.99) / np.quantile(quiet, 0.99))
    ids = native.RawIds(False).apply(all_keys, all_keys.astype(np.int64), none())
    result.figures["bytes_per_item"] = (blocks.bytes + ids.bytes) / items
    result.figures["bytes_per_item_block"] = blocks.bytes / items


def median_s(work: Callable[[], object], repeats: int, clock: Callable[[], float] = time.thread_time) -> float:
    """Return the median time of the processor that a call takes."""
    taken_s = []
    for _ in range(repeats):
        begin_s = clock()
        work()
        taken_s.append(clock() - begin_s)
    return statistics.median(taken_s)
