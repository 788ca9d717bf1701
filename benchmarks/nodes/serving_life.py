"""The effect of version changes on callers: switches, rollbacks, deltas and new graphs."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from benchmarks.nodes.serving_load import poisson
from benchmarks.nodes.serving_model import Pointing, ServingModel
from benchmarks.nodes.serving_nodes import ServingNode
from streamlearn.errors import ServiceError
from streamlearn.load.load_run import Load, LoadResult
from streamlearn.versions.pointer.mover import Moved

__all__ = [
    "Asker",
    "InterleavedLoad",
    "apart",
    "halves",
    "on_cores",
    "publications",
    "rollbacks",
    "stranger",
    "switches",
    "switches_through",
    "unseen",
]

_BESIDE_S_MAX, _BEGIN_S = 300, 1.0
_SEEN_S_MAX = 30.0
# Time between two moves of the pointer: hundreds of times as often as with a version per minute.
_SWITCH_S = 0.1
_STRANGER_S = 5
_IDLE_LOOP = """
import os, sys, time
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
end_s = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end_s:
    sum(range(1_000))
"""
_COMPILES = "streamlearn_serving_compiles_total"
_UNSEEN, _LATER = (301, 333, 391, 451, 511), 20


def halves() -> tuple[list[int], list[int]]:
    """Return cores for a node and others for its callers, who then take none of its time; raises ServiceError."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        message = "a node and its callers need a core each"
        raise ServiceError(message, help="run it on a machine with two cores")
    return cores[: len(cores) // 2], cores[len(cores) // 2 :]


@contextmanager
def on_cores(cores: Sequence[int], pid: int | None = None) -> Iterator[None]:
    """Keep all threads of a process on some cores, by default those of this one; what they start stays there."""
    pid, before = pid or os.getpid(), sorted(os.sched_getaffinity(pid or 0))
    _pin(pid, cores)
    try:
        yield
    finally:
        _pin(pid, before)


@contextmanager
def apart(pid: int) -> Iterator[None]:
    """Give a process the first half of the cores, and this process the others."""
    own, others = halves()
    with on_cores(own, pid), on_cores(others):
        yield


class InterleavedLoad:
    """Load on a node, by turns quiet and during other work.

    Args:
        load: The load.
        rate: Requests per second.
        quiet_s: Duration of a quiet period.
    """

    def __init__(self, load: Load, rate: float, quiet_s: int) -> None:
        self._load, self._rate, self._quiet_s, self._seed = load, rate, quiet_s, 0
        self.quiet: list[LoadResult] = []
        self.during: list[LoadResult] = []

    def turn(self, work: Callable[[], None]) -> None:
        """Run the load for a quiet period, and then during the work."""
        self._seed += 1
        self.quiet.append(poisson(self._load, self._rate, self._quiet_s, self._seed))
        done = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(poisson, self._load, self._rate, _BESIDE_S_MAX, self._seed, done.is_set)
            try:
                done.wait(_BEGIN_S)
                work()
            finally:
                done.set()
            self.during.append(running.result())

    def forget(self) -> None:
        """Discard the results so far, as those of a warm-up."""
        self.quiet.clear()
        self.during.clear()

    @property
    def errors(self) -> int:
        """Number of requests refused during the work; requests in flight at its end do not count."""
        return sum(result.overrun + sum(result.refused.values()) for result in self.during)

    def figures(self, name: str) -> dict[str, float]:
        """Return the p99 of both, and the number of errors."""
        quiet, during = (
            [result.latency_ms["p99"] or 0.0 for result in results] for results in (self.quiet, self.during)
        )
        ratios = [loaded / before for before, loaded in zip(quiet, during, strict=True)]
        return {
            f"{name}_quiet_p99_ms": statistics.median(quiet),
            f"{name}_p99_ms": statistics.median(during),
            f"{name}_p99_to_quiet": statistics.median(ratios),
            f"{name}_errors": self.errors,
        }


def switches(
    node: ServingNode,
    pointing: Pointing,
    between: tuple[int, int],
    interleaved: InterleavedLoad,
    counts: tuple[int, int],
) -> dict[str, float]:
    """Switch back and forth between two versions under load. `counts` are the rounds, and the switches of each.

    Moving the pointer is work on the same machine: without pauses between moves that work would be measured.
    """
    rounds, switches_a_round = counts
    moved: list[Moved] = []

    def there_and_back() -> None:
        begin_s = time.monotonic()
        for at in range(switches_a_round):
            left_s = begin_s + at * _SWITCH_S - time.monotonic()
            time.sleep(max(0.0, left_s))
            moved.append(_followed(pointing.forward(between[1]) if at % 2 else pointing.back(between[0])))

    # Memory that the first switches allocate once is not growth.
    interleaved.turn(there_and_back)
    moved.clear()
    interleaved.forget()
    compiles, memory_bytes = node.meters()[_COMPILES], node.anonymous_bytes()
    for _ in range(rounds):
        interleaved.turn(there_and_back)
    return {
        "switches": len(moved),
        "switches_compiles": node.meters()[_COMPILES] - compiles,
        "switches_memory_growth_ratio": node.anonymous_bytes() / memory_bytes - 1,
        "switches_ms": statistics.median(max(ack.ms for ack in move.acted) for move in moved),
    } | interleaved.figures("switches")


def rollbacks(nodes: Sequence[ServingNode], pointing: Pointing, model: ServingModel, times: int) -> list[float]:
    """Return the milliseconds from before the write of the pointer until all nodes answer with the older version."""
    older, newer = 1, 2
    askers = [Asker(node.load(model.messages(model.requests_of_size(8, 1)), connections=1)) for node in nodes]
    taken_s = []
    try:
        for _ in range(times):
            begin_s = time.perf_counter()
            _followed(pointing.back(older))
            taken_s.append(max(asker.first(older, begin_s) for asker in askers) - begin_s)
            begin_s = time.perf_counter()
            _followed(pointing.forward(newer))
            for asker in askers:
                asker.first(newer, begin_s)
    finally:
        for asker in askers:
            asker.close()
    return [seconds * 1e3 for seconds in taken_s]


def switches_through(
    load: Load, pointing: Pointing, between: tuple[int, int], rate: float, moves: int, back: int
) -> dict[str, float]:
    """Move the pointer back and forth while a load runs, then roll back some times and look who answers.

    Answers that come after all nodes have acknowledged a rollback must be of the older version.
    """
    older, newer = between
    interleaved = InterleavedLoad(load, rate, 1)

    def there_and_back() -> None:
        for at in range(moves):
            _followed(pointing.forward(newer) if at % 2 else pointing.back(older))

    interleaved.turn(there_and_back)
    wrong = 0
    for _ in range(back):
        _followed(pointing.forward(newer))
        _followed(pointing.back(older))
        wrong += sum(int(load.probe().version) != older for _ in range(5))
    return {
        "switch_moves": moves + 2 * back,
        "switch_errors": interleaved.errors,
        "switch_wrong_version": wrong,
    }


def publications(
    pointing: Pointing, prepare: Callable[[], Callable[[], int]], interleaved: InterleavedLoad, rounds: int
) -> float:
    """Publish versions under load; return the median milliseconds from the commit until all nodes serve the version.

    Args:
        pointing: Publishes versions.
        prepare: Writes a version, untimed, and returns the function that commits it.
        interleaved: The load.
        rounds: Number of versions.
    """
    taken: list[float] = []
    for _ in range(rounds):
        interleaved.turn(partial(_publish, pointing, prepare(), taken))
    return statistics.median(taken)


def stranger(interleaved: InterleavedLoad, rounds: int) -> None:
    """Compute something on idle processors under load: what a machine loses where no work of the node is done."""
    for _ in range(rounds):
        interleaved.turn(_compute)


def unseen(node: ServingNode, model: ServingModel) -> dict[str, float]:
    """Measure the first and later requests of candidate counts that are new."""
    first, later = [], []
    for count in _UNSEEN:
        load = node.load(model.messages(model.requests_of_size(count, 1)), connections=1)
        taken = []
        for _ in range(1 + _LATER):
            begin_s = time.perf_counter()
            load.probe()
            taken.append((time.perf_counter() - begin_s) * 1e3)
        first.append(taken[0])
        later.append(statistics.median(taken[1:]))
    return {
        "unseen_first_ms": statistics.median(first),
        "unseen_first_to_later": statistics.median(
            first_ms / later_ms for first_ms, later_ms in zip(first, later, strict=True)
        ),
    }


class Asker:
    """A thread that sends requests constantly, and records changes of the answering version."""

    def __init__(self, load: Load) -> None:
        self._load, self._stop, self._changed = load, threading.Event(), threading.Condition()
        self._seen: list[tuple[float, int]] = []
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def first(self, version: int, since_s: float) -> float:
        """Return the time of the first answer with a version after a time."""

        def answered() -> float | None:
            return next((at_s for at_s, seen in self._seen if seen == version and at_s >= since_s), None)

        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or answered() is not None, _SEEN_S_MAX)
            first_s = answered()
        if first_s is None:
            message = (
                f"no answer by version {version} within {_SEEN_S_MAX:.0f} s: {self._error or 'other versions answered'}"
            )
            raise ServiceError(message, help="see the node's log")
        return first_s

    def close(self) -> None:
        """End it."""
        self._stop.set()
        self._thread.join()

    def _ask(self) -> None:
        while not self._stop.is_set():
            try:
                version = int(self._load.probe().version)
            except Exception as error:
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
                return
            with self._changed:
                if not self._seen or self._seen[-1][1] != version:
                    self._seen.append((time.perf_counter(), version))
                    self._changed.notify_all()


def _pin(pid: int, cores: Sequence[int]) -> None:
    """Pin all threads of a process; threads and children that they start later are pinned too."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(task.name), cores)


def _compute() -> None:
    """Compute for some seconds in processes that run only where nothing else does, one for each core."""
    cores = len(os.sched_getaffinity(0))
    for process in [subprocess.Popen([sys.executable, "-c", _IDLE_LOOP, str(_STRANGER_S)]) for _ in range(cores)]:
        process.wait(_BESIDE_S_MAX)


def _followed(moved: Moved) -> Moved:
    if not moved.is_whole or not moved.acted:
        message = f"{len(moved.acted)} nodes followed; silent: {[node.name for node in moved.silent]}; {moved.said}"
        raise ServiceError(message, help="see the nodes' logs")
    return moved


def _publish(pointing: Pointing, commit: Callable[[], int], taken: list[float]) -> None:
    begin_s = time.perf_counter()
    version = commit()
    pointing.look()
    _followed(pointing.publish(version))
    taken.append((time.perf_counter() - begin_s) * 1e3)
