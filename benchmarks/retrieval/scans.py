"""Searches of our blocks, and of the indexes of FAISS, hnswlib and USearch, by one thread each, in turns.

Each figure is the time that the thread used of the processor, and each ratio the median of the ratios of all rounds.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.online_reads import ReadsOfPeer
from benchmarks.peers.environment import Environment, ready_environments
from benchmarks.result import Result
from benchmarks.retrieval.vectors import TRUTH, Vectors, blocks_of, encoded
from streamlearn.errors import ServiceError
from tools.services.cache import Cache

__all__ = ["INDEX_PEERS", "measure", "recall"]

Note = Callable[[str], None]
Turn = Callable[[float], float]
Ids = npt.NDArray[np.int64]

INDEX_PEERS = {"vectors": Environment("vectors", is_compiled=True)}
_MODULE = "benchmarks.retrieval.vector_indexes"
_ITEMS, _SMALL, _QUICK_ITEMS, _QUICK_SMALL = 1_000_000, 200_000, 20_000, 10_000
_BATCH, _K, _RECALL = 32, 500, 0.95
_CELLS = 1_024
# How similar the items of a centre are: as in `native/scan/examples`, and less.
_SPREADS = {"": 1.5, "tight.": 0.5}
_TURN_S, _TURNS = 1.0, 7
_FLAT, _IVF_PEERS = ("faiss_flat", "faiss_sqfp16", "faiss_sq8"), ("faiss_ivf1024", "faiss_ivf4096")
# By world. Graphs take minutes to build, and hnswlib is the fastest.
_SMALL_PEERS = {"": ("hnswlib", "usearch_f16", "usearch_i8"), "tight.": ("hnswlib",)}


def measure(note: Note, result: Result, *, quick: bool) -> None:
    """Measure searches in all items, in fewer items, and in cells; without peers their ratios are missing."""
    items, small = (_QUICK_ITEMS, _QUICK_SMALL) if quick else (_ITEMS, _SMALL)
    is_ready = not quick and bool(ready_environments(INDEX_PEERS, note))
    for prefix, spread in list(_SPREADS.items())[: 1 if quick else None]:
        note(f"vectors around centres, spread {spread}")
        vectors = Vectors.made(items, spread)
        with tempfile.TemporaryDirectory(prefix="streamlearn-bench-") as folder:
            scans = _Scans(vectors, result, note, prefix, 0.1 if quick else _TURN_S)
            vectors.save(Path(folder), (items, small))
            if not is_ready:
                scans.measure(small, None)
                continue
            python = INDEX_PEERS["vectors"].build(Cache())
            try:
                with ReadsOfPeer([str(python), "-m", _MODULE, folder], Path(folder)) as peer:
                    note(f"in turns with {peer.way}")
                    scans.measure(small, peer)
            except ServiceError as error:
                note(f"peers are left out: {error}")


class _Scans:
    """The searches of one world; `prefix` begins the names of its figures."""

    def __init__(self, vectors: Vectors, result: Result, note: Note, prefix: str, turn_s: float) -> None:
        self._vectors, self._result, self._note = vectors, result, note
        self._prefix, self._turn_s = prefix, turn_s

    def measure(self, small: int, peer: ReadsOfPeer | None) -> None:
        items = self._vectors.items
        if not self._prefix:
            everything = blocks_of(items)
            self._figure("recall_100", recall(everything, self._vectors.users, _scanned(self._vectors)))
            self._figure("recall_100_of_float32", recall(everything, self._vectors.users, self._truth(len(items))))
            self._compare(everything, len(items), 1, peer, ("faiss_sqfp16",))
            self._compare(everything, len(items), _BATCH, peer, _FLAT)
            del everything
        few, peers = blocks_of(items[:small]), _SMALL_PEERS[self._prefix]
        self._figure("recall_100_of_float32_2e5", recall(few, self._vectors.users, self._truth(small)))
        self._compare(few, small, _BATCH, peer, peers, name="scan_2e5", k=TRUTH)
        self._least("ratio_hnsw_2e5", peers)
        del few
        self._cells(peer)
        self._least("ratio_faiss_ivf", _IVF_PEERS)

    def _cells(self, peer: ReadsOfPeer | None) -> None:
        items = self._vectors.items
        self._note("cells")
        begin_s = time.thread_time()
        cells = min(_CELLS, len(items) // 64)
        blocks = blocks_of(items).in_cells(cells)
        self._figure("ivf_build_s", time.thread_time() - begin_s)
        truth, users = self._truth(len(items)), self._vectors.users
        for probes in (round(2 ** (step / 4)) for step in range(41)):
            if (share := recall(blocks, users, truth, probes)) >= _RECALL or probes >= cells:
                break
        self._figure("ivf_probes", probes)
        self._figure("ivf_recall", share)
        self._compare(blocks, len(items), _BATCH, peer, _IVF_PEERS, name="ivf", k=TRUTH, probes=probes)

    def _compare(
        self,
        blocks: Any,
        items: int,
        users: int,
        peer: ReadsOfPeer | None,
        indexes: Sequence[str],
        *,
        name: str = "scan",
        k: int = _K,
        probes: int | None = None,
    ) -> None:
        """Measure ours and indexes of the peer in turns."""
        ours = _Turns(blocks, self._vectors.users, users, k, probes)
        turns: dict[str, Turn] = {"ours": ours.turn}
        for index in indexes if peer else ():
            if turn := self._built(peer, index, items, users, k):
                turns[index] = turn
        rounds: dict[str, list[float]] = {side: [] for side in turns}
        for _ in range(_TURNS):
            for side, turn in turns.items():
                rounds[side].append(turn(self._turn_s))
        self._figure(f"{name}_{users}_ms", statistics.median(rounds["ours"]))
        for index in (index for index in turns if index != "ours"):
            pairs = zip(rounds[index], rounds["ours"], strict=True)
            self._figure(f"{index}_{users}_ms", statistics.median(rounds[index]))
            name = f"{self._prefix}ratio_{index}" + ("_1" if users == 1 else "")
            self._result.ratios[name] = statistics.median(theirs / own for theirs, own in pairs)
            self._note(f"{name} {self._result.ratios[name]:.3g}")
            assert peer is not None
            peer.ask(json.dumps({"do": "drop", "index": index}))

    def _built(self, peer: ReadsOfPeer | None, index: str, items: int, users: int, k: int) -> Turn | None:
        """Return the turn of an index of the peer; None if it does not find enough."""
        assert peer is not None
        given = peer.ask(json.dumps({"do": "build", "index": index, "items": items}))
        tuned = peer.ask(json.dumps({"do": "tune", "index": index, "items": items, "recall": _RECALL}))
        self._note(f"{index}: built in {given['build_s']:.1f} s, effort {tuned['effort']}, recall {tuned['recall']}")
        self._figure(f"{index}_recall", tuned["recall"])
        self._figure(f"{index}_build_s", given["build_s"])
        if tuned["recall"] < _RECALL:
            return None
        order = {"do": "turn", "index": index, "users": users, "k": k}
        return lambda seconds: float(peer.ask(json.dumps({**order, "seconds": seconds}))["ms"])

    def _least(self, name: str, indexes: Sequence[str]) -> None:
        """Give the ratio to the fastest of some indexes a name."""
        ratios = (self._result.ratios.get(f"{self._prefix}ratio_{index}") for index in indexes)
        if known := [ratio for ratio in ratios if ratio is not None]:
            self._result.ratios[f"{self._prefix}{name}"] = min(known)

    def _truth(self, items: int) -> Ids:
        return self._vectors.truth(items)

    def _figure(self, name: str, value: float) -> None:
        self._result.figures[f"{self._prefix}{name}"] = value
        self._note(f"{self._prefix}{name} {value:.4g}")


class _Turns:
    """Our searches for some users at once, other ones each time."""

    def __init__(self, blocks: Any, users: npt.NDArray[np.float32], count: int, k: int, probes: int | None) -> None:
        self._blocks, self._users, self._count, self._k, self._probes = blocks, users, count, k, probes

    def turn(self, seconds: float) -> float:
        """Search for so long; return the median milliseconds a user."""
        until_s, taken_s = time.perf_counter() + seconds, list[float]()
        while not taken_s or time.perf_counter() < until_s:
            begin = len(taken_s) * self._count % (len(self._users) - self._count + 1)
            users, begin_s = self._users[begin : begin + self._count], time.thread_time()
            self._blocks.search(users, self._k, probes=self._probes)
            taken_s.append(time.thread_time() - begin_s)
        return 1e3 * statistics.median(taken_s) / self._count


def recall(blocks: Any, users: npt.NDArray[np.float32], truth: Ids, probes: int | None = None) -> float:
    """Return the share of the true best that a search finds."""
    keys, _, ends = blocks.search(users, truth.shape[1], probes=probes)
    found = np.split(keys.astype(np.int64), ends[:-1])
    return sum(len(np.intersect1d(*pair)) for pair in zip(found, truth, strict=True)) / truth.size


def _scanned(vectors: Vectors) -> Ids:
    """Return the best stored rows of each user by products of float64, (users, TRUTH)."""
    values, scales = encoded(vectors.items)
    rows = values.astype(np.float32) * scales[:, None]
    best = []
    for user in vectors.users:
        near = np.argpartition(-(rows @ user), 2 * TRUTH)[: 2 * TRUTH]
        exact = (values[near].astype(np.float64) @ user.astype(np.float64)) * scales[near]
        best.append(near[np.argsort(-exact, kind="stable")[:TRUTH]])
    return np.stack(best)
