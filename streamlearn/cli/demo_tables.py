"""The demo's tables: a row for every value of every slot in samples, on two shards, published, followed, gone back.

There is no model yet, so rows learn from a gradient of ones: what is shown is what tables hold and what versions
cost, not what anybody likes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from streamlearn.errors import StreamlearnError
from streamlearn.ps import Epoch, PsClient
from streamlearn.publisher import Lineage, Noted, Publisher
from streamlearn.samples import SlotColumns
from streamlearn.table import TableSet, declared_tables
from streamlearn.versions import Cut, History, Replica, open_registry, open_store

if TYPE_CHECKING:
    from streamlearn.apps import AppFolder
    from streamlearn.cli.demo_samples import Learned
    from streamlearn.cli.demo_shards import DemoShards

__all__ = ["DemoTables", "slot_keys"]

_INTERVAL_S = 0.5
_NODES = 2
_FOLLOW_S_MAX = 30.0
_LOOK_S = 0.01


class DemoTables:
    """Tables filled from samples and published as versions; nodes follow, and one version is rolled back.

    Args:
        folder: The application.
        shards: Where its tables are.
        store: URL of the store of versions.

    Attributes:
        seconds: How long it took so far.
    """

    def __init__(self, folder: AppFolder, shards: DemoShards, store: str) -> None:
        app, settings = folder.app, folder.settings
        self._app, self._shards, self._url = app, shards, store
        self._registry_url = f"sqlite://{store}/registry.db"
        self._ends = ExitStack()
        options = declared_tables(app.features, settings.tables)
        opened = open_store(store)
        self._registry = self._ends.enter_context(open_registry(self._registry_url, app.name))
        ps = msgspec.structs.replace(settings.ps, addresses=shards.addresses)
        self._client = self._ends.enter_context(PsClient.connect(app.name, options, ps))
        often = msgspec.structs.replace(settings.publisher, publish_interval_s=_INTERVAL_S)
        self._publisher = self._ends.enter_context(
            Publisher(self._client, opened, Lineage.of(app, options), often, registry=self._registry)
        )
        self._history = History(opened, app.name)
        self._learned = self._cut = 0
        self.seconds = 0.0
        resumed = self._publisher.start()
        self._run = resumed.run
        self._client.restore(Epoch(self._run), resumed.ref)
        self._publisher.first(self._noted)
        serving = [msgspec.structs.replace(one, optimizer=None, admission=None) for one in options]
        self._nodes = [
            self._ends.enter_context(
                Replica(opened, app.name, lambda: TableSet(serving), name=f"node-{number}", registry=self._registry)
            )
            for number in range(1, _NODES + 1)
        ]

    @property
    def published(self) -> int:
        """How many versions there are by now."""
        committed = self._publisher.committed
        return 0 if committed is None else committed.version

    def add(self, learned: Learned | None) -> None:
        """Let the rows of everything in some samples learn; a version is published whenever one is due."""
        begin = time.perf_counter()
        if learned is not None:
            self._push(learned)
        self._publisher.boundary(self._noted)
        self.seconds += time.perf_counter() - begin

    def _push(self, learned: Learned) -> None:
        batch = learned.batch
        rows = np.flatnonzero(learned.settled.learn | learned.settled.correct)
        if not len(rows):
            return
        now_ms = int(batch.settle_time_ms[rows].max())
        for slot in self._app.features.slots:
            side, of = (batch.user, batch.request_index[rows]) if slot.side == "user" else (batch.item, rows)
            keys = slot_keys(side.slots[slot.name], of)
            ones = np.ones((len(keys), slot.dim), np.float32)
            self._client.push(slot.table, keys, ones, now_ms=now_ms)
            self._learned += len(keys)

    def finish(self) -> None:
        """Publish what is left, and wait until all nodes answer with it."""
        self._publisher.settle(_FOLLOW_S_MAX)
        if self._cut < self._learned:
            _wait(lambda: self._publisher.boundary(self._noted), "the last version to be cut")
        self._publisher.settle(_FOLLOW_S_MAX)
        committed = self._publisher.committed
        assert committed is not None
        self._wait_for(committed.version)

    def facts(self) -> dict[str, Any]:
        """What they hold, by table, what versions cost, how fast one is taken back, and what a killed shard costs."""
        facts: dict[str, Any] = {"keys learned/s": round(self._learned / max(self.seconds, 1e-9))}
        shards = self._client.stats()
        for name in self._client.dims:
            facts |= {
                f"table {name}: rows on {len(shards)} shards": sum(one.tables[name].keys for one in shards),
                f"table {name}: bytes": sum(one.tables[name].bytes for one in shards),
            }
        known = self._history.read()
        return facts | {
            "versions published": len(known),
            "versions that passed the judge": sum(one.outcome == "passed" for one in known),
            "bytes of versions": sum(one.bytes for one in known),
            "killed shard back after, s": round(self._killed_s(), 2),
            **self._rolled_back(),
        }

    def close(self) -> None:
        """Let go of nodes, shards and registry."""
        self._ends.close()

    def _noted(self) -> Noted:
        self._cut = self._learned
        return Noted(Cut(metrics={"samples": float(self._learned)}), self._learned)

    def _wait_for(self, version: int) -> None:
        def is_there() -> bool:
            active = [node.status().active for node in self._nodes]
            return all(one is not None and one.version == version for one in active)

        _wait(is_there, f"all nodes to answer with version {version}")

    def _rolled_back(self) -> dict[str, Any]:
        """Take the newest version back, as an operator does; every node answers with the one before it."""
        begin = time.perf_counter()
        done = self._verb("rollback", "--steps", "1", "--reason", "the demo does not like it")
        whole_ms = (time.perf_counter() - begin) * 1e3
        self._wait_for(done["active"])
        facts = {f"version {done['active']} back on {one['node']}, ms": round(one["ms"], 1) for one in done["acted"]}
        if len(facts) != _NODES:
            message = f"{len(facts)} of {_NODES} nodes followed a rollback: {done}"
            raise StreamlearnError(message, help="this is a defect: please report it with this output")
        return {**facts, "the whole rollback command, ms": round(whole_ms)}

    def _verb(self, verb: str, *words: str) -> dict[str, Any]:
        command = [sys.executable, "-m", "streamlearn", verb, self._app.name, *words, "--json"]
        where = ["--store", self._url, "--registry", self._registry_url]
        done = subprocess.run([*command, *where], stdout=subprocess.PIPE, check=True, timeout=_FOLLOW_S_MAX)
        said: dict[str, Any] = json.loads(done.stdout)
        return said

    def _killed_s(self) -> float:
        """Kill a shard; seconds until all shards stand at the newest version again, with every row as it was."""
        committed = self._publisher.committed
        assert committed is not None
        begin = time.perf_counter()
        self._shards.kill(1)
        self._shards.start_again(1)
        self._client.restore(Epoch(self._run, 1), committed)
        taken = time.perf_counter() - begin
        with self._nodes[0].reading(committed.version) as read:
            for changes in read.tables.changed(None, committed.version):
                found = self._client.pull(changes.table, changes.keys, distinct=True)
                if found.tobytes() != changes.rows.tobytes():
                    message = f"rows of table {changes.table} are not those of version {committed.version}"
                    raise StreamlearnError(message, help="this is a defect: please report it with this output")
        return taken


def _wait(is_so: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + _FOLLOW_S_MAX
    while not is_so():
        if time.monotonic() > until:
            message = f"waited {_FOLLOW_S_MAX:.0f} s for {what}"
            raise StreamlearnError(message, help="this is a defect: please report it with this output")
        time.sleep(_LOOK_S)


def slot_keys(column: SlotColumns, rows: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.uint64]:
    """The keys of a slot's values in some rows, all rows' one after another.

    Examples:
        >>> column = SlotColumns(np.array([5, 6, 7], np.uint64), np.array([0, 2, 2, 3], np.int32))
        >>> slot_keys(column, np.array([2, 0])).tolist()
        [7, 5, 6]
    """
    if column.offsets is None:
        alone: npt.NDArray[np.uint64] = column.keys[rows]
        return alone
    begins, counts = column.offsets[:-1][rows], np.diff(column.offsets)[rows]
    before = np.cumsum(counts) - counts
    found: npt.NDArray[np.uint64] = column.keys[np.repeat(begins - before, counts) + np.arange(int(counts.sum()))]
    return found
