"""Halves of the trainer's steps: what each of two processes learns of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.peers.training_trial import Padded, Sizes, padded
from benchmarks.trainer_samples import STEP_SAMPLES, StepSamples

__all__ = ["HALF", "half_of", "read_halves", "write_halves"]

HALF = Sizes(requests=344, history_ids=1_792, rows=STEP_SAMPLES // 2)
_FILE = "half-{}.npz"


def half_of(step: StepSamples, half: int) -> StepSamples:
    """Return the first or the second half of a step's rows; a request in the middle is in both."""
    rows = slice(half * HALF.rows, (half + 1) * HALF.rows)
    requests = step.request_index[rows]
    begin, end = int(requests[0]), int(requests[-1]) + 1
    of_history = (step.history_request >= begin) & (step.history_request < end)
    return StepSamples(
        user_ids=step.user_ids[begin:end],
        history_ids=step.history_ids[of_history],
        history_request=step.history_request[of_history] - begin,
        item_ids=step.item_ids[rows],
        request_index=requests - begin,
        dense=step.dense[rows],
        label=step.label[rows],
        logit=step.logit[rows],
    )


def write_halves(steps: Sequence[StepSamples], folder: Path) -> None:
    """Write both halves of steps, each in a file, so that a process that starts reads its own at once."""
    for half in range(2):
        columns = padded([half_of(step, half) for step in steps], HALF)
        np.savez(folder / _FILE.format(half), **columns._asdict())


def read_halves(folder: Path, half: int, begin: int = 0) -> Padded:
    """Return the halves of all steps in a folder, from the step `begin` on; after the last comes the first."""
    with np.load(folder / _FILE.format(half)) as columns:
        return Padded(**{name: np.roll(columns[name], -begin, axis=0) for name in Padded._fields})
