"""What tables take of the machine: memory as they say, no lock on Python, any number of threads."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamlearn.features import PackColumn, PackSide, TableSpec
from streamlearn.samples import FeatureColumns, SlotColumns
from streamlearn.table import Adagrad, Expiry, Packing, Scatter, TableOptions, TableSet
from streamlearn.table.changes import encode_rows
from streamlearn.table.table import Table
from tests.table.oracle import initial_rows

ROOT = Path(__file__).parent.parent.parent
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

# In a process of its own, where nothing else takes or gives back memory between two looks.
_MEASURE = f"""
import numpy as np
from streamlearn.features import TableSpec
from streamlearn.table import Adagrad, TableOptions, TableSet

def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * {PAGE_BYTES}

def step(table, begin, count):
    for at in range(begin, begin + count, 20_000):
        table.push(np.arange(at, at + 20_000, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15), gradients, now_ms=0)

gradients = np.ones((20_000, 16), np.float32)
warm = TableSet([TableOptions(TableSpec("main", 16, 0.05), rows_max=100_000, optimizer=Adagrad())])
step(warm["main"], 0, 20_000)
del warm
before = resident_bytes()
tables = TableSet([TableOptions(TableSpec("main", 16, 0.05), rows_max=8_000_000, optimizer=Adagrad())])
table = tables["main"]
step(table, 0, 1_000_000)
print(table.stats().keys, table.stats().images, table.stats().bytes, resident_bytes() - before)
tables.seal(1)
tables.commit(1)
step(table, 500_000, 600_000)
print(table.stats().keys, table.stats().images, table.stats().bytes, resident_bytes() - before)
"""


def test_a_table_takes_the_memory_it_says() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE], cwd=ROOT, capture_output=True, text=True, check=True, timeout=600
    )
    fresh, versioned = ([int(word) for word in line.split()] for line in done.stdout.splitlines())
    for (keys, images, said_bytes, resident_bytes), expected in (
        (fresh, (1_000_000, 0)),
        (versioned, (1_100_000, 600_000)),
    ):
        assert (keys, images) == expected
        assert said_bytes == pytest.approx(resident_bytes, rel=0.05)
    assert versioned[2] > fresh[2] + 600_000 * 2 * 64


def test_what_the_parts_of_memory_are_add_up() -> None:
    tables = TableSet([TableOptions(TableSpec("main", 16, 0.05), rows_max=100_000, optimizer=Adagrad())])
    keys = np.arange(50_000, dtype=np.uint64)
    tables["main"].push(keys, np.ones((50_000, 16), np.float32), now_ms=0)
    tables.seal(1)
    tables.commit(1)
    tables["main"].push(keys[:1_000], np.ones((1_000, 16), np.float32), now_ms=0)
    tables["main"].remove(keys[1_000:1_500])
    stats = tables["main"].stats()
    assert (stats.keys, stats.gone, stats.images, stats.rows) == (49_500, 500, 1_500, 51_500)
    columns = stats.embedding_bytes + stats.state_bytes + stats.use_bytes
    lists = stats.images_bytes + stats.touched_bytes + stats.sketch_bytes
    assert stats.bytes == columns + stats.index_bytes + lists
    assert stats.embedding_bytes >= 51_500 * 64
    assert stats.state_bytes >= 51_500 * 64
    assert stats.touched_bytes >= 1_500 * 8
    assert 0 < stats.load == 50_000 / stats.slots < 1


def test_memory_stays_where_it_is_while_keys_and_versions_come_and_go() -> None:
    tables = TableSet([TableOptions(TableSpec("main", 16, 0.05), rows_max=200_000, optimizer=Adagrad(), tick_ms=1)])
    table, gradients, sizes = tables["main"], np.ones((2_000, 16), np.float32), []
    for step in range(1, 81):
        table.push(np.arange(1_000 * step, 1_000 * step + 2_000, dtype=np.uint64), gradients, now_ms=step)
        table.expire(Expiry(idle_ms=5), now_ms=step, budget_keys=1 << 40)
        tables.seal(step)
        tables.commit(step)
        tables.activate(step)
        if step > 2:
            tables.retire(step - 2)
        if step >= 20:
            sizes.append((table.stats().bytes, table.stats().rows + table.stats().free_rows))
    first, last = np.max(sizes[:20], axis=0), np.max(sizes[-20:], axis=0)
    assert (last <= first * 1.1).all()
    assert tables.retained == [79, 80]


def _lets_go(call: Callable[[], object]) -> bool:
    """Whether another thread gets on while a call is running."""
    ready, asked, seen = threading.Event(), threading.Event(), []

    def get_on() -> None:
        ready.set()
        asked.wait()
        seen.append(True)

    beside = threading.Thread(target=get_on)
    # Nobody is asked to let go of the interpreter for so long, so that only who lets go by himself does; set before
    # anyone begins to wait for it.
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(60)
    try:
        beside.start()
        ready.wait()
        asked.set()
        call()
        found = bool(seen)
        beside.join()
    finally:
        sys.setswitchinterval(interval_s)
    return found


def _large() -> tuple[TableSet, Table, Any, Any]:
    tables = TableSet([TableOptions(TableSpec("main", 16, 0.05), rows_max=2_000_000, optimizer=Adagrad())])
    rng = np.random.default_rng(0)
    keys, rows = rng.integers(0, 1 << 63, 400_000, np.uint64), rng.standard_normal((400_000, 16), np.float32)
    tables["main"].put(keys, rows)
    tables.seal(1)
    tables.commit(1)
    return tables, tables["main"], keys, rows


def test_long_calls_let_other_threads_get_on() -> None:
    tables, table, keys, rows = _large()
    side = PackSide((PackColumn("key", "main", "sum", 0, 16),), 16, (), 0, 0)
    packing, columns = Packing(side, tables), FeatureColumns({"key": SlotColumns(keys)}, {})
    scatter, out = Scatter(tables, keys_max=1 << 27), np.empty_like(rows)
    calls: dict[str, Callable[[], object]] = {
        "lookup": lambda: table.lookup(keys, out=out),
        "push": lambda: table.push(keys, rows, now_ms=0),
        "put": lambda: table.put(keys, rows),
        "changed": lambda: next(tables.changed(None, 1, parts=1_024)),
        "expire": lambda: table.expire(Expiry(idle_ms=1 << 38), now_ms=0, budget_keys=400_000),
        "encode_rows": lambda: encode_rows(rows, "int8"),
        "pack": lambda: packing.flat(columns, len(keys)),
        "scatter": lambda: scatter.flat(packing, columns, len(keys), rows),
    }
    for name, call in calls.items():
        call()  # what is done the first time alone, such as an import, may let go too
        # On a busy machine the other thread may wake too late, and once in a hundred times there is an accident.
        tries = (_lets_go(call) for _ in range(60))
        assert len(list(itertools.islice(filter(None, tries), 5))) == 5, name


def test_a_call_that_keeps_the_interpreter_would_be_noticed() -> None:
    numbers = list(range(200_000))
    assert not any(_lets_go(lambda: sum(numbers)) for _ in range(5))


def test_many_threads_at_once_do_what_each_would_do_alone() -> None:
    options = TableOptions(TableSpec("main", 16, 0.05), rows_max=200_000, optimizer=Adagrad())
    tables, alone = TableSet([options]), TableSet([options])
    shares = [np.arange(writer, 8_000, 4, dtype=np.uint64) for writer in range(4)]
    failed: list[BaseException] = []
    ends = threading.Event()

    def write(target: TableSet, writer: int) -> None:
        for step in range(1, 16):
            gradients = np.full((2_000, 16), step * (writer + 1), np.float32)
            target["main"].push(shares[writer], gradients, now_ms=step, threads=1 + writer % 2)

    def read() -> None:
        # All numbers of a gradient are one, so that of the way a row has gone they are, too.
        keys = np.arange(8_000, dtype=np.uint64)
        begun = initial_rows(keys, 16, 0.05, 0)
        while not ends.is_set():
            gone = tables["main"].lookup(keys) - begun
            assert np.abs(gone - gone[:, :1]).max() < 1e-5

    def noting(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    readers = [threading.Thread(target=noting, args=(read,)) for _ in range(2)]
    writers = [threading.Thread(target=noting, args=(lambda at=at: write(tables, at),)) for at in range(4)]
    for thread in (*readers, *writers):
        thread.start()
    version = 0
    while any(writer.is_alive() for writer in writers):
        version += 1
        tables.seal(version)
        tables.commit(version)
        assert sum(len(one) for one in tables.changed(version - 1 or None, version)) <= 8_000
        if version > 2:
            tables.retire(version - 2)
    for thread in writers:
        thread.join()
    ends.set()
    for thread in readers:
        thread.join()
    assert not failed
    for writer in range(4):
        write(alone, writer)
    keys = np.arange(8_000, dtype=np.uint64)
    assert tables["main"].lookup(keys).tobytes() == alone["main"].lookup(keys).tobytes()
    assert tables.retiring == 0
