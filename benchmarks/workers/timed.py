"""A leader or worker of a job that is measured: `python -m benchmarks.workers.timed train|work ...`.

They are the commands of streamlearn. A leader waits for its workers before the first step, and writes when each step
was complete. A dense step may be a wait, as with an accelerator: it takes time and no processor. Versions may be cut
after numbers of steps, so that those of two jobs can be compared.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from streamlearn.publisher import Publisher
from streamlearn.trainer.learner import Learner, Packed, SliceGradients
from streamlearn.trainer.workers.leader import Leader
from streamlearn.trainer.workers.leader_link import LeaderLink

__all__ = ["CUT_STEPS", "TIMES", "WAIT_S", "WORKERS"]

WORKERS, TIMES, WAIT_S, CUT_STEPS = "BENCH_WORKERS", "BENCH_TIMES", "BENCH_WAIT_S", "BENCH_CUT_STEPS"
"""Environment variables.

How many processes learn before a leader begins, the file for the times of steps, how long a dense step waits, and
after how many steps a version is cut.
"""
_JOIN_S_MAX = 180.0


def _gradients(self: Learner, packed: Packed, number: int, step_rows: int, weights: Any) -> SliceGradients:
    time.sleep(float(os.environ[WAIT_S]))
    logits = np.zeros((packed.rows, packed.targets.shape[1]), np.float32)
    of_rows = tuple(np.zeros_like(side) for side in packed.sides)
    return SliceGradients(logits, 0.0, np.zeros(len(weights), np.float32), of_rows, is_finite=True)


def _time_steps(times: Path, workers: int, cut_steps: int) -> None:
    learn, publishers, begun = Leader.learn, list[Publisher](), list[float]()
    start = Publisher.start

    def started(self: Publisher) -> Any:
        publishers.append(self)
        return start(self)

    def timed(self: Leader, offered: Any) -> Any:
        deadline_s = time.monotonic() + _JOIN_S_MAX
        while not begun and len(self.workers) < workers and time.monotonic() < deadline_s:
            time.sleep(0.02)
        learned = learn(self, offered)
        begun.append(0.0)
        with times.open("a") as out:
            out.write(f"{time.monotonic()} {self.steps}\n")
        if cut_steps and self.steps % cut_steps == 0:
            publishers[-1].settle()
            publishers[-1].make_due()
        return learned

    Publisher.start, Leader.learn = started, timed  # type: ignore[method-assign]


def _time_joining(times: Path) -> None:
    """Write when a worker asks first, and when it has reported its first slice."""
    ask, report = LeaderLink.ask, LeaderLink.report
    written = set[str]()

    def note(text: str) -> None:
        if text not in written:
            written.add(text)
            with times.open("a") as out:
                out.write(f"{time.monotonic()} {text}\n")

    def asked(self: LeaderLink, session: int, applied: int, *, leaves: bool = False) -> Any:
        note("asks")
        return ask(self, session, applied, leaves=leaves)

    def reported(self: LeaderLink, *given: Any) -> None:
        report(self, *given)
        note("learned")

    LeaderLink.ask, LeaderLink.report = asked, reported  # type: ignore[assignment,method-assign]


def main() -> None:
    """Run a command of streamlearn."""
    given = os.environ
    if WAIT_S in given:
        Learner.gradients = _gradients  # type: ignore[method-assign]
    if sys.argv[1] == "train":
        _time_steps(Path(given[TIMES]), int(given.get(WORKERS, "1")), int(given.get(CUT_STEPS, "0")))
    elif TIMES in given:
        _time_joining(Path(given[TIMES]))
    from streamlearn.cli.main import command

    command()


if __name__ == "__main__":
    sys.argv[0] = "streamlearn"
    main()
