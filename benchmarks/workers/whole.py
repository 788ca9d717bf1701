"""Workers: their equality under kills, their cost, how they scale, and how soon they learn again; beside TensorFlow's.

Two cores cannot show that two workers are faster than one, which uses both. They show what a worker costs, that dense
steps of an accelerator overlap, and that nothing is lost.
"""

from __future__ import annotations

import signal
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.result import Result
from benchmarks.trainer_samples import STEP_SAMPLES
from benchmarks.workers import kills, rates, reduce
from benchmarks.workers.job import Job, Process, made, running, waited
from benchmarks.workers.mwms import MirroredJob

__all__ = ["run"]

Note = Callable[[str], None]
_WINDOWS, _QUICK_WINDOWS = 9, 3
_WINDOW_S, _WARM_STEPS = 2.0, 10
_STEPS = 4_000


def run(quick: bool, note: Note) -> Result:
    """Measure all parts."""
    result = Result("workers")
    with tempfile.TemporaryDirectory(prefix="streamlearn-bench-") as folder:
        place = Path(folder)
        for part in (kills.bits, rates.cost, rates.scaling, kills.recovery):
            result.figures |= part(place, note, quick=quick)
        figures, ratios = reduce.measure(quick, note)
        result.figures |= figures
        result.ratios |= ratios
        figures, ratios = _beside_mirrored(place, note, result.figures["recovery_worker_s"], quick=quick)
        result.figures |= figures
        result.ratios |= ratios
    return result


def _beside_mirrored(
    place: Path, note: Note, recovery_s: float, *, quick: bool
) -> tuple[dict[str, float], dict[str, float]]:
    """Measure a job of two workers and TensorFlow's of two processes by turns; the one that waits is stopped."""
    folder, windows = place / "turns", _QUICK_WINDOWS if quick else _WINDOWS
    settings: dict[str, dict[str, object]] = {
        "workers": {"slices": 2, "worker_wait_s_max": 3_600.0},
        "trainer": {"order": "arrival", "staleness_steps": 1},
    }
    made(folder, _STEPS // (4 if quick else 1), settings)
    mirrored = MirroredJob(place / "mirrored")
    pairs, theirs_s = list[tuple[float, float]](), list[float]()
    try:
        mirrored.window()
        with running(folder, 1) as job:
            processes = [job.work(), job.train(BENCH_WORKERS=2)]
            _learned(job, processes[1], _WARM_STEPS)
            for _ in range(windows):
                _signal(job, processes, signal.SIGSTOP)
                theirs = mirrored.window()
                _signal(job, processes, signal.SIGCONT)
                _learned(job, processes[1], _WARM_STEPS)
                pairs.append((_rate(job, processes[1]), theirs))
                note(f"two workers: {pairs[-1][0]:,.0f} samples/s, TensorFlow's {theirs:,.0f}")
        theirs_s += [mirrored.recovery_s() for _ in range(1 if quick else 3)]
    finally:
        mirrored.close()
    figures = {
        "samples_per_s": statistics.median(ours for ours, _ in pairs),
        "mwms.samples_per_s": statistics.median(theirs for _, theirs in pairs),
        "mwms.recovery_s": statistics.median(theirs_s),
    }
    ratios = {
        "ratio_mwms": statistics.median(ours / theirs for ours, theirs in pairs),
        "ratio_mwms_recovery": figures["mwms.recovery_s"] / recovery_s,
    }
    return figures, ratios


def _signal(job: Job, processes: list[Process], number: int) -> None:
    for process in (*processes, *job.shards):
        process.process.send_signal(number)


def _learned(job: Job, leader: Process, steps: int) -> None:
    end = len(job.steps()) + steps
    waited(lambda: "learned" if len(job.steps()) >= end else "", leader)


def _rate(job: Job, leader: Process) -> float:
    """Return the samples per second of a window."""
    begin = job.steps()[-1]
    time.sleep(_WINDOW_S)
    _learned(job, leader, 1)
    end = job.steps()[-1]
    return (end[1] - begin[1]) * STEP_SAMPLES / (end[0] - begin[0])
