"""Shard: the tables of one position, and how it obeys orders. It knows no network.

An answer can be lost, so any order may be repeated: the shard answers it again without obeying it twice.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from streamlearn.errors import EpochOver, ShardNotReady, TableBusy, VersionRefused
from streamlearn.ps import orders
from streamlearn.ps.orders import Epoch
from streamlearn.ps.place import Place
from streamlearn.ps.shard_export import ShardExport
from streamlearn.ps.shelf import Shelf
from streamlearn.settings import PsSettings
from streamlearn.table import TableOptions, TableSet, Upkeep
from streamlearn.versions import Head

__all__ = ["Shard", "ShardDoor"]

# The digest of a version that was committed without a `Commit` order.
_UNKNOWN_DIGEST = "untold"
_log = logging.getLogger("streamlearn.ps")


class ShardDoor(Protocol):
    """The access of clients to a shard's tables."""

    def open(self, tables: TableSet, epoch: Epoch) -> None:
        """Let clients of this epoch alone read and write the tables."""

    def close(self) -> None:
        """Stop reads and writes, and release the tables."""

    def served(self) -> Mapping[str, float]:
        """The counts of calls so far."""


class Shard:
    """One shard: its tables, its epoch, and the versions it has sealed and committed."""

    def __init__(
        self, place: Place, options: Sequence[TableOptions], shelf: Shelf, door: ShardDoor, settings: PsSettings
    ) -> None:
        self.place = place
        self.epoch: Epoch | None = None
        self._options = tuple(options)
        self._shelf, self._door, self._threads = shelf, door, settings.threads
        self._abandoned_max, self._end_wait_s_max = settings.exports_left_max, settings.export_end_wait_s_max
        self._tables: TableSet | None = None
        self._restored_by = 0  # the number of the order that began the epoch
        self._sha256 = ""  # the digest of the manifest of the newest committed version
        # The tables' state beside their rows: changes since the newest committed version, and all as of it.
        self._upkeep: dict[str, Upkeep] = {}
        self._committed: dict[str, Upkeep] = {}
        # The number of the newest `Expire`, and its counts so far.
        self._expired: tuple[int, dict[str, tuple[int, int, int, int]]] = (0, {})
        self._export: ShardExport | None = None
        self._abandoned: list[ShardExport] = []
        # One order is obeyed at a time; an export holds the lock only while it begins.
        self._lock = threading.Lock()

    @property
    def tables(self) -> TableSet:
        """Its tables; raises `ShardNotReady` if no trainer has restored it yet."""
        if self._tables is None:
            message = f"shard {self.place} has no tables yet"
            raise ShardNotReady(message, help="wait: the trainer restores all shards when it starts")
        return self._tables

    def obey(self, order: orders.Order) -> orders.Answer:
        """Obey an order and return the answer.

        Raises:
            EpochOver: The order is of another epoch than the shard.
            ShardNotReady: It has no tables yet.
            VersionRefused: A version is not in the state that the order needs.
            TableBusy: Other work must end first.
        """
        if isinstance(order, orders.Export):
            return self._obey_export(order)
        if isinstance(order, orders.Stats):
            # Answered without the lock: another order may load a version for an hour.
            return self._stats()
        with self._lock:
            if isinstance(order, orders.Restore):
                return self._restore(order)
            self._check_epoch(order.epoch)
            match order:
                case orders.Seal():
                    self._seal(order)
                case orders.Commit():
                    self._commit(order)
                case orders.Abandon():
                    self._abandon(order.version)
                case orders.Expire():
                    return self._expire(order)
                case orders.Remove():
                    self._remove(order)
            return orders.Done()

    def close(self) -> None:
        """Release the tables and abandon a running export."""
        with self._lock:
            self._leave_export()
            self._drop()

    def _check_epoch(self, epoch: Epoch) -> None:
        if self.epoch is None:
            message = f"an order of epoch {epoch}; shard {self.place} has no epoch yet"
            raise ShardNotReady(message, help="wait: the trainer restores all shards when it starts")
        if epoch != self.epoch:
            message = f"an order of epoch {epoch}; shard {self.place} is in epoch {self.epoch}"
            raise EpochOver(message, help="a newer recovery has begun: restore all shards under a higher epoch")

    def _restore(self, order: orders.Restore) -> orders.Restored:
        if self.epoch is not None and order.epoch < self.epoch:
            self._check_epoch(order.epoch)
        if order.epoch == self.epoch:
            if self._restored_by == order.number and self._holds(order.version, order.sha256):
                return orders.Restored(0, 0, 0.0)
            began = None if self._tables is None else self._newest()
            message = f"epoch {order.epoch} of shard {self.place} began at version {began}, not {order.version}"
            raise EpochOver(message, help="restore under a higher epoch")
        begin = time.monotonic()
        self._leave_export()
        self._door.close()
        self.epoch, self._restored_by = order.epoch, order.number
        try:
            tables, rows, size = self._tables_at(order)
            self._door.open(tables, order.epoch)
        except BaseException:
            # The epoch stays, so that an older trainer cannot return when a newer one fails to read a version.
            self._drop()
            raise
        self._tables, self._sha256 = tables, order.sha256
        self._upkeep, self._expired = {}, (0, {})
        seconds = time.monotonic() - begin
        fields = {"rows": rows, "bytes": size, "seconds": round(seconds, 3)}
        version = "no version" if order.version is None else f"version {order.version}"
        self._log("is at %s in epoch %s", version, order.epoch, extra=fields)
        return orders.Restored(rows, size, seconds)

    def _tables_at(self, order: orders.Restore) -> tuple[TableSet, int, int]:
        """Return tables as of a version: those in memory without later changes, or new ones read from files."""
        if self._tables is not None and self._holds(order.version, order.sha256):
            self._tables.discard(threads=self._threads)
            for name, upkeep in self._committed.items():
                self._tables[name].restore(upkeep)
            return self._tables, 0, 0
        self._drop()
        tables, rows, size = TableSet(self._options), 0, 0
        if order.version is not None:
            rows, size = self._shelf.load(order.version, order.sha256, tables, self.place)
        self._committed = {name: table.upkeep() for name, table in tables.tables.items()}
        return tables, rows, size

    def _holds(self, version: int | None, sha256: str) -> bool:
        return self._tables is not None and (self._newest(), self._sha256) == (version, sha256)

    def _drop(self) -> None:
        self._door.close()
        self._tables, self._sha256 = None, ""

    def _newest(self) -> int | None:
        retained = self.tables.retained
        return retained[-1] if retained else None

    def _seal(self, order: orders.Seal) -> None:
        tables = self.tables
        if tables.sealed == order.version:
            return
        if tables.sealed is not None and tables.sealed == order.committed:
            # The `Commit` order was lost.
            tables.commit(tables.sealed)
            self._commit_upkeep()
            self._sha256 = _UNKNOWN_DIGEST
        if tables.sealed is not None:
            # The cut failed, and the `Abandon` order was lost.
            self._abandon(tables.sealed)
        if self._newest() != order.committed:
            message = (
                f"the trainer reports version {order.committed} as committed; the newest that shard {self.place} "
                f"knows is {self._newest()}"
            )
            raise VersionRefused(message, help="restore all shards to the newest committed version")
        tables.seal(order.version)
        for name, table in tables.tables.items():
            changes = table.upkeep(changed_only=order.committed is not None)
            self._upkeep[name] = _merged(self._upkeep.get(name), changes)
        self._log("sealed version %d", order.version)

    def _commit_upkeep(self) -> None:
        for name, changes in self._upkeep.items():
            self._committed[name] = _merged(self._committed.get(name), changes)
        self._upkeep.clear()

    def _commit(self, order: orders.Commit) -> None:
        tables = self.tables
        if order.version not in tables.retained:
            tables.commit(order.version)
            self._commit_upkeep()
            tables.sweep(threads=self._threads)
            self._log("committed version %d", order.version)
        if order.version != self._newest():
            return  # a repeated order; a later version was committed since
        self._sha256 = order.sha256
        for version in tables.retained[:-1]:
            if version not in order.keep:
                try:
                    tables.retire(version, wait_ms_max=0, threads=self._threads)
                except TableBusy:
                    continue  # a reader holds it; the next commit retires it

    def _abandon(self, version: int) -> None:
        if self.tables.sealed != version:
            return
        if self._export is not None and self._export.is_running and not self._export.cancel(self._end_wait_s_max):
            message = f"version {version} is still being written after {self._end_wait_s_max:g} s"
            raise TableBusy(message, help="check that the store answers; try again")
        self.tables.abandon(version)
        self._log("gave up version %d", version)
        # The number may be sealed again, for another version.
        self._export = None
        self.tables.sweep(threads=self._threads)

    def _expire(self, order: orders.Expire) -> orders.ExpiredKeys:
        if order.number != self._expired[0]:
            self._expired = (order.number, {})
        counts = self._expired[1]
        for name, expiry in order.expiries.items():
            if name not in counts:
                expired = self.tables[name].expire(expiry, now_ms=order.now_ms, budget_keys=order.budget_keys)
                counts[name] = (expired.scanned, expired.idle, expired.rare, expired.over)
        return orders.ExpiredKeys(dict(counts))

    def _remove(self, order: orders.Remove) -> None:
        for name, texts in order.keys.items():
            keys = np.array([int(text, 16) for text in texts], np.uint64)
            # An order that is in force comes with every cut.
            if count := self.tables[name].remove(keys, threads=self._threads):
                self._log("removed %d of %d keys from table %s", count, len(keys), name)

    def _obey_export(self, order: orders.Export) -> orders.Exported:
        head = order.head
        with self._lock:
            self._check_epoch(order.epoch)
            tables, upkeep = self.tables, dict(self._upkeep)
            export, is_writer = self._begin_export(head, tables)
            if head.kind == "base":
                upkeep = {name: _merged(self._committed.get(name), changes) for name, changes in upkeep.items()}
        if not is_writer:
            return export.wait()
        begin, answer = time.monotonic(), None
        try:
            files = self._shelf.write(head, self.place, export.changes(), upkeep)
            rows = sum(file.rows for file in files if file.kind == "rows")
            answer = orders.Exported(files, rows, time.monotonic() - begin)
        finally:
            was_abandoned = export.is_abandoned
            export.end(answer)
            if was_abandoned:
                self._log("the export of version %d, which was given up, has ended", head.version)
        size, seconds = sum(file.bytes for file in files), round(answer.seconds, 3)
        fields = {"files": len(files), "rows": rows, "bytes": size, "seconds": seconds}
        self._log("exported version %d", head.version, extra=fields)
        return answer

    def _begin_export(self, head: Head, tables: TableSet) -> tuple[ShardExport, bool]:
        """Return the export of a version, and whether the caller must write it: no other call does or did."""
        if tables.sealed != head.version:
            message = f"cannot write version {head.version}: {tables.sealed} is sealed"
            raise VersionRefused(message, help="seal it first; a version that was given up is not written later")
        export = self._export
        if export is not None and export.version == head.version and not export.has_failed:
            return export, False
        if export is not None and export.is_running:
            message = f"version {export.version} is being written"
            raise TableBusy(message, help="wait for it, or give that version up")
        abandoned = self._running_abandoned()
        if len(abandoned) >= self._abandoned_max:
            message = (
                f"{len(abandoned)} exports were given up and still run, which is the limit: "
                f"versions {', '.join(str(export.version) for export in abandoned)}"
            )
            raise TableBusy(message, help="check that the store answers; restart the shard if it never will")
        since = None if head.parent is None or head.kind == "base" else head.parent.version
        # `changed` pins both versions; if it cannot, no export has begun.
        self._export = ShardExport(head.version, tables.changed(since, head.version))
        return self._export, True

    def _leave_export(self) -> None:
        """Abandon the running export; its thread ends by itself."""
        if self._export is None:
            return
        if self._export.is_running and not self._export.cancel(0.0):
            self._log("gave up the export of version %d, which still runs", self._export.version)
        self._abandoned, self._export = self._running_abandoned(), None

    def _running_abandoned(self) -> list[ShardExport]:
        """The abandoned exports whose threads still wait for the store."""
        exports = self._abandoned if self._export is None else [*self._abandoned, self._export]
        return [export for export in exports if export.is_abandoned]

    def _log(self, text: str, *values: object, extra: Mapping[str, object] | None = None) -> None:
        _log.info("shard %s %s", self.place, text % values, extra=extra)

    def _stats(self) -> orders.ShardStats:
        tables = self._tables
        sizes = {} if tables is None else {name: table.stats() for name, table in tables.tables.items()}
        counts = {name: orders.TableCount(now.keys, now.rows, now.images, now.bytes) for name, now in sizes.items()}
        return orders.ShardStats(
            place=str(self.place), epoch=self.epoch, sealed=None if tables is None else tables.sealed,
            retained=() if tables is None else tuple(tables.retained), tables=counts, served=dict(self._door.served()),
            exports_left=len(self._running_abandoned()), exports_left_max=self._abandoned_max,
        )  # fmt: skip


def _merged(before: Upkeep | None, changes: Upkeep) -> Upkeep:
    """Overlay later pages on earlier ones."""
    return changes if before is None else replace(changes, pages={**before.pages, **changes.pages})
