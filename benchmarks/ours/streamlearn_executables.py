"""One process of the benchmark `executables`: starts as a node does, and prints what it found as a line of JSON.

`python -m benchmarks.ours.streamlearn_executables FOLDER start|all`; graphs and compiled code are kept in the folder.
"""

from __future__ import annotations

import json
import mmap
import os
import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs

from benchmarks.serving_din.app import LENGTH, features
from streamlearn.serving.graphs.compile_cache import CompileCache
from streamlearn.serving.graphs.ladder import Bucket, Ladder
from streamlearn.settings import ServingSettings

__all__ = ["main"]

_USERS = 4
_SLABS_BYTES, _BURST = 1 << 22, 50
_RUNS, _WORKS, _ROUNDS, _UNSEEN = 300, 400, 3, (13, 37, 91, 111, 203)


def main(folder: Path, what: str) -> dict[str, float]:
    """Start, and measure what was asked for."""
    settings = ServingSettings(device="cpu", lanes=2, cache_folder=str(folder / "compiled"), compile_calls_min=1)
    cache = CompileCache.open(settings)
    from streamlearn.models import Din, export_graphs, load_graphs
    from streamlearn.serving import CompileBudget, lane_places
    from streamlearn.serving.graphs.definitions import Definitions
    from streamlearn.serving.graphs.executables import Executables

    graphs = folder / "graphs"
    places = lane_places(settings)
    if not graphs.exists():
        export_graphs(Din(), features, ("click",), graphs)
    # Each process has made something else before.
    for _ in range(1 if what == "all" else 3):
        loaded = load_graphs(graphs)
    ladder = Ladder.of(settings, loaded.described)
    executables = Executables(Definitions(loaded, ladder.users_max), places, CompileBudget(settings.compiles_max), 1)
    begin_s, begin_cpu_s = time.monotonic(), time.process_time()
    executables.compile_ladder(ladder)
    found = {"start_s": time.monotonic() - begin_s, "start_cpu_s": time.process_time() - begin_cpu_s}
    cache.seal()
    if what == "all":
        run = _Run(executables, ladder, places)
        found |= run.costs() | run.unseen() | run.scaling() | run.in_a_process(settings, graphs)
        found |= run.beside_a_compilation(settings, cache, graphs)
    return found


class _Run:
    """What is measured of graphs that are compiled."""

    def __init__(self, executables: Any, ladder: Ladder, places: Sequence[Any]) -> None:
        from streamlearn.serving import Dense

        self.executables, self.ladder, self.places = executables, ladder, places
        described = executables.definitions.described
        rng = np.random.default_rng(0)
        self.named = {one.name: rng.normal(0, 0.05, one.shape).astype(np.float32) for one in described.weights}
        self.dense = Dense(described, self.named, places)

    def work(self, candidates: int) -> Any:
        """A TensorBatch of four users."""
        from streamlearn.serving import Work
        from streamlearn.serving.graphs.example_inputs import item_example, user_example

        described = self.executables.definitions.described
        index, *item = item_example(described, candidates)
        user = user_example(described, _USERS, LENGTH)
        rng = np.random.default_rng(candidates)
        for block in (*user, *item):
            block[...] = rng.normal(0, 1, block.shape)
        user[1][..., -1] = 1
        index[...] = np.sort(rng.integers(0, _USERS, candidates))
        return Work(self.dense, user, index, item)

    def costs(self) -> dict[str, float]:
        """CPU time of one execution, both graphs, by bucket."""
        found = {}
        for candidates in self.ladder.candidates:
            work = self.work(candidates)
            once = self._once(work)
            found[f"execution_cpu_us_{candidates}"] = _median_cpu_us(once)
        for users in self.ladder.users:
            found[f"user_us_{users}"] = self.executables.cost_us(Bucket("user", users, LENGTH), _RUNS)
        return found

    def unseen(self) -> dict[str, float]:
        """A shape without an executable: its first call over later ones."""
        first, later = [], []
        for candidates in _UNSEEN:
            once = self._once(self.work(candidates))
            begin = time.thread_time()
            once()
            first.append((time.thread_time() - begin) * 1e6)
            later.append(_median_cpu_us(once, 20))
        ratios = [one / other for one, other in zip(first, later, strict=True)]
        return {
            "unseen_first_cpu_us": statistics.median(first),
            "unseen_later_cpu_us": statistics.median(later),
            "unseen_first_to_later": statistics.median(ratios),
        }

    def scaling(self) -> dict[str, float]:
        """Two lanes against one, in turn."""
        one, two = [], []
        for _ in range(_ROUNDS):
            one.append(self._throughput(1))
            two.append(self._throughput(2))
        return {
            "one_lane_per_s": statistics.median(one),
            "two_lanes_per_s": statistics.median(two),
            "two_lanes_to_one": statistics.median(b / a for a, b in zip(one, two, strict=True)),
        }

    def in_a_process(self, settings: ServingSettings, graphs: Path) -> dict[str, float]:
        """How long an execution takes in a lane that is a process, and in this one, in bursts that take turns."""
        from streamlearn.serving.lanes.lane_processes import LaneProcesses

        work, once = self.work(64), self._once(self.work(64))
        slabs = os.memfd_create("slabs")
        os.ftruncate(slabs, _SLABS_BYTES)
        alone = structs.replace(settings, lanes=1, lane_processes=True)
        lanes = LaneProcesses(alone, (slabs, _SLABS_BYTES, _SLABS_BYTES // 2), 1)
        here_s, there_s = list[float](), list[float]()
        with lanes.places[0].entered():
            made = lanes.graph("din", graphs)
            weights = lanes.weights(made.scorer, self.named)
            with mmap.mmap(slabs, _SLABS_BYTES) as memory:
                lying = _put(memory, work)._replace(dense=weights)
            for _ in range(_RUNS // _BURST):
                here_s += [_timed(once) for _ in range(_BURST)]
                there_s += [_timed(lambda: made.scorer.score(lanes.places[0], lying)) for _ in range(_BURST)]
            lanes.end()
        lanes.close()
        here, there = (statistics.median(one) * 1e6 for one in (here_s, there_s))
        return {"thread_lane_us": here, "process_lane_us": there, "process_over_thread_us": there - here}

    def beside_a_compilation(self, settings: ServingSettings, cache: CompileCache, graphs: Path) -> dict[str, float]:
        """How long executions take while another process compiles, and before it."""
        from streamlearn.serving.graphs.compiler import Compiler

        once, wanted = self._once(self.work(64)), [Bucket("score", rows, LENGTH) for rows in (301, 302, 303, 304)]
        compiler, quiet_s, beside_s = Compiler(settings, cache), list[float](), list[float]()
        compiler.ask(self.executables, graphs, Bucket("score", 300, LENGTH))
        while not self.executables.has(Bucket("score", 300, LENGTH)):
            once()
        for bucket in wanted:
            for _ in range(_RUNS):
                quiet_s.append(_timed(once))
            compiler.ask(self.executables, graphs, bucket)
            while not self.executables.has(bucket):
                beside_s.append(_timed(once))
        compiler.close()
        quiet, beside = (float(np.percentile(one, 99)) for one in (quiet_s, beside_s))
        return {"quiet_p99_us": quiet * 1e6, "beside_p99_us": beside * 1e6, "beside_to_quiet_p99": beside / quiet}

    def _once(self, work: Any) -> Callable[[], object]:
        return lambda: self.executables.score(self.places[0], work)

    def _throughput(self, lanes: int) -> float:
        from streamlearn.serving import Lanes

        source = _Queued([self.work(64)] * _WORKS)
        begin_s = time.monotonic()
        Lanes(source, self.executables, self.places[:lanes], 0).join(600)
        assert source.given == _WORKS
        return _WORKS / (time.monotonic() - begin_s)


class _Queued:
    """Work that is there from the start."""

    def __init__(self, works: list[Any]) -> None:
        self._works, self.given, self._lock = deque(works), 0, threading.Lock()

    def take(self, lane: int) -> Any:
        with self._lock:
            return self._works.popleft() if self._works else None

    def give(self, work: Any, scores: Any) -> None:
        del work, scores
        with self._lock:
            self.given += 1

    def fail(self, work: Any, error: Exception) -> None:
        del work
        raise error

    def leave(self, lane: int) -> None:
        del lane


def _put(memory: mmap.mmap, work: Any) -> Any:
    """The same work in memory that a process has too."""
    from streamlearn.serving.lanes.lane_orders import Lying
    from streamlearn.serving.lanes.slab import places_of

    blocks = [*work.user, work.user_index, *work.item]
    found = []
    for at, one in zip(places_of([one.nbytes for one in blocks]), blocks, strict=False):
        memory[at : at + one.nbytes] = one.tobytes()
        found.append(Lying(at, one.shape))
    users = len(work.user)
    return work._replace(user=found[:users], user_index=found[users], item=found[users + 1 :])


def _median_cpu_us(once: Callable[[], object], runs: int = _RUNS) -> float:
    found = []
    for _ in range(runs + 1):
        begin = time.thread_time_ns()
        once()
        found.append((time.thread_time_ns() - begin) / 1e3)
    return statistics.median(found[1:])


def _timed(once: Callable[[], object]) -> float:
    begin_s = time.perf_counter()
    once()
    return time.perf_counter() - begin_s


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2])))
