"""The trial of a table: an honest one has its figures, and one that gives back anything else has none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import benchmarks.peers.latency
import benchmarks.peers.trial
from benchmarks.keys import DIM
from benchmarks.peers.answer import Order, Wrong
from benchmarks.peers.latency import latency
from benchmarks.peers.trial import Rule, fill, train

__all__: list[str] = []

_ORDER = Order("fake", 2_000, ("fill",), latency_s=0.02)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes at which a table of Python objects will do."""
    for module in (benchmarks.peers.trial, benchmarks.peers.latency):
        monkeypatch.setattr(module, "BATCH_KEYS", 500)
    monkeypatch.setattr(benchmarks.peers.trial, "BATCHES", 3)
    monkeypatch.setattr(benchmarks.peers.trial, "_WARM_KEYS", 100)
    for name, size in (("READ_KEYS", 50), ("READ_BATCHES", 60), ("WRITE_KEYS", 20), ("_CHECK_EVERY", 1)):
        monkeypatch.setattr(benchmarks.peers.latency, name, size)


class _Table:
    """A dict of rows."""

    def __init__(self) -> None:
        self._rows: dict[int, NDArray[np.float32]] = {}

    def ready(self, array: NDArray[Any]) -> Any:
        return array

    def insert(self, keys: Any, rows: Any) -> None:
        self._rows.update(zip(keys.tolist(), rows, strict=True))

    def lookup(self, keys: Any) -> Any:
        return np.array([self._rows.get(key, np.zeros(DIM, np.float32)) for key in keys.tolist()])

    def array(self, found: Any) -> NDArray[np.float32]:
        return np.asarray(found, np.float32)

    def count(self) -> int:
        return len(self._rows)


class _Forgetful(_Table):
    """Loses a key of each insert."""

    def insert(self, keys: Any, rows: Any) -> None:
        super().insert(keys[1:], rows[1:])


class _Muddled(_Table):
    """Gives a key the row of another, now and then."""

    def lookup(self, keys: Any) -> Any:
        rows = super().lookup(keys)
        rows[[3, 7]] = rows[[7, 3]]
        return rows


class _Inventive(_Table):
    """Has a row for what was never stored."""

    def lookup(self, keys: Any) -> Any:
        return np.array([self._rows.get(key, np.ones(DIM, np.float32)) for key in keys.tolist()])


class _Miscounting(_Table):
    def count(self) -> int:
        return len(self._rows) - 1


class _Learner:
    """Adagrad by the book, unless it steps twice as far or forgets all but a key's last gradient."""

    def __init__(self, *, rowwise: bool = False, doubles: bool = False, loses: bool = False) -> None:
        self.rule = Rule(0.1, 0.2, 1e-6, rowwise)
        self._doubles, self._loses = doubles, loses
        self._state: dict[int, tuple[NDArray[np.float64], NDArray[np.float64]]] = {}

    def ready(self, array: NDArray[Any]) -> Any:
        return array

    def _of(self, key: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        wide = 1 if self.rule.rowwise else DIM
        return self._state.setdefault(key, (np.full(DIM, 0.5), np.full(wide, self.rule.start)))

    def step(self, keys: Any, gradients: Any) -> None:
        summed: dict[int, NDArray[np.float64]] = {}
        for key, gradient in zip(keys.tolist(), gradients.astype(np.float64), strict=True):
            kept = key in summed and not self._loses
            summed[key] = summed[key] + gradient if kept else gradient
        for key, gradient in summed.items():
            row, accumulated = self._of(key)
            accumulated += (gradient**2).mean() if self.rule.rowwise else gradient**2
            row -= self.rule.rate * gradient * (2 if self._doubles else 1) / (np.sqrt(accumulated) + self.rule.epsilon)

    def rows(self, keys: Any) -> NDArray[np.float32]:
        return np.array([self._of(key)[0] for key in keys.tolist()], np.float32)


def _ids(ids: NDArray[np.int64]) -> NDArray[np.int64]:
    return ids


def test_an_honest_table_has_its_figures() -> None:
    found = fill(_Table, _ORDER)
    rates = {"insert_per_s", "insert_worst_ms", "lookup_zipf", "lookup_uniform"}
    assert set(found) == rates | {"bytes_per_key", "bytes_per_key_peak"}
    assert all(found[name] > 0 for name in rates)
    assert found["bytes_per_key_peak"] >= found["bytes_per_key"]


@pytest.mark.parametrize("make", [_Forgetful, _Muddled, _Inventive, _Miscounting])
def test_a_table_that_gives_back_something_else_has_none(make: type[_Table]) -> None:
    with pytest.raises(Wrong):
        fill(make, _ORDER)


@pytest.mark.parametrize("rowwise", [False, True])
def test_a_learner_by_the_book_has_its_figures(rowwise: bool) -> None:
    found = train(lambda: _Learner(rowwise=rowwise), _ORDER, _ids, "adagrad")
    assert set(found) == {
        "bytes_per_key_adagrad", "bytes_per_key_adagrad_peak", "adagrad_zipf", "adagrad_uniform",
    }  # fmt: skip


@pytest.mark.parametrize("fault", ["doubles", "loses"])
def test_a_learner_with_a_rule_of_its_own_has_none(fault: str) -> None:
    with pytest.raises(Wrong, match="differ from the expected ones by"):
        train(lambda: _Learner(**{fault: True}), _ORDER, _ids, "adagrad")


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a reader and a writer need a core each")
def test_a_reader_is_timed_alone_and_beside_both_writers() -> None:
    found = latency(_Table, _ORDER)
    for figure in ("quiet", "update", "insert"):
        assert (
            0
            < found[f"reader_{figure}_p99_ms"]
            <= found[f"reader_{figure}_p999_ms"]
            <= found[f"reader_{figure}_max_ms"]
        )
    for figure in ("update", "insert"):
        assert found[f"writer_{figure}_per_s"] > 0
        assert found[f"reader_{figure}_torn_rows"] == 0


def test_torn_rows_are_counted_and_numbers_nobody_wrote_are_refused() -> None:
    rows = np.full((50, DIM), 3.0, np.float32)
    rows[4, 2] = 5.0
    assert benchmarks.peers.latency._torn(rows) == 1
    rows[4, 2] = 0.0
    with pytest.raises(Wrong, match="were never written"):
        benchmarks.peers.latency._torn(rows)


def test_only_the_answer_reaches_stdout() -> None:
    script = (
        "import os, sys; from benchmarks.peers.answer import answer\n"
        "def fill(order):\n"
        "    os.write(1, b'native noise'); print('noise'); return {'keys': float(order.keys_count)}\n"
        "answer({'fill': fill}); os.write(1, b'late noise'); print('late')"
    )
    root = Path(__file__).parent.parent.parent
    done = subprocess.run(
        [sys.executable, "-c", script, _ORDER.text()], capture_output=True, text=True, check=True, cwd=root
    )
    assert done.stdout == '{"keys": 2000.0}\n'
    assert "native noise" in done.stderr
    assert "late" in done.stderr
