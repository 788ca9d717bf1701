"""Our table in the trial of its peers, and the figures that only a versioned table has.

Like a peer, it runs in its own process, so that resident memory is the table's.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.keys import BATCH_KEYS, DIM, Keys, every_bit, uniform, zipf, zipf_ranks
from benchmarks.peers.answer import Order, Wrong, answer
from benchmarks.peers.latency import latency
from benchmarks.peers.trial import Memory, Rule, check_rows, fill, train
from streamlearn.features import Dense, FeatureSpec, Slot, TableSpec
from streamlearn.samples import FeatureColumns, SlotColumns
from streamlearn.table import Adagrad, Changes, Packing, Scatter, TableOptions, TableSet
from streamlearn.table.options import Optimizer, RowwiseAdagrad
from streamlearn.table.pin import At

__all__ = ["Learner", "Rows"]

Int64s = NDArray[np.int64]

_RULE = Rule(rate=0.05, start=0.1, epsilon=1e-7)
_ROWWISE = Rule(rate=0.05, start=0.1, epsilon=1e-7, rowwise=True)
_SPARE_ROWS = 80_000_000  # reserves only address space
_REPEATS = 7
_PACK_SLOTS = 20
_PACK_EXAMPLES = 4096
_STAGE_KEYS_MAX = 1_000_000
_VERSIONS = 8


def _threads() -> int:
    return len(os.sched_getaffinity(0))


def _tables(order: Order, optimizer: Optimizer | None = None, initial_range: float = 0.0) -> TableSet:
    rows_max = order.keys_count + _SPARE_ROWS
    spec = TableSpec("main", DIM, initial_range)
    return TableSet([TableOptions(spec, rows_max=rows_max, optimizer=optimizer)])


class Rows:
    """Our table as a map from keys to rows."""

    def __init__(self, order: Order) -> None:
        self.tables = _tables(order)
        self.table = self.tables["main"]
        self._threads = _threads()
        self._out = np.empty((BATCH_KEYS, DIM), np.float32)

    def ready(self, array: NDArray[Any]) -> Any:
        """Return keys as 64-bit keys; rows unchanged."""
        return every_bit(array) if array.dtype == np.int64 else array

    def insert(self, keys: Any, rows: Any) -> None:
        """Store rows."""
        self.table.put(keys, rows, threads=self._threads)

    def lookup(self, keys: Any) -> Any:
        """Look rows up into one buffer, as serving does."""
        return self.table.lookup(keys, out=self._out[: len(keys)], threads=self._threads)

    def array(self, rows: Any) -> NDArray[np.float32]:
        """Return the buffer."""
        array: NDArray[np.float32] = rows
        return array

    def count(self) -> int:
        """Return the number of keys."""
        return self.table.stats().keys


class Learner:
    """Our table as rows that learn, with a lookup and a push per step."""

    def __init__(self, order: Order, rule: Rule) -> None:
        self.rule = rule
        kind = RowwiseAdagrad if rule.rowwise else Adagrad
        optimizer = kind(rate=rule.rate, initial_accumulator=rule.start, epsilon=rule.epsilon)
        self.table = _tables(order, optimizer, 0.25)["main"]
        self._threads = _threads()
        self._out = np.empty((BATCH_KEYS, DIM), np.float32)

    def ready(self, array: NDArray[Any]) -> Any:
        """Return keys as 64-bit keys; gradients unchanged."""
        return every_bit(array) if array.dtype == np.int64 else array

    def step(self, keys: Any, gradients: Any) -> None:
        """Look rows up, then push gradients."""
        self.table.lookup(keys, out=self._out[: len(keys)], threads=self._threads)
        self.table.push(keys, gradients, now_ms=0, threads=self._threads)

    def rows(self, keys: Any) -> NDArray[np.float32]:
        """Return the row of each key."""
        return self.table.lookup(keys)


def _fill(order: Order) -> dict[str, float]:
    return fill(lambda: Rows(order), order) | {"gather64_per_s": _gather(order)}


def _gather(order: Order) -> float:
    """Measure random reads of 64 bytes in as much memory as the rows take: about the limit for any table."""
    rows = np.ones((order.keys_count, DIM), np.float32)
    out = np.empty((BATCH_KEYS, DIM), np.float32)
    places = np.split(uniform(order.keys_count, 10 * BATCH_KEYS, order.seed), 10)
    return BATCH_KEYS / _median(lambda at: np.take(rows, places[at % 10], axis=0, out=out, mode="clip"))


def _train(order: Order) -> dict[str, float]:
    return train(lambda: Learner(order, _RULE), order, Keys(order.seed).of, "adagrad")


def _rowwise(order: Order) -> dict[str, float]:
    return train(lambda: Learner(order, _ROWWISE), order, Keys(order.seed).of, "rowwise")


def _latency(order: Order) -> dict[str, float]:
    figures = latency(lambda: Rows(order), order)
    worst = {
        f"reader_{figure}_ms": max(figures[f"reader_{writer}_{figure}_ms"] for writer in ("update", "insert"))
        for figure in ("p99", "p999", "max")
    }
    return figures | worst


def _median(work: Callable[[int], Any], repeats: int = 10) -> float:
    """Return the median seconds of a call."""
    work(0)
    taken = []
    for number in range(repeats):
        began = time.perf_counter()
        work(number)
        taken.append(time.perf_counter() - began)
    return float(np.median(taken))


def _named(order: Order, ranks: Int64s) -> NDArray[np.uint64]:
    """Return the keys of ranks of Zipf's law."""
    return every_bit(Keys(order.seed).of(ranks * _stride_of(order.keys_count) % order.keys_count))


def _stride_of(count: int) -> int:
    """Return the stride with which `zipf` maps ranks to ids: the id of rank 1."""
    ranks, places = zipf_ranks(count, 1_000, 1), zipf(count, 1_000, 1)
    second = np.flatnonzero(ranks == 1)
    return int(places[second[0]])


def _base(order: Order) -> Iterator[Changes]:
    keys = Keys(order.seed)
    for begin in range(0, order.keys_count, BATCH_KEYS):
        batch = keys.between(begin, begin + BATCH_KEYS)
        yield Changes("main", every_bit(batch), keys.rows(batch))


def _versions(order: Order) -> dict[str, float]:
    """Measure the versions of a trainer whose most frequent tenth of keys changes."""
    optimizer = Adagrad(rate=0.05)
    tables = _tables(order, optimizer)
    table, threads = tables["main"], _threads()
    hot = _named(order, np.arange(order.keys_count // 10))
    ones = np.ones((BATCH_KEYS, DIM), np.float32)
    keys = Keys(order.seed)
    for begin in range(0, order.keys_count, BATCH_KEYS):
        batch = every_bit(keys.between(begin, begin + BATCH_KEYS))
        table.push(batch, ones, now_ms=0, threads=threads)
    tables.seal(1)
    tables.commit(1)
    memory = Memory()
    began = time.perf_counter()
    _push_all(table, hot, ones, threads)
    figures = {"first_touch_per_s": len(hot) / (time.perf_counter() - began)}
    figures["bytes_per_image"] = memory.grown_bytes() / len(hot)
    seals, exports = [], []
    for version in range(2, 2 + _REPEATS):
        began = time.perf_counter()
        tables.seal(version)
        seals.append(time.perf_counter() - began)
        began = time.perf_counter()
        rows = sum(len(changes) for changes in tables.changed(version - 1, version))
        exports.append(time.perf_counter() - began)
        if rows != len(hot):
            message = f"{len(hot)} rows changed and {rows} were exported"
            raise Wrong(message)
        tables.commit(version)
        tables.retire(version - 1, threads=threads)
        _push_all(table, hot, ones, threads)
    figures |= {"seal_us": max(seals) * 1e6, _tenth("changed", order): float(np.median(exports)) * 1e3}
    began = time.perf_counter()
    tables.discard(threads=threads)
    return figures | {_tenth("discard", order): (time.perf_counter() - began) * 1e3}


def _tenth(action: str, order: Order) -> str:
    """Return the name of a figure about a tenth of all keys."""
    few, all_keys = order.keys_count // 10, order.keys_count
    return f"{action}_{few:.0e}_of_{all_keys:.0e}_ms".replace("e+0", "e")


def _push_all(table: Any, keys: NDArray[np.uint64], ones: NDArray[np.float32], threads: int) -> None:
    for begin in range(0, len(keys), BATCH_KEYS):
        batch = keys[begin : begin + BATCH_KEYS]
        table.push(batch, ones[: len(batch)], now_ms=0, threads=threads)


def _images(order: Order) -> dict[str, float]:
    """Measure a replica that retains versions: staging, activation, and reads of tables with images."""
    tables, threads = _tables(order), _threads()
    table, keys = tables["main"], Keys(order.seed)
    tables.stage(1, None, _base(order), threads=threads)
    tables.activate(1)
    batches = np.split(every_bit(keys.of(zipf(order.keys_count, 30 * BATCH_KEYS, order.seed))), 30)
    out = np.empty((BATCH_KEYS, DIM), np.float32)

    def read(at: At) -> float:
        return _median(lambda number: table.lookup(batches[number % 30], at=at, out=out), 90)

    settled = [read("active")]
    hot = _named(order, np.arange(order.keys_count // 10))
    rows = np.ones((len(hot), DIM), np.float32)
    shares = np.array_split(np.random.default_rng(order.seed).permutation(len(hot)), _VERSIONS)
    changes = [Changes("main", hot[share], rows[share]) for share in shares]
    oldest = tables.pin(1)

    def stage(parent: int) -> float:
        """Stage versions one after the other; return the rows per second."""
        began = time.perf_counter()
        for version, change in enumerate(changes, start=parent + 1):
            tables.stage(version, version - 1, [change], threads=threads)
        return len(hot) / (time.perf_counter() - began)

    staged = stage(1)
    activate = []
    for number in range(200):
        began = time.perf_counter()
        tables.activate(1 + number % (_VERSIONS + 1))
        activate.append(time.perf_counter() - began)
    tables.activate(_VERSIONS + 1)
    newest_s, oldest_s = read("active"), read(oldest)
    check_rows(table.lookup(hot[:1000], at="active"), rows[:1000])
    oldest.close()
    began = time.perf_counter()
    for version in range(1, _VERSIONS + 1):
        tables.retire(version, threads=threads)
    retired_ms = (time.perf_counter() - began) * 1e3
    settled.append(read("active"))
    if table.stats().images:
        message = f"{table.stats().images} images remain of retired versions"
        raise Wrong(message)
    return {
        "stage_first_rows_per_s": staged,
        # A replica normally stages into freed rows of images.
        "stage_rows_per_s": stage(_VERSIONS + 1),
        "activate_us": float(np.percentile(activate, 99)) * 1e6,
        "read_cost_images_newest": newest_s / float(np.mean(settled)),
        "read_cost_images_oldest": oldest_s / float(np.mean(settled)),
        _tenth("retire", order): retired_ms,
    }


def _stager(order: Order) -> dict[str, float]:
    """Measure reads of 1,000 ids of the active version while versions are staged and activated."""
    tables, keys = _tables(order), Keys(order.seed)
    table = tables["main"]
    tables.stage(1, None, _base(order))
    tables.activate(1)
    count = min(_STAGE_KEYS_MAX, order.keys_count // 4)
    rows, ended = np.ones((count, DIM), np.float32), threading.Event()

    def stage() -> None:
        version = 1
        while not ended.is_set():
            began = time.perf_counter()
            begin = (version * count) % (order.keys_count - count)
            changes = Changes("main", every_bit(keys.between(begin, begin + count)), rows)
            tables.stage(version + 1, version, [changes])
            tables.activate(version + 1)
            tables.retire(version)
            version += 1
            ended.wait(max(0.0, 1.0 - (time.perf_counter() - began)))

    reads = np.split(every_bit(keys.of(zipf(order.keys_count, 500 * 1_000, order.seed))), 500)
    out, taken = np.empty((1_000, DIM), np.float32), []
    stager = threading.Thread(target=stage, daemon=True)
    stager.start()
    until, number = time.perf_counter() + order.latency_s, 0
    while (began := time.perf_counter()) < until:
        table.lookup(reads[number % 500], at="active", out=out)
        taken.append(time.perf_counter() - began)
        number += 1
    ended.set()
    stager.join(60)
    return {
        "reader_stage_p99_ms": float(np.percentile(taken, 99)) * 1e3,
        "reader_stage_p999_ms": float(np.percentile(taken, 99.9)) * 1e3,
        "reader_stage_max_ms": max(taken) * 1e3,
    }


def _pack(order: Order) -> dict[str, float]:
    """Measure packing of twenty slots of one key each into a matrix, and scattering of its gradient."""
    slots = tuple(Slot(f"slot_{number}", "item", dim=DIM) for number in range(_PACK_SLOTS))
    spec = FeatureSpec(slots=slots, dense=(Dense("price", "item"),), item_id="slot_0")
    tables = _tables(order)
    tables.stage(1, None, _base(order), threads=_threads())
    tables.activate(1)
    packing, count = Packing(spec.pack.item, tables), _PACK_SLOTS * _PACK_EXAMPLES
    drawn = every_bit(Keys(order.seed).of(zipf(order.keys_count, 8 * count, order.seed))).reshape(8, _PACK_SLOTS, -1)
    price = np.ones((_PACK_EXAMPLES, 1), np.float32)
    features = [
        FeatureColumns({slot.name: SlotColumns(keys[at]) for at, slot in enumerate(slots)}, {"price": price})
        for keys in drawn
    ]
    out = np.empty((_PACK_EXAMPLES, packing.side.flat_width), np.float32)
    scatter = Scatter(tables, keys_max=count)

    def back(number: int) -> None:
        scatter.clear()
        scatter.flat(packing, features[number % 8], _PACK_EXAMPLES, out)

    packed = _median(lambda number: packing.flat(features[number % 8], _PACK_EXAMPLES, at="active", out=out), 80)
    check_rows(out[:, :DIM].copy(), tables["main"].lookup(drawn[79 % 8, 0]))
    return {"pack_rows_per_s": count / packed, "scatter_rows_per_s": count / _median(back, 80)}


if __name__ == "__main__":
    answer(
        {
            "fill": _fill,
            "train": _train,
            "rowwise": _rowwise,
            "latency": _latency,
            "versions": _versions,
            "images": _images,
            "stager": _stager,
            "pack": _pack,
        }
    )
