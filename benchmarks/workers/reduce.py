"""The sum of a dense vector over two processes: ours through a shard, and TensorFlow's ring, by turns.

All processes wait while the other side has its window. A round begins with the call in a process, and ends when it has
the sum; a round's time is that of the slower process. The shard's processor time is counted as the processes' own.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.nodes.serving_nodes import cpu_s_of
from benchmarks.workers.cluster import mirrored_variables
from benchmarks.workers.crew import Crew
from benchmarks.workers.rounds import PROCESSES

__all__ = ["SumSide", "Window", "measure", "ring_side", "shard_side"]

Note = Callable[[str], None]

_WINDOWS, _QUICK_WINDOWS = 9, 5
_WINDOW_S = 1.0
_WARM_ROUNDS = 50
_OURS, _PEER = "benchmarks.workers.shard_sums", "benchmarks.peers.mirrored.ring"
_RING = "tf_ring"


class Window(NamedTuple):
    """The figures of a window.

    Attributes:
        p50_ms: The median of the rounds' times.
        cpu_ms: The processor's time of one process and round.
    """

    p50_ms: float
    cpu_ms: float


class SumSide:
    """Processes that sum a vector; and a server between them, whose processor time is theirs."""

    def __init__(self, crew: Crew, warm_rounds: int, server: Crew | None = None) -> None:
        self._crew, self._server = crew, server
        crew.all_heard()
        self._rounds = max(1, round(1e3 * _WINDOW_S / self.window(warm_rounds).p50_ms))

    def window(self, rounds: int = 0) -> Window:
        """Measure some rounds; by default as many as took a second in the beginning."""
        rounds, cpu_ms = rounds or self._rounds, self._server_cpu_ms()
        answers = self._crew.asked(str(rounds))
        cpu_ms = self._server_cpu_ms() - cpu_ms + sum(answer["cpu_ms"] for answer in answers)
        slower = np.max([answer["took_ms"] for answer in answers], axis=0)
        return Window(float(np.median(slower)), cpu_ms / rounds / len(answers))

    def close(self) -> None:
        """End all processes."""
        self._crew.close()
        if self._server is not None:
            self._server.close()

    def _server_cpu_ms(self) -> float:
        return 0.0 if self._server is None else 1e3 * cpu_s_of(self._server.processes[0].pid)


def shard_side(folder: Path, warm_rounds: int = _WARM_ROUNDS) -> SumSide:
    """Start our processes and their shard."""
    with ExitStack() as stack:
        server = stack.enter_context(closing(Crew([[_OURS, "serve", str(folder / "store")]], folder / "shard")))
        address = server.heard(0)["address"]
        words = [[_OURS, str(index), address] for index in range(PROCESSES)]
        crew = stack.enter_context(closing(Crew(words, folder / "ours")))
        side = SumSide(crew, warm_rounds, server)
        stack.pop_all()
    return side


def ring_side(folder: Path, warm_rounds: int = _WARM_ROUNDS) -> SumSide:
    """Start TensorFlow's processes."""
    words = [[_PEER, str(index)] for index in range(PROCESSES)]
    with ExitStack() as stack:
        crew = stack.enter_context(closing(Crew(words, folder / "ring", mirrored_variables(PROCESSES))))
        side = SumSide(crew, warm_rounds)
        stack.pop_all()
    return side


def measure(quick: bool, note: Note) -> tuple[dict[str, float], dict[str, float]]:
    """Return the figures of both sides, and how much faster ours is; all are medians of windows."""
    with tempfile.TemporaryDirectory(prefix="streamlearn-bench-") as place, ExitStack() as stack:
        folder = Path(place)
        note(f"the sum of a vector over {PROCESSES} processes, ours and TensorFlow's ring by turns")
        ours = stack.enter_context(closing(shard_side(folder)))
        ring = stack.enter_context(closing(ring_side(folder)))
        pairs = [(ours.window(), ring.window()) for _ in range(_QUICK_WINDOWS if quick else _WINDOWS)]
    figures = {}
    for prefix, windows in zip(("", f"{_RING}."), zip(*pairs, strict=True), strict=True):
        figures[f"{prefix}reduce_p50_ms"] = statistics.median(window.p50_ms for window in windows)
        figures[f"{prefix}reduce_cpu_ms"] = statistics.median(window.cpu_ms for window in windows)
    ratio = statistics.median(theirs.p50_ms / own.p50_ms for own, theirs in pairs)
    return figures, {f"ratio_{_RING}": ratio}
