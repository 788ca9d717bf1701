"""The feed of peers that learn from a topic: steps are those of the samples, and rows that came before are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.peers.streamed import SeenRows, streamed
from benchmarks.peers.training_trial import padded
from benchmarks.trainer_samples import Workload

__all__: list[str] = []


def test_steps_of_the_topic_are_those_of_arrays_in_memory(tmp_path: Path) -> None:
    steps = Workload(20_000, 3).steps(4)
    whole = padded(steps)
    found = list(streamed(tmp_path, 20_000, steps))
    assert len(found) == len(steps)
    for number, step in enumerate(found):
        for column, expected in zip(step, whole, strict=True):
            assert column.dtype == expected.dtype
            assert np.array_equal(column, expected[number])


def test_a_row_is_new_once() -> None:
    random, seen, before = np.random.default_rng(1), SeenRows(), np.zeros(0, np.int64)
    for _ in range(40):
        rows = np.unique(random.integers(0, 5_000, 100))
        random.shuffle(rows)
        assert np.array_equal(seen.add(rows), ~np.isin(rows, before))
        before = np.union1d(before, rows)
