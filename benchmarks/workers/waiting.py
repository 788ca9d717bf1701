"""A leader or worker whose dense step is a wait, as with an accelerator: it takes time and no processor.

`python -m benchmarks.workers.waiting train|work ...` are the commands of streamlearn, with this learner. The leader
writes when each step was complete.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from streamlearn.trainer.learner import Learner, Packed, SliceGradients
from streamlearn.trainer.workers.leader import Leader

__all__ = ["TIMES", "WAIT_S", "WORKERS"]

WAIT_S = 0.04
WORKERS, TIMES = "BENCH_WORKERS", "BENCH_TIMES"
"""Environment variables: how many workers a leader waits for, and the file for the times of its steps."""
_JOIN_S_MAX = 180.0


def _gradients(self: Learner, packed: Packed, number: int, step_rows: int, weights: Any) -> SliceGradients:
    time.sleep(WAIT_S)
    logits = np.zeros((packed.rows, packed.targets.shape[1]), np.float32)
    of_rows = tuple(np.zeros_like(side) for side in packed.sides)
    return SliceGradients(logits, 0.0, np.zeros(len(weights), np.float32), of_rows, is_finite=True)


def main() -> None:
    """Run a command of streamlearn."""
    learn, times = Leader.learn, list[float]()

    def timed(self: Leader, offered: Any) -> Any:
        deadline_s = time.monotonic() + _JOIN_S_MAX
        while not times and len(self.workers) < int(os.environ[WORKERS]) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        learned = learn(self, offered)
        times.append(time.monotonic())
        return learned

    Learner.gradients, Leader.learn = _gradients, timed  # type: ignore[method-assign]
    from streamlearn.cli.main import command

    try:
        command()
    finally:
        if TIMES in os.environ:
            Path(os.environ[TIMES]).write_text(json.dumps(times))


if __name__ == "__main__":
    sys.argv[0] = "streamlearn"
    main()
