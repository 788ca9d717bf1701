"""Executables: the cost of scoring by shape, of starting, and of compiling while requests are scored."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable

from benchmarks.result import Result
from streamlearn.errors import ServiceError

__all__ = ["run"]

Note = Callable[[str], None]
_RATIOS = ("two_lanes_to_one", "unseen_first_to_later", "beside_to_quiet_p99")
_PROCESS_S_MAX = 600


def run(quick: bool, note: Note) -> Result:
    """Measure everything in a process with an empty cache, and then starts with the cache that it filled."""
    result = Result("executables")
    with tempfile.TemporaryDirectory() as folder:
        note("DIN, history of 50 items, dim 16: compile and measure a ladder")
        cold = _process(folder, "all")
        starts = []
        for _ in range(1 if quick else 3):
            note("start with a full cache")
            starts.append(_process(folder, "start"))
    warm = sorted(starts, key=lambda start: start["start_cpu_s"])[len(starts) // 2]
    result.figures = {name: value for name, value in cold.items() if name not in _RATIOS}
    result.figures |= {f"again_{name}": value for name, value in warm.items()}
    result.ratios = {name: cold[name] for name in _RATIOS}
    result.ratios["start_again_to_first_cpu"] = warm["start_cpu_s"] / cold["start_cpu_s"]
    return result


def _process(folder: str, part: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.ours.streamlearn_executables", folder, part]
    bare = {name: value for name, value in os.environ.items() if name not in ("TF_XLA_FLAGS", "XLA_FLAGS")}
    done = subprocess.run(command, env=bare, capture_output=True, text=True, timeout=_PROCESS_S_MAX)
    if done.returncode:
        message = f"the scoring process ended with status {done.returncode}: {done.stderr[-2_000:]}"
        raise ServiceError(message)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures
