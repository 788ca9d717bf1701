"""Indexes of FAISS, hnswlib and USearch, built and searched by one thread while it is their turn.

It runs in an environment of its own. The argument is a folder with the vectors of items and users, and the truth for
some users. Each line on stdin is an order, and its answer a line of JSON. Times are of the processor.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

import faiss
import hnswlib
import numpy as np
import numpy.typing as npt
from usearch.index import Index

from benchmarks.peers.answer import reserve_stdout

__all__ = ["main"]

_WAIT_S_MAX = 3_600
Floats: TypeAlias = npt.NDArray[np.float32]
Ids: TypeAlias = npt.NDArray[np.int64]


@dataclass
class Built:
    """An index with all items.

    Attributes:
        search: Returns the ids of the best items of some users.
        effort: Sets how thoroughly it searches; None for an exact index.
    """

    search: Callable[[Floats, int], Ids]
    effort: Callable[[int], None] | None = None


def main() -> None:
    """Build and search indexes as stdin orders, until it ends."""
    signal.alarm(_WAIT_S_MAX)
    stdout, folder = reserve_stdout(), Path(sys.argv[1])
    faiss.omp_set_num_threads(1)
    names = ", ".join(f"{name} {version(name)}" for name in ("faiss-cpu", "hnswlib", "usearch"))
    built: dict[str, Built] = {}
    given: dict[str, Any] = {"way": names}
    while True:
        stdout.write(json.dumps(given) + "\n")
        stdout.flush()
        if not (line := sys.stdin.readline()):
            return
        order = json.loads(line)
        name, users = order["index"], np.load(folder / "users.npy")
        if order["do"] == "build":
            items = np.load(folder / "items.npy", mmap_mode="r")[: order["items"]]
            begin_s = time.process_time()
            built[name] = _BUILDS[name](np.ascontiguousarray(items))
            given = {"build_s": time.process_time() - begin_s}
        elif order["do"] == "tune":
            truth = np.load(folder / f"truth-{order['items']}.npy")
            given = _tuned(built[name], users, truth, order["recall"])
        elif order["do"] == "turn":
            given = _turn(built[name], users, order["users"], order["k"], order["seconds"])
        else:
            del built[name]
            given = {}


def _turn(index: Built, users: Floats, count: int, k: int, seconds: float) -> dict[str, float]:
    """Search for so long, for other users each time; return the median milliseconds a user."""
    until_s, taken_s = time.perf_counter() + seconds, list[float]()
    while not taken_s or time.perf_counter() < until_s:
        begin = len(taken_s) * count % (len(users) - count + 1)
        begin_s = time.process_time()
        index.search(users[begin : begin + count], k)
        taken_s.append(time.process_time() - begin_s)
    return {"ms": 1e3 * float(np.median(taken_s)) / count}


def _tuned(index: Built, users: Floats, truth: Ids, least: float) -> dict[str, float]:
    """Choose the least effort with a recall, or else the most, and return both."""
    efforts = [round(2 ** (step / 4)) for step in range(52)]
    for effort in efforts if index.effort else [0]:
        if index.effort:
            index.effort(effort)
        found = index.search(users, truth.shape[1])
        recall = float(np.mean([len(np.intersect1d(*pair)) for pair in zip(found, truth, strict=True)]))
        if (recall := recall / truth.shape[1]) >= least:
            break
    return {"effort": effort, "recall": recall}


def _flat(items: Floats) -> Built:
    return _of_faiss(faiss.IndexFlatIP(items.shape[1]), items)


def _scalar(kind: int) -> Callable[[Floats], Built]:
    def build(items: Floats) -> Built:
        return _of_faiss(faiss.IndexScalarQuantizer(items.shape[1], kind, faiss.METRIC_INNER_PRODUCT), items)

    return build


def _inverted(lists: int) -> Callable[[Floats], Built]:
    """Lists of float16 vectors; FAISS warns of fewer than 39 samples a list."""

    def build(items: Floats) -> Built:
        quantizer = faiss.IndexFlatIP(items.shape[1])
        kind, metric = faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT
        index = faiss.IndexIVFScalarQuantizer(quantizer, items.shape[1], min(lists, len(items) // 64), kind, metric)
        index.train(items[: 50 * lists])
        built = _of_faiss(index, items)
        built.effort = lambda effort: setattr(index, "nprobe", effort)
        built.search = lambda users, k, kept=(quantizer, index): kept[1].search(users, k)[1]  # type: ignore[misc]
        return built

    return build


def _of_faiss(index: Any, items: Floats) -> Built:
    if not index.is_trained:
        index.train(items[:100_000])
    index.add(items)
    return Built(lambda users, k: index.search(users, k)[1])


def _hnswlib(items: Floats) -> Built:
    index = hnswlib.Index("ip", items.shape[1])
    index.init_index(len(items), ef_construction=100, M=16)
    index.set_num_threads(1)
    index.add_items(items, num_threads=1)

    def search(users: Floats, k: int) -> Ids:
        found: Ids = index.knn_query(users, k, num_threads=1)[0].astype(np.int64)
        return found

    return Built(search, lambda effort: index.set_ef(max(effort, 100)))


def _usearch(kind: str) -> Callable[[Floats], Built]:
    def build(items: Floats) -> Built:
        index = Index(ndim=items.shape[1], metric="ip", dtype=kind, connectivity=16, expansion_add=100)
        index.add(np.arange(len(items)), items, threads=1)

        def search(users: Floats, k: int) -> Ids:
            found: Ids = index.search(users, k, threads=1).keys.astype(np.int64)
            return found

        return Built(search, lambda effort: setattr(index, "expansion_search", max(effort, 100)))

    return build


_BUILDS: dict[str, Callable[[Floats], Built]] = {
    "faiss_flat": _flat,
    "faiss_sqfp16": _scalar(faiss.ScalarQuantizer.QT_fp16),
    "faiss_sq8": _scalar(faiss.ScalarQuantizer.QT_8bit),
    "faiss_ivf1024": _inverted(1_024),
    "faiss_ivf4096": _inverted(4_096),
    "hnswlib": _hnswlib,
    "usearch_f16": _usearch("f16"),
    "usearch_i8": _usearch("i8"),
}


if __name__ == "__main__":
    main()
