"""Report: the figures of a run, what failed and what could not be measured, and the table at the end."""

from __future__ import annotations

import json
import os
import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.gpu.kit import DIFFERENCE_MAX

__all__ = ["BARS", "Report", "taken_s"]

BARS: dict[str, tuple[str, float]] = {
    "golden_difference_max": ("<=", DIFFERENCE_MAX),
    "launches_by_fusion": (">=", 2.5),
    "launches_by_merging": (">=", 3.0),
    "lanes_4_to_1": (">=", 1.5),
    "step_deepfm_65536_us_per_sample": ("<=", 0.1),
    "end_to_end_samples_per_s": (">=", 1_000_000),
}
"""What a GPU should reach. Only the goldens decide about the exit status."""

_RUNS_MIN, _RUNS_MAX = 5, 2_000


class Report:
    """Figures by name, and a log in a folder.

    Attributes:
        figures: Each with its unit in its name.
        failures: What is wrong: the command then exits with 1.
        unmeasured: What this machine cannot measure, with the reason.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self._begin_s = folder, time.monotonic()
        self._log = (folder / "prove.log").open("w")
        self.figures: dict[str, float] = {}
        self.failures: list[str] = []
        self.unmeasured: dict[str, str] = {}

    def note(self, text: str) -> None:
        """Print a line of progress, and write it to the log."""
        line = f"{time.monotonic() - self._begin_s:6.1f} s  {text}"
        print(line, flush=True)
        self._log.write(f"{line}\n")
        self._log.flush()

    def golden(self, name: str, difference: float) -> None:
        """Check the difference of a graph's outputs from its goldens."""
        self.figures["golden_difference_max"] = max(difference, self.figures.get("golden_difference_max", 0.0))
        if not difference <= DIFFERENCE_MAX:
            self.failures.append(f"{name} differs from its goldens by {difference:.2g}, more than {DIFFERENCE_MAX:g}")

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Note the time that a part takes; one that fails is noted as a failure, and the others go on."""
        self.note(f"{name} ...")
        begin_s = time.monotonic()
        try:
            yield
        except Exception as error:
            self.failures.append(f"{name}: {type(error).__name__}: {error}")
            self._log.write(traceback.format_exc())
        self.figures[f"{name}_part_s"] = time.monotonic() - begin_s

    def finish(self, *, has_bars: bool) -> int:
        """Print the table and the figures as the last line, and return the exit status."""
        self.figures["whole_s"], self.figures["whole_processor_s"] = (
            time.monotonic() - self._begin_s,
            sum(os.times()[:4]),
        )
        lines = [f"{name:44}{value:>14,.4g}  {_verdict(name, value, has_bars)}" for name, value in self.figures.items()]
        lines += [f"{name:44}{'-':>14}  not measured: {reason}" for name, reason in self.unmeasured.items()]
        lines += [f"FAILED: {failure}" for failure in self.failures]
        figures = {name: float(f"{value:.4g}") for name, value in self.figures.items()}
        lines.append(json.dumps({"figures": figures, "failures": self.failures, "not measured": self.unmeasured}))
        text = "\n".join(line.rstrip() for line in lines)
        print(text, flush=True)
        self._log.write(f"{text}\n")
        self._log.close()
        return 1 if self.failures else 0


def taken_s(run: Callable[[], object], seconds: float) -> float:
    """Return the median time of a call, which is repeated for so long; its first call does not count."""
    run()
    taken: list[float] = []
    until_s = time.perf_counter() + seconds
    while len(taken) < _RUNS_MIN or (time.perf_counter() < until_s and len(taken) < _RUNS_MAX):
        begin_s = time.perf_counter()
        run()
        taken.append(time.perf_counter() - begin_s)
    return statistics.median(taken)


def _verdict(name: str, value: float, has_bars: bool) -> str:
    if name not in BARS or not (has_bars or name == "golden_difference_max"):
        return ""
    relation, bar = BARS[name]
    is_reached = value <= bar if relation == "<=" else value >= bar
    return f"{relation} {bar:,g}: {'reached' if is_reached else 'MISSED'}"
