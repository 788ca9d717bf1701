"""Online reads: the computed columns of a user and of candidates, read by us and by Feast from one Redis, in turns.

The processes share the machine's cores, and the one without the turn waits. Feast gets the values that our reader
returns, so both read the same ones; ours evaluates the windows from states, which Feast does not. Our reader keeps
states of items for two seconds, as a node does; a second one reads all of them each time, as Feast does.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from benchmarks.peers.environment import Environment, ready_environments
from benchmarks.peers.peer import peer_variables
from benchmarks.result import Result
from streamlearn.errors import ServiceError, StatesUnreachable
from streamlearn.online import ComputedFeatures, FeatureReader
from streamlearn.resource import Resource
from tools.services.cache import Cache
from tools.services.process import log_tail

__all__ = ["READING_PEERS", "Reads", "ReadsOfPeer", "compare_reads", "ratios"]

Note = Callable[[str], None]
Columns: TypeAlias = dict[str, list[Any]]
Request: TypeAlias = tuple[int, list[int]]
Turn: TypeAlias = Callable[[float], list[float]]

READING_PEERS = {"feast": Environment("feast")}

_MODULE = "benchmarks.peers.feast_online"
_ROOT = Path(__file__).parent.parent
_REQUESTS, _ITEMS, _ITEM_LAW = 2_000, 36, 1.3
_TURN_S, _TURNS = 1.0, 20
_END_WAIT_S_MAX = 10.0


@dataclass(frozen=True)
class Reads:
    """The reads of one side.

    Attributes:
        durations_s: Of each read, (reads,).
        values: Number of values that all of them returned.
    """

    durations_s: npt.NDArray[np.float64]
    values: int

    def values_per_s(self) -> float:
        """Return the rate while it had the turn."""
        return self.values / float(self.durations_s.sum())

    def quantile_ms(self, quantile: float) -> float:
        """Return a quantile of the durations."""
        return 1e3 * float(np.quantile(self.durations_s, quantile))


def compare_reads(
    reader: FeatureReader,
    uncached: FeatureReader,
    address: str,
    result: Result,
    note: Note,
    *,
    users: int,
    at_ms: int,
) -> None:
    """Measure two readers and Feast on the Redis at `address`; without Feast its figures are missing."""
    if not ready_environments(READING_PEERS, note):
        return
    python = READING_PEERS["feast"].build(Cache())
    requests = _requests(users)
    ours = _OurReads(reader, requests, at_ms)
    workload, counts = _workload(ours, requests)
    try:
        with tempfile.TemporaryDirectory() as folder:
            given = {**workload, "redis": address, "requests": requests}
            (Path(folder) / "workload.json").write_text(json.dumps(given))
            with ReadsOfPeer([str(python), "-m", _MODULE, folder], Path(folder)) as feast:
                note(f"reading in turns with feast: {feast.way}")
                sides = {"reader": ours.turn, "uncached": _OurReads(uncached, requests, at_ms).turn}
                reads = _in_turns({**sides, "feast": feast.turn}, counts)
    except ServiceError as error:
        note(f"peer feast is left out: {error}")
        return
    result.figures |= {
        f"{name}_{label}_ms": side.quantile_ms(quantile)
        for name, side in reads.items()
        for label, quantile in (("p50", 0.5), ("p99", 0.99))
    }
    result.ratios |= ratios(reads["reader"], reads["feast"])
    result.ratios |= {f"{name}_uncached": ratio for name, ratio in ratios(reads["uncached"], reads["feast"]).items()}


def ratios(ours: Reads, feast: Reads) -> dict[str, float]:
    """Return how much better our reads are."""
    return {
        "ratio_feast_values": ours.values_per_s() / feast.values_per_s(),
        "ratio_feast_p99": feast.quantile_ms(0.99) / ours.quantile_ms(0.99),
    }


class ReadsOfPeer(Resource):
    """A process that reads while it has the turn: a line of seconds to its stdin, and a line of JSON from its stdout.

    Raises:
        ServiceError: It ended before it was ready.
    """

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self._log = folder / "stderr"
        with self._log.open("wb") as stderr:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                cwd=_ROOT,
                env=peer_variables(),
                text=True,
            )
        try:
            self.way = str(self._answer()["way"])
        except BaseException:
            self.close()
            raise

    def turn(self, seconds: float) -> list[float]:
        """Let it read for so long; return the duration of each read.

        Raises:
            ServiceError: It ended.
        """
        return list(map(float, self.ask(f"{seconds}")["durations_s"]))

    def ask(self, line: str) -> dict[str, Any]:
        """Write a line to it, and return its answer.

        Raises:
            ServiceError: It ended.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failure() from None
        return self._answer()

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate(timeout=_END_WAIT_S_MAX)

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()  # it ends itself if it takes too long
        if not line:
            raise self._failure()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _failure(self) -> ServiceError:
        message = f"it ended; its stderr ends with\n{log_tail(self._log)}"
        return ServiceError(message, help="its figures are missing")


class _OurReads:
    """Our reader with the requests, in their order, over and over."""

    def __init__(self, reader: FeatureReader, requests: Sequence[Request], at_ms: int) -> None:
        self._reader, self._requests, self._at_ms, self._next = reader, requests, at_ms, 0

    def turn(self, seconds: float) -> list[float]:
        """Read for so long; return the duration of each read."""
        until_s, durations_s = time.perf_counter() + seconds, []
        while (begin_s := time.perf_counter()) < until_s:
            user, items = self._requests[self._next]
            filled = self._reader.fill({"user_id": user}, [{"item_id": item} for item in items], self._at_ms)
            durations_s.append(time.perf_counter() - begin_s)
            _check(filled.outcome)
            self._next = (self._next + 1) % len(self._requests)
        return durations_s

    def read(self, request: Request) -> tuple[ComputedFeatures, ComputedFeatures]:
        """Return the columns of a user, and those of candidates."""
        user, items = request
        of_user, of_items = self._reader.users([user], self._at_ms), self._reader.items(items, self._at_ms)
        for outcome in (of_user.outcomes[0], of_items.outcomes[0]):
            _check(outcome)
        return of_user, of_items


def _check(outcome: str) -> None:
    if outcome == "unavailable":
        message = "a read of ours took too long"
        raise StatesUnreachable(message, help="run the benchmark while nothing else needs the machine")


def _requests(users: int) -> list[Request]:
    """Return users, each with distinct candidates; popular items are drawn more often."""
    rng, items = np.random.default_rng(3), users // 2
    weights = np.arange(1, items + 1) ** -_ITEM_LAW
    weights /= weights.sum()
    # The most popular item is 1, as in the interactions.
    drawn = ((rng.choice(items, _ITEMS, replace=False, p=weights) + 1) % items for _ in range(_REQUESTS))
    return [(int(rng.integers(users)), candidates.tolist()) for candidates in drawn]


def _workload(ours: _OurReads, requests: Sequence[Request]) -> tuple[dict[str, Columns], npt.NDArray[np.int64]]:
    """Return the columns of each user and item that is requested, and the number of values in each answer."""
    users: dict[int, dict[str, Any]] = {}
    items: dict[int, dict[str, Any]] = {}
    counts = []
    for request in requests:
        of_user, of_items = ours.read(request)
        users[request[0]] = {"user_id": request[0], **of_user.row(0)}
        items |= {item: {"item_id": item, **of_items.row(at)} for at, item in enumerate(request[1])}
        counts.append(_values(of_user) + _values(of_items))
    return {"user": _columns(users), "item": _columns(items)}, np.array(counts)


def _columns(rows: Mapping[int, dict[str, Any]]) -> Columns:
    names = next(iter(rows.values()))
    return {name: [row[name] for row in rows.values()] for name in names}


def _values(read: ComputedFeatures) -> int:
    """Return the number of values, with those in lists."""
    of_columns = (value for values in read.values.values() for value in values)
    return sum(len(value) if isinstance(value, list) else 1 for value in of_columns)


def _in_turns(sides: Mapping[str, Turn], counts: npt.NDArray[np.int64]) -> dict[str, Reads]:
    durations_s: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(_TURNS):
        for name, turn in sides.items():
            durations_s[name] += turn(_TURN_S)
    return {
        name: Reads(np.array(of_side), int(np.resize(counts, len(of_side)).sum()))
        for name, of_side in durations_s.items()
    }
