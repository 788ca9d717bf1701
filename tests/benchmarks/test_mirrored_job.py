"""The peer of two processes: each learns its half of a step, and they go on after a death."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from benchmarks.peers.answer import Wrong
from benchmarks.peers.training_trial import padded
from benchmarks.trainer_samples import STEP_SAMPLES, Workload
from benchmarks.workers.halves import HALF, half_of, read_halves, write_halves
from benchmarks.workers.mwms import MirroredJob

__all__: list[str] = []


def test_halves_have_the_rows_of_a_step_with_their_requests() -> None:
    (step,) = Workload(20_000, 3).steps(1)
    halves = [half_of(step, half) for half in range(2)]
    for name in ("item_ids", "dense", "label", "logit"):
        assert np.array_equal(np.concatenate([getattr(half, name) for half in halves]), getattr(step, name))
    users = np.concatenate([half.user_ids[half.request_index] for half in halves])
    assert np.array_equal(users, step.user_ids[step.request_index])
    for row in (0, HALF.rows - 1, HALF.rows, STEP_SAMPLES - 1):
        half, within = halves[row // HALF.rows], row % HALF.rows
        own = half.history_ids[half.history_request == half.request_index[within]]
        assert np.array_equal(own, step.history_ids[step.history_request == step.request_index[row]])


def test_halves_are_read_from_any_step_on(tmp_path: Path) -> None:
    steps = Workload(20_000, 3).steps(3)
    write_halves(steps, tmp_path)
    for begin in (0, 2, 5):
        found = read_halves(tmp_path, 1, begin)
        assert found.label.shape == (3, HALF.rows)
        assert np.array_equal(found.label[0], steps[begin % 3].label[HALF.rows :])


def test_a_step_that_does_not_fit_is_refused() -> None:
    with pytest.raises(Wrong, match="do not fit 344"):
        padded(Workload(20_000, 3).steps(1), HALF)


def test_two_processes_learn_one_model_and_go_on_from_a_checkpoint(tmp_path: Path) -> None:
    with closing(MirroredJob(tmp_path / "job", keys_count=20_000, steps=3)) as job:
        assert job.window(2) > 0
        assert job.recovery_s() > job.noticed_s > 0
        assert job.lost_steps > 0
