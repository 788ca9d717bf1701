"""The demo's tables: a row for every value of every slot that was shown, on two shards, in versions, on a replica.

There is no model yet, so rows learn from a gradient of ones: what is shown is what tables hold and what versions
cost, not what anybody likes.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from streamlearn.errors import StreamlearnError
from streamlearn.features import keys_of
from streamlearn.ps import Epoch, PsClient
from streamlearn.table import TableSet, declared_tables
from streamlearn.versions import Chain, Cut, Head, VersionRef, VersionWriter, load, open_store, table_record

if TYPE_CHECKING:
    from streamlearn.apps import AppFolder
    from streamlearn.cli.demo_shards import DemoShards
    from streamlearn.events import EventColumns
    from streamlearn.features import Slot

__all__ = ["DemoTables", "shown_keys"]

_CUT_IMPRESSIONS = 20_000
_VERSIONS_KEPT = 3
_MOVES = 100


class DemoTables:
    """Tables filled from impressions, cut into a version every so many of them; a replica follows.

    Args:
        folder: The application.
        shards: Where its tables are.
        store: URL of the store of versions.

    Attributes:
        seconds: How long it took so far.
    """

    def __init__(self, folder: AppFolder, shards: DemoShards, store: str) -> None:
        app, settings = folder.app, folder.settings
        self._app, self._shards, self._store = app, shards, open_store(store)
        options = declared_tables(app.features, settings.tables)
        ps = msgspec.structs.replace(settings.ps, addresses=shards.addresses)
        self._client = PsClient.connect(app.name, options, ps)
        self._client.restore(Epoch(1), None)
        serving = [msgspec.structs.replace(one, optimizer=None, admission=None) for one in options]
        self._replica = TableSet(serving)
        learning = TableSet(options)
        self._records = tuple(table_record(learning, name) for name in learning.tables)
        self._newest: VersionRef | None = None
        self._version = self._since_cut = self._pushed = self._cut_bytes = 0
        self._cuts: list[float] = []
        self.seconds = 0.0

    def add(self, shown: EventColumns) -> None:
        """Let the rows of everything in some impressions learn."""
        begin = time.perf_counter()
        times = shown.columns["event_time_ms"]
        for slot in self._app.features.slots if len(shown) else ():
            keys = shown_keys(slot, shown)
            ones = np.ones((len(keys), slot.dim), np.float32)
            self._client.push(slot.table, keys, ones, now_ms=int(times.max()))
            self._pushed += len(keys)
        self._since_cut += len(shown)
        self.seconds += time.perf_counter() - begin
        if self._since_cut >= _CUT_IMPRESSIONS:
            self.cut()

    def cut(self) -> None:
        """Cut a version, commit it, and have the replica follow; it keeps the last few."""
        begin = time.perf_counter()
        self._since_cut = 0
        self._version += 1
        head = Head(
            model=self._app.name,
            run=1,
            version=self._version,
            kind="delta" if self._newest else "base",
            parent=self._newest,
            fingerprint=self._app.features.fingerprint,
            windows=self._app.window_settings,
            tables=self._records,
        )
        self._client.seal(self._version)
        done = VersionWriter(self._store, head).finish(Cut(), self._client.export(head))
        self._client.commit(done.ref)
        load(Chain.find(self._store, self._app.name, since=self._newest), self._replica)
        self._replica.activate(self._version)
        for version in self._replica.retained[:-_VERSIONS_KEPT]:
            self._replica.retire(version)
        self._newest = done.ref
        self._cut_bytes += sum(file.bytes for file in done.manifest.files)
        self._cuts.append(time.perf_counter() - begin)

    def facts(self) -> dict[str, Any]:
        """What they hold, by table, what versions cost, and what a killed shard costs."""
        facts: dict[str, Any] = {"keys learned/s": round(self._pushed / max(self.seconds, 1e-9))}
        shards = self._client.stats()
        for name, table in self._replica.tables.items():
            facts |= {
                f"table {name}: rows on {len(shards)} shards": sum(one.tables[name].keys for one in shards),
                f"table {name}: bytes": sum(one.tables[name].bytes for one in shards),
                f"table {name}: images of {len(self._replica.retained)} versions": table.stats().images,
            }
        return facts | {
            "versions cut": self._version,
            "bytes of versions": self._cut_bytes,
            "from cut to replica, ms": round(float(np.median(self._cuts)) * 1e3),
            "back to an older version, us": round(self._move_us(), 1),
            "killed shard back after, s": round(self._killed_s(), 2),
        }

    def close(self) -> None:
        """Let go of the shards."""
        self._client.close()

    def _move_us(self) -> float:
        """Microseconds until the replica follows another version."""
        oldest, newest = self._replica.retained[0], self._replica.retained[-1]
        taken = []
        for number in range(_MOVES):
            version = (oldest, newest)[number % 2]
            begin = time.perf_counter()
            self._replica.activate(version)
            taken.append(time.perf_counter() - begin)
        return float(np.median(taken)) * 1e6

    def _killed_s(self) -> float:
        """Kill a shard; seconds until all shards stand at the newest version again, with every row as it was."""
        begin = time.perf_counter()
        self._shards.kill(1)
        self._shards.start_again(1)
        self._client.restore(Epoch(1, 1), self._newest)
        taken = time.perf_counter() - begin
        for changes in self._replica.changed(None, self._version):
            found = self._client.pull(changes.table, changes.keys, distinct=True)
            if found.tobytes() != changes.rows.tobytes():
                message = f"rows of table {changes.table} are not those of version {self._version}"
                raise StreamlearnError(message, help="this is a defect: please report it with this output")
        return taken


def shown_keys(slot: Slot, shown: EventColumns) -> npt.NDArray[np.uint64]:
    """The keys of a slot's values, all rows' one after another."""
    path = f"{'user' if slot.side == 'user' else 'items'}.{slot.name}"
    offsets = shown.columns[f"{path}$"] if slot.value == "str" else None
    return keys_of(slot, shown.columns[path], offsets=offsets)
