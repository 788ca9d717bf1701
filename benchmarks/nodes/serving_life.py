"""What happens to callers while versions come and go: switches, rollbacks, deltas, and graphs that are new."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from benchmarks.nodes.serving_load import poisson
from benchmarks.nodes.serving_model import Pointing, ServingModel
from benchmarks.nodes.serving_nodes import ServingNode
from streamlearn.errors import ServiceError
from streamlearn.serving.load.load_run import Load, LoadFound
from streamlearn.versions.pointer.mover import Moved

__all__ = ["Beside", "publications", "rollbacks", "switches", "unseen"]

_BESIDE_S_MAX, _BEGIN_S = 300, 1.0
_SEEN_S_MAX = 30.0
# Every how many seconds a pointer is moved: where versions come by the minute, hundreds of times as often.
_SWITCH_S = 0.1
_COMPILES = "streamlearn_serving_compiles_total"
_UNSEEN, _LATER = (301, 333, 391, 451, 511), 20


class Beside:
    """Load on a node, quiet and beside something else, in turn.

    Args:
        load: What asks it.
        rate: Requests a second.
        quiet_s: How long a quiet while is.
    """

    def __init__(self, load: Load, rate: float, quiet_s: int) -> None:
        self._load, self._rate, self._quiet_s, self._seed = load, rate, quiet_s, 0
        self.quiet: list[LoadFound] = []
        self.beside: list[LoadFound] = []

    def turn(self, work: Callable[[], None]) -> None:
        """A quiet while, and then one as long as the work."""
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
            self.beside.append(running.result())

    def forget(self) -> None:
        """What was found so far was a warm-up."""
        self.quiet.clear()
        self.beside.clear()

    @property
    def errors(self) -> int:
        """Requests that were refused beside it; those under way when it was over are none."""
        return sum(one.overrun + sum(one.refused.values()) for one in self.beside)

    def figures(self, name: str) -> dict[str, float]:
        """The p99 of both, and what was not answered."""
        quiet, beside = ([one.latency_ms["p99"] or 0.0 for one in some] for some in (self.quiet, self.beside))
        ratios = [other / one for one, other in zip(quiet, beside, strict=True)]
        return {
            f"{name}_quiet_p99_ms": statistics.median(quiet),
            f"{name}_p99_ms": statistics.median(beside),
            f"{name}_p99_to_quiet": statistics.median(ratios),
            f"{name}_errors": self.errors,
        }


def switches(
    node: ServingNode, pointing: Pointing, between: tuple[int, int], beside: Beside, counts: tuple[int, int]
) -> dict[str, float]:
    """Switch to and fro between two versions under load: rounds of so many switches each, one by one in even time.

    Whoever moves the pointer, here and in the store, works on the same machine; without a pause between two moves it
    would be that work that is measured.
    """
    rounds, each = counts
    moved: list[Moved] = []

    def there_and_back() -> None:
        begin_s = time.monotonic()
        for at in range(each):
            left_s = begin_s + at * _SWITCH_S - time.monotonic()
            time.sleep(max(0.0, left_s))
            moved.append(_whole(pointing.forward(between[1]) if at % 2 else pointing.back(between[0])))

    # What the first of each takes once is no growth.
    beside.turn(there_and_back)
    moved.clear()
    beside.forget()
    compiles, memory_bytes = node.meters()[_COMPILES], node.anonymous_bytes()
    for _ in range(rounds):
        beside.turn(there_and_back)
    return {
        "switches": len(moved),
        "switches_compiles": node.meters()[_COMPILES] - compiles,
        "switches_memory_growth_ratio": node.anonymous_bytes() / memory_bytes - 1,
        "switches_ms": statistics.median(max(one.ms for one in each.acted) for each in moved),
    } | beside.figures("switches")


def rollbacks(nodes: Sequence[ServingNode], pointing: Pointing, model: ServingModel, times: int) -> list[float]:
    """Milliseconds from before the pointer is written until all nodes have answered with the older version."""
    older, newer = 1, 2
    askers = [_Asker(node.load(model.messages(model.asked_of(8, 1)), connections=1)) for node in nodes]
    found = []
    try:
        for _ in range(times):
            begin_s = time.perf_counter()
            _whole(pointing.back(older))
            found.append(max(one.first(older, begin_s) for one in askers) - begin_s)
            begin_s = time.perf_counter()
            _whole(pointing.forward(newer))
            for one in askers:
                one.first(newer, begin_s)
    finally:
        for one in askers:
            one.close()
    return [seconds * 1e3 for seconds in found]


def publications(pointing: Pointing, prepare: Callable[[], Callable[[], int]], beside: Beside, rounds: int) -> float:
    """Publish versions under load; milliseconds from when one is committed until it is served, the median.

    Args:
        pointing: What publishes them.
        prepare: Writes one, while nothing is measured, and gives what commits it.
        beside: The load.
        rounds: How many versions.
    """
    taken: list[float] = []
    for _ in range(rounds):
        beside.turn(partial(_publish, pointing, prepare(), taken))
    return statistics.median(taken)


def unseen(node: ServingNode, model: ServingModel) -> dict[str, float]:
    """Numbers of candidates that no request had before, and more than the largest bucket holds: first and later."""
    first, later = [], []
    for count in _UNSEEN:
        load = node.load(model.messages(model.asked_of(count, 1)), connections=1)
        taken = []
        for _ in range(1 + _LATER):
            begin_s = time.perf_counter()
            load.probe()
            taken.append((time.perf_counter() - begin_s) * 1e3)
        first.append(taken[0])
        later.append(statistics.median(taken[1:]))
    return {
        "unseen_first_ms": statistics.median(first),
        "unseen_first_to_later": statistics.median(one / other for one, other in zip(first, later, strict=True)),
    }


class _Asker:
    """A thread that asks all the while, and knows which version answered when."""

    def __init__(self, load: Load) -> None:
        self._load, self._stop, self._changed = load, threading.Event(), threading.Condition()
        self._seen: list[tuple[float, int]] = []
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def first(self, version: int, since_s: float) -> float:
        """When it first answered with a version, after some time."""

        def answered() -> float | None:
            return next((at_s for at_s, one in self._seen if one == version and at_s >= since_s), None)

        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or answered() is not None, _SEEN_S_MAX)
            found = answered()
        if found is None:
            message = f"no answer by version {version} within {_SEEN_S_MAX:.0f} s: {self._error or 'others answered'}"
            raise ServiceError(message, help="see the node's log")
        return found

    def close(self) -> None:
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


def _whole(moved: Moved) -> Moved:
    if not moved.is_whole or not moved.acted:
        message = f"{len(moved.acted)} nodes followed; silent: {[one.name for one in moved.silent]}; {moved.said}"
        raise ServiceError(message, help="see the nodes' logs")
    return moved


def _publish(pointing: Pointing, commit: Callable[[], int], taken: list[float]) -> None:
    begin_s = time.perf_counter()
    version = commit()
    pointing.look()
    _whole(pointing.publish(version))
    taken.append((time.perf_counter() - begin_s) * 1e3)
