"""The parts of the benchmark of versions, each in its own process, so that memory can be measured."""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from benchmarks.keys import BATCH_KEYS, DIM, Keys, every_bit
from streamlearn.features import TableSpec
from streamlearn.ps import Epoch, PsClient, Shelf
from streamlearn.settings import PsSettings
from streamlearn.settings.versions import ReplicaSettings
from streamlearn.table import Adagrad, TableOptions, TableSet
from streamlearn.versions import (
    Chain,
    Committed,
    Cut,
    Head,
    History,
    PointerLog,
    Replica,
    Store,
    Verdict,
    VersionWriter,
    compact,
    load,
    open_registry,
    open_store,
    table_record,
    write_verdict,
)
from streamlearn.versions.pointer import moves
from streamlearn.versions.store.settings import LoadSettings

__all__: list[str] = []

_MODEL = "bench"
_THREADS = 2


def _options(rows: int) -> TableOptions:
    spec = TableSpec("main", DIM, 0.05)
    return TableOptions(spec, rows_max=8 * rows, optimizer=Adagrad(rate=0.05, initial_accumulator=0.1))


def _serving(rows: int) -> TableSet:
    return TableSet([msgspec.structs.replace(_options(rows), optimizer=None)])


class _Trainer:
    """Tables in this process, and their versions."""

    def __init__(self, store: Store, rows: int) -> None:
        self.store, self._keys = store, Keys(1)
        self._options = _options(rows)
        shelf = Shelf(store, _MODEL)
        self.client = PsClient.local([self._options], shelf, PsSettings(threads=_THREADS))
        self.client.restore(Epoch(1), None)
        self.last: Committed | None = None

    def learn(self, ids: NDArray[np.int64]) -> None:
        gradients = np.full((BATCH_KEYS, DIM), 0.01, np.float32)
        for begin in range(0, len(ids), BATCH_KEYS):
            keys = every_bit(self._keys.of(ids[begin : begin + BATCH_KEYS]))
            self.client.push("main", keys, gradients[: len(keys)], now_ms=0)

    def publish(self) -> float:
        """Publish a version; return the seconds from before the seal until its manifest is written."""
        version = 1 if self.last is None else self.last.manifest.version + 1
        record = table_record(TableSet([self._options]), "main")
        head = Head(
            model=_MODEL,
            run=1,
            version=version,
            kind="base" if self.last is None else "delta",
            parent=None if self.last is None else self.last.ref,
            fingerprint="bench",
            windows="bench",
            tables=(record,),
        )
        begin = time.perf_counter()
        self.client.seal(version)
        done = VersionWriter(self.store, head).finish(Cut(), self.client.export(head))
        taken = time.perf_counter() - begin
        self.client.commit(done.ref)
        self.last = done
        return taken


def _publish(folder: str, rows: int, changed: int, versions: int) -> dict[str, float]:
    store = open_store(folder)
    trainer = _Trainer(store, rows)
    trainer.learn(np.arange(rows))
    base_s = trainer.publish()
    chance, taken = np.random.default_rng(2), []
    for _ in range(versions):
        trainer.learn(np.sort(chance.choice(rows, changed, replace=False)))
        taken.append(trainer.publish())
    assert trainer.last is not None
    served = sum(file.bytes for file in trainer.last.manifest.files if file.kind in ("rows", "gone"))
    whole = sum(file.bytes for file in trainer.last.manifest.files)
    return {
        "publish_ms": statistics.median(taken) * 1e3,
        "publish_max_ms": max(taken) * 1e3,
        "publish_base_rows_per_s": rows / base_s,
        "bytes_per_changed_row": served / changed,
        "training_bytes_per_changed_row": whole / changed,
    }


def _apply(folder: str, rows: int, changed: int, versions: int) -> dict[str, float]:
    store, tables = open_store(folder), _serving(rows)
    limits = LoadSettings(stage_threads=_THREADS)
    base = load(Chain.find(store, _MODEL, 1), tables, settings=limits)
    since, rates = base.ref, []
    for version in range(2, 2 + versions):
        begin = time.perf_counter()
        done = load(Chain.find(store, _MODEL, version, since=since), tables, settings=limits)
        tables.activate(version)
        rates.append(changed / (time.perf_counter() - begin))
        tables.retire(done.versions[0].version - 1)
        since = done.ref
    return {"replica_apply_rows_per_s": statistics.median(rates), "replica_apply_min_rows_per_s": min(rates)}


def _bootstrap(folder: str, rows: int, changed: int, versions: int) -> dict[str, float]:
    store = open_store(folder)
    seconds = []
    for _ in range(3):
        begin = time.perf_counter()
        tables = _serving(rows)
        load(Chain.find(store, _MODEL, 1), tables, settings=LoadSettings(stage_threads=_THREADS))
        seconds.append(time.perf_counter() - begin)
        del tables
        gc.collect()
    return {"bootstrap_s": statistics.median(seconds), "bootstrap_rows_per_s": rows / statistics.median(seconds)}


def _compact(folder: str, rows: int, changed: int, versions: int) -> dict[str, float]:
    store = open_store(folder)
    base = Chain.find(store, _MODEL, 1).manifest
    base_bytes = sum(file.bytes for file in base.files)
    before = _anonymous_bytes()
    most, ended = [before], threading.Event()

    def watch() -> None:
        while not ended.wait(0.02):
            most[0] = max(most[0], _anonymous_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    begin = time.perf_counter()
    done = compact(store, _MODEL)
    taken = time.perf_counter() - begin
    ended.set()
    watcher.join()
    return {
        "compact_rows_per_s": done.rows / taken,
        "compact_memory_to_base": (most[0] - before) / base_bytes,
        "compact_resident_bytes_max": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0,
    }


def _anonymous_bytes() -> int:
    """Return the anonymous resident memory. The system can reclaim that of mapped files at any time."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def _small(folder: str, registry: str) -> dict[str, float]:
    """Publish three versions of a small model with verdicts, and point to the newest."""
    store = open_store(folder)
    trainer = _Trainer(store, 100_000)
    for _ in range(3):
        trainer.learn(np.arange(100_000))
        trainer.publish()
    history = History(store, _MODEL)
    for version in history.read():
        write_verdict(store, history.folder(version.ref), Verdict(version=version.ref, outcome="passed"))
    known = history.read()
    log = PointerLog(store, _MODEL)
    pointer = log.move(lambda now: moves.publish(now, known, known[-1].version, 1), by="bench")
    with open_registry(registry, _MODEL) as opened:
        opened.announce(pointer)
        opened.put_versions(known)
    return {}


def _node(folder: str, registry: str, name: str) -> None:
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    make: Callable[[], TableSet] = lambda: _serving(100_000)  # noqa: E731
    with open_registry(registry, _MODEL) as opened:
        replica = Replica(
            open_store(folder), _MODEL, make, name=name, registry=opened, settings=ReplicaSettings(beat_s=1.0)
        )
        replica.start()
        replica.wait_ready(60.0)
        print("ready", flush=True)
        ended.wait(600)
        replica.close()


def main(words: list[str]) -> None:
    """Measure a part and print its figures as one line."""
    parts: dict[str, Any] = {"publish": _publish, "apply": _apply, "bootstrap": _bootstrap, "compact": _compact}
    if words[0] == "node":
        _node(*words[1:4])
        return
    os.environ.setdefault("OMP_NUM_THREADS", str(_THREADS))
    if words[0] == "small":
        print(json.dumps(_small(*words[1:3])))
        return
    rows, changed, versions = (int(word) for word in words[2:5])
    print(json.dumps(parts[words[0]](words[1], rows, changed, versions)))


if __name__ == "__main__":
    main(sys.argv[1:])
