"""What workers cost and how they scale: rates and processor time of whole jobs in their steady state."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.trainer_samples import STEP_SAMPLES
from benchmarks.workers.job import made, running
from streamlearn.errors import ServiceError

__all__ = ["Steady", "cost", "scaling"]

Note = Callable[[str], None]
_WAIT_S, _WAITERS, _WAIT_SLICE_ROWS = 0.04, 8, 512
_RUN_S_MAX = 300.0


class Steady(NamedTuple):
    """A job after its first quarter."""

    step_s: float  # the mean time of a step
    cpu_us_per_sample: float  # of all processes together


def scaling(place: Path, note: Note, *, quick: bool) -> dict[str, float]:
    """Return how a job of 40 ms waits as dense steps scales; `efficiency_8` is 1 if 8 workers are 8 times one."""
    folder, steps = place / "waits", {1: 12 if quick else 40, _WAITERS: 60 if quick else 240}
    settings: dict[str, dict[str, object]] = {
        "workers": {"slices": _WAITERS, "leader_learns": False},
        "trainer": {"order": "arrival", "staleness_steps": 1, "step_rows": _WAITERS * _WAIT_SLICE_ROWS},
    }
    made(folder, max(steps.values()) + 4, settings)
    found = {}
    for workers, count in steps.items():
        found[workers] = _steady(folder, workers, count, own=0, wait_s=_WAIT_S)
        note(f"{workers} workers whose dense step is a wait: {found[workers].step_s * 1e3:.1f} ms a step")
    return {
        "waiting_step_1_ms": found[1].step_s * 1e3,
        "waiting_step_8_ms": found[_WAITERS].step_s * 1e3,
        "efficiency_8": found[1].step_s / _WAITERS / found[_WAITERS].step_s,
    }


def cost(place: Path, note: Note, *, quick: bool) -> dict[str, float]:
    """Return what a second worker costs: the processor time of a sample by turns with one and two, same slices."""
    folder, steps, rounds = place / "cost", 100 if quick else 300, 1 if quick else 3
    made(folder, steps + 4, {"workers": {"slices": 2}, "trainer": {"order": "arrival", "staleness_steps": 1}})
    found: dict[int, list[Steady]] = {1: [], 2: []}
    for _ in range(rounds):
        for workers, of_workers in found.items():
            of_workers.append(_steady(folder, workers, steps, own=1))
            note(f"{workers} of two slices a step: {of_workers[-1].cpu_us_per_sample:.2f} us of processor a sample")
    ratios = [two.cpu_us_per_sample / one.cpu_us_per_sample for one, two in zip(found[1], found[2], strict=True)]
    return {
        "cpu_w1_us_per_sample": statistics.median(one.cpu_us_per_sample for one in found[1]),
        "cpu_w2_us_per_sample": statistics.median(two.cpu_us_per_sample for two in found[2]),
        "cpu_w2_to_w1": statistics.median(ratios),
    }


def _steady(folder: Path, workers: int, steps: int, *, own: int, wait_s: float = 0.0) -> Steady:
    """Run a job with a number of learning processes; `own` is 1 if the leader is one of them, else 0."""
    shutil.rmtree(folder / "store", ignore_errors=True)
    variables: dict[str, Any] = {"BENCH_WAIT_S": wait_s} if wait_s else {}
    with running(folder, 1) as job:
        for _ in range(workers - own):
            job.work(**variables)
        leader = job.train(BENCH_WORKERS=workers, **variables)
        deadline_s, seen = time.monotonic() + _RUN_S_MAX, list[tuple[int, float, float]]()
        while leader.runs and time.monotonic() < deadline_s:
            learned = job.steps()
            seen.append((len(learned), learned[-1][0] if learned else 0.0, job.cpu_s()))
            if len(learned) >= steps:
                break
            time.sleep(0.05)
        if seen[-1][0] < steps:
            message = f"{seen[-1][0]} of {steps} steps were learned: {leader.log[-2_000:]}"
            raise ServiceError(message, help="look at what the leader wrote")
        begin, end = next(entry for entry in seen if entry[0] >= steps // 4), seen[-1]
    count = end[0] - begin[0]
    return Steady((end[1] - begin[1]) / count, (end[2] - begin[2]) * 1e6 / (count * STEP_SAMPLES))
