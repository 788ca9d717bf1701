"""Our parameter server in the trial of its peers: a shard on one core, its client on the other.

Like a peer, it runs in its own process, and starts the shard as another process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from benchmarks.keys import BATCH_KEYS, DIM, Keys, every_bit, uniform, zipf
from benchmarks.peers.answer import Order, Turn, Wrong, answer_in_turns
from benchmarks.peers.remote import RATE, START, cores_apart, remote
from streamlearn.features import TableSpec
from streamlearn.ps import Epoch, Place, PsClient, ShardServer, Shelf
from streamlearn.settings import PsSettings
from streamlearn.table import Adagrad, TableOptions, TableSet
from streamlearn.versions import Cut, Head, VersionWriter, open_store, table_record

__all__ = ["Rows"]

_MODEL = "bench"
_OPTIONS = TableOptions(
    TableSpec("main", DIM, 0.05),
    rows_max=20_000_000,
    optimizer=Adagrad(rate=RATE, initial_accumulator=START, epsilon=0.0),
)
_SMALL_KEYS = 1_000
_READ_S = 1.0
_CUTS = 7


class Rows:
    """The rows of a shard, through a client."""

    def __init__(self, client: PsClient) -> None:
        self._client = client
        self._out = np.empty((BATCH_KEYS, DIM), np.float32)

    def ready(self, array: NDArray[Any]) -> Any:
        """Return ids as 64-bit keys; gradients unchanged."""
        return every_bit(Keys(1).of(array)) if array.dtype == np.int64 else array

    def pull(self, ids: Any) -> NDArray[np.float32]:
        """Pull rows into one buffer, as packing does."""
        return self._client.pull("main", ids, out=self._out[: len(ids)])

    def push(self, ids: Any, gradients: Any) -> None:
        """Push gradients."""
        self._client.push("main", ids, gradients, now_ms=0)


@contextmanager
def _served(order: Order, folder: str, *, tcp: bool = True) -> Iterator[PsClient]:
    """Start a shard on another core, fill it with all keys, and return a client."""
    core, _ = cores_apart()
    listen = "127.0.0.1:0" if tcp else f"unix:{folder}/shard"
    shard = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.ours.streamlearn_ps", "serve", listen, folder],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )
    assert shard.stdout is not None
    try:
        address = shard.stdout.readline().strip()
        if not address:
            message = "the shard did not start"
            raise Wrong(message)
        settings = PsSettings(addresses=[address])
        with PsClient.connect(_MODEL, [_OPTIONS], settings) as client:
            client.restore(Epoch(1), None)
            zeros = np.zeros((BATCH_KEYS, DIM), np.float32)
            keys = Keys(1)
            for begin in range(0, order.keys_count, BATCH_KEYS):
                client.push("main", every_bit(keys.between(begin, begin + BATCH_KEYS)), zeros, now_ms=0)
            yield client
    finally:
        shard.kill()
        shard.wait(10)


def _remote(order: Order, turn: Turn) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="streamlearn-bench-") as folder, _served(order, folder) as client:
        return remote(Rows(client), order, turn) | _two_callers(order, client)


def _unix(order: Order, turn: Turn) -> dict[str, float]:
    with (
        tempfile.TemporaryDirectory(prefix="streamlearn-bench-") as folder,
        _served(order, folder, tcp=False) as client,
    ):
        return {f"unix_{name}": value for name, value in remote(Rows(client), order, turn).items()}


def _two_callers(order: Order, client: PsClient) -> dict[str, float]:
    """Measure two threads that call at once, as in a trainer that reads ahead."""
    figures = {}
    gradients = np.ones((BATCH_KEYS, DIM), np.float32)
    for law, draw in (("zipf", zipf), ("uniform", uniform)):
        batches = [every_bit(Keys(1).of(ids)) for ids in np.split(draw(order.keys_count, 20 * BATCH_KEYS, 3), 20)]
        for verb in ("pull", "push"):

            def work(half: int, verb: str = verb, batches: list[Any] = batches) -> None:
                rows = Rows(client)
                for keys in batches[half::2]:
                    rows.pull(keys) if verb == "pull" else rows.push(keys, gradients)

            threads = [threading.Thread(target=work, args=(half,)) for half in range(2)]
            began = time.perf_counter()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            figures[f"{verb}_{law}_two_callers"] = len(batches) * BATCH_KEYS / (time.perf_counter() - began)
    return figures


def _export(order: Order, turn: Turn) -> dict[str, float]:
    """Measure small pulls while the shard seals and exports every key, and in between; medians of some versions."""
    quiet: list[float] = []
    busy: list[float] = []
    longest: list[float] = []
    took: list[float] = []
    with tempfile.TemporaryDirectory(prefix="streamlearn-bench-") as folder, _served(order, folder) as client:
        small = np.split(zipf(order.keys_count, 500 * _SMALL_KEYS, 5), 500)
        reads = cycle([every_bit(Keys(1).of(ids)) for ids in small])
        tables = (table_record(TableSet([_OPTIONS]), "main"),)
        _pulls(client, reads, time.perf_counter() + _READ_S)
        for version in range(1, _CUTS + 1):
            quiet.append(float(np.percentile(_pulls(client, reads, time.perf_counter() + _READ_S), 99)))
            head = Head(
                model=_MODEL,
                run=1,
                version=version,
                kind="base",
                parent=None,
                fingerprint="bench",
                windows="bench",
                tables=tables,
            )
            cut = _Cut(client, head, folder)
            cut.start()
            pulls = _pulls(client, reads, cut)
            took.append(cut.finish())
            busy.append(float(np.percentile(pulls, 99)))
            longest.append(float(np.max(pulls)))
    return {
        "pull_quiet_p99_ms": float(np.median(quiet)),
        "pull_export_p99_ms": float(np.median(busy)),
        "pull_export_max_ms": float(np.median(longest)),
        "pull_export_p99_to_quiet": float(np.median(np.array(busy) / np.array(quiet))),
        "export_rows_per_s": order.keys_count / float(np.median(took)),
    }


class _Cut(threading.Thread):
    """A thread that seals and exports a version during the pulls."""

    def __init__(self, client: PsClient, head: Head, folder: str) -> None:
        super().__init__()
        self._client, self._head, self._folder = client, head, folder
        self._files: Any = None
        self._took_s = 0.0

    def run(self) -> None:
        """Seal and export the version."""
        began = time.perf_counter()
        self._client.seal(self._head.version)
        self._files = self._client.export(self._head)
        self._took_s = time.perf_counter() - began

    def finish(self) -> float:
        """Commit the version; return the seconds of sealing and exporting."""
        self.join()
        if self._files is None:
            message = f"version {self._head.version} was not exported"
            raise Wrong(message)
        self._client.commit(VersionWriter(open_store(self._folder), self._head).finish(Cut(), self._files).ref)
        return self._took_s


def _pulls(client: PsClient, reads: Iterator[Any], until: float | _Cut) -> NDArray[np.float64]:
    """Return the milliseconds of each small pull, until a time or until a version is exported."""
    out, taken = np.empty((_SMALL_KEYS, DIM), np.float32), []
    for keys in reads:
        began = time.perf_counter()
        client.pull("main", keys, out=out)
        ended = time.perf_counter()
        taken.append(ended - began)
        if not until.is_alive() if isinstance(until, _Cut) else ended > until:
            break
    return np.array(taken) * 1e3


def _serve(listen: str, folder: str) -> None:
    settings = msgspec.structs.replace(PsSettings(), listen=[listen])
    server = ShardServer(Place(), [_OPTIONS], Shelf(open_store(folder), _MODEL), settings)
    print(server.addresses[0], flush=True)
    threading.Event().wait(900)
    server.stop()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        _serve(*sys.argv[2:4])
    else:
        answer_in_turns({"remote": _remote, "unix": _unix, "export": _export})
