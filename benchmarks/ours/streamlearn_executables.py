"""One process of the benchmark `executables`: starts as a node does, and prints its figures as a line of JSON.

`python -m benchmarks.ours.streamlearn_executables FOLDER start|all`. The folder keeps graphs and compiled code.
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


def main(folder: Path, part: str) -> dict[str, float]:
    """Measure a start, and everything else if `part` is `all`."""
    settings = ServingSettings(device="cpu", lanes=2, cache_folder=str(folder / "compiled"), compile_calls_min=1)
    cache = CompileCache.open(settings)
    from streamlearn.models import Din, export_graphs, load_graphs
    from streamlearn.serving.graphs.definitions import Definitions
    from streamlearn.serving.graphs.executables import CompileBudget, Executables
    from streamlearn.serving.lanes.device import lane_places

    graphs = folder / "graphs"
    places = lane_places(settings)
    if not graphs.exists():
        export_graphs(Din(), features, ("click",), graphs)
    # A later process has created other objects before it finds compiled code: load the graphs more often there.
    for _ in range(1 if part == "all" else 3):
        loaded = load_graphs(graphs)
    ladder = Ladder.of(settings, loaded.described)
    executables = Executables(Definitions(loaded, ladder.users_max), places, CompileBudget(settings.compiles_max), 1)
    begin_s, begin_cpu_s = time.monotonic(), time.process_time()
    executables.compile_ladder(ladder)
    figures = {"start_s": time.monotonic() - begin_s, "start_cpu_s": time.process_time() - begin_cpu_s}
    cache.seal()
    if part == "all":
        run = _Run(executables, ladder, places)
        figures |= run.costs() | run.unseen() | run.scaling() | run.in_a_process(settings, graphs)
        figures |= run.during_compilation(settings, cache, graphs)
    return figures


class _Run:
    """The measurements of compiled graphs."""

    def __init__(self, executables: Any, ladder: Ladder, places: Sequence[Any]) -> None:
        from streamlearn.serving.graphs.dense import Dense

        self.executables, self.ladder, self.places = executables, ladder, places
        described = executables.definitions.described
        rng = np.random.default_rng(0)
        self.named = {weight.name: rng.normal(0, 0.05, weight.shape).astype(np.float32) for weight in described.weights}
        self.dense = Dense(described, self.named, places)

    def work(self, candidates: int) -> Any:
        """Return a TensorBatch of four users."""
        from streamlearn.serving.graphs.executables import item_example, user_example
        from streamlearn.serving.lanes.lane_kind import Work

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
        """Measure the CPU time of an execution of both graphs, by bucket."""
        figures = {}
        for candidates in self.ladder.candidates:
            work = self.work(candidates)
            once = self._once(work)
            figures[f"execution_cpu_us_{candidates}"] = _median_cpu_us(once)
        for users in self.ladder.users:
            figures[f"user_us_{users}"] = self.executables.cost_us(Bucket("user", users, LENGTH), _RUNS)
        return figures

    def unseen(self) -> dict[str, float]:
        """Measure the first and later calls of shapes without an executable."""
        first, later = [], []
        for candidates in _UNSEEN:
            once = self._once(self.work(candidates))
            begin = time.thread_time()
            once()
            first.append((time.thread_time() - begin) * 1e6)
            later.append(_median_cpu_us(once, 20))
        ratios = [first_us / later_us for first_us, later_us in zip(first, later, strict=True)]
        return {
            "unseen_first_cpu_us": statistics.median(first),
            "unseen_later_cpu_us": statistics.median(later),
            "unseen_first_to_later": statistics.median(ratios),
        }

    def scaling(self) -> dict[str, float]:
        """Measure two lanes against one, by turns."""
        one_lane, two_lanes = [], []
        for _ in range(_ROUNDS):
            one_lane.append(self._throughput(1))
            two_lanes.append(self._throughput(2))
        return {
            "one_lane_per_s": statistics.median(one_lane),
            "two_lanes_per_s": statistics.median(two_lanes),
            "two_lanes_to_one": statistics.median(two / one for one, two in zip(one_lane, two_lanes, strict=True)),
        }

    def in_a_process(self, settings: ServingSettings, graphs: Path) -> dict[str, float]:
        """Measure an execution in a lane process and in this process, by turns in bursts."""
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
                shared_work = _put(memory, work)._replace(dense=weights)
            for _ in range(_RUNS // _BURST):
                here_s += [_timed(once) for _ in range(_BURST)]
                there_s += [_timed(lambda: made.scorer.score(lanes.places[0], shared_work)) for _ in range(_BURST)]
            lanes.end()
        lanes.close()
        here, there = (statistics.median(times_s) * 1e6 for times_s in (here_s, there_s))
        return {"thread_lane_us": here, "process_lane_us": there, "process_over_thread_us": there - here}

    def during_compilation(self, settings: ServingSettings, cache: CompileCache, graphs: Path) -> dict[str, float]:
        """Measure executions before and while another process compiles."""
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
        quiet, beside = (float(np.percentile(times_s, 99)) for times_s in (quiet_s, beside_s))
        return {"quiet_p99_us": quiet * 1e6, "beside_p99_us": beside * 1e6, "beside_to_quiet_p99": beside / quiet}

    def _once(self, work: Any) -> Callable[[], object]:
        return lambda: self.executables.score(self.places[0], work)

    def _throughput(self, lanes: int) -> float:
        from streamlearn.serving.lanes.lanes import Lanes

        source = _Queued([self.work(64)] * _WORKS)
        begin_s = time.monotonic()
        Lanes(source, self.executables.score, self.places[:lanes], 0).join(600)
        assert source.given == _WORKS
        return _WORKS / (time.monotonic() - begin_s)


class _Queued:
    """A source of work that is full from the start."""

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
    """Copy work into memory that a lane process shares."""
    from streamlearn.serving.lanes.lane_orders import TensorSpan
    from streamlearn.serving.lanes.slab import places_of

    blocks = [*work.user, work.user_index, *work.item]
    spans = []
    for at, block in zip(places_of([block.nbytes for block in blocks]), blocks, strict=False):
        memory[at : at + block.nbytes] = block.tobytes()
        spans.append(TensorSpan(at, block.shape))
    users = len(work.user)
    return work._replace(user=spans[:users], user_index=spans[users], item=spans[users + 1 :])


def _median_cpu_us(once: Callable[[], object], runs: int = _RUNS) -> float:
    times_us = []
    for _ in range(runs + 1):
        begin = time.thread_time_ns()
        once()
        times_us.append((time.thread_time_ns() - begin) / 1e3)
    return statistics.median(times_us[1:])


def _timed(once: Callable[[], object]) -> float:
    begin_s = time.perf_counter()
    once()
    return time.perf_counter() - begin_s


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2])))
