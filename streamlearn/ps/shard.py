"""Shard: the tables of one place, and how it obeys orders. It knows no network: a server or a process stands before it.

Every order may come again, for an answer can be lost on its way: what was done already is answered and not done twice.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from streamlearn.errors import EpochOver, ShardNotReady, TableBusy, VersionRefused
from streamlearn.ps.epoch import Epoch
from streamlearn.ps.orders import (
    Abandon,
    Answer,
    Commit,
    Done,
    Expire,
    ExpiredKeys,
    Export,
    Exported,
    Order,
    Restore,
    Restored,
    Seal,
    ShardStats,
    Stats,
    TableCount,
)
from streamlearn.ps.place import Place
from streamlearn.ps.shard_export import Exporting
from streamlearn.ps.shelf import Shelf
from streamlearn.settings import PsSettings
from streamlearn.table import TableOptions, TableSet, Upkeep
from streamlearn.versions import Head

__all__ = ["Shard", "ShardDoor"]

# It stands at a version whose digest nobody has told it.
_UNTOLD = "untold"
_log = logging.getLogger("streamlearn.ps")


class ShardDoor(Protocol):
    """What stands between a shard's tables and those who read and write them."""

    def open(self, tables: TableSet, epoch: Epoch) -> None:
        """From now on the tables are read and written, by this epoch alone."""

    def close(self) -> None:
        """Nobody reads or writes from here on; the tables are let go of."""

    def served(self) -> Mapping[str, float]:
        """What went through it so far."""


class Shard:
    """One shard.

    Args:
        place: Which.
        options: Of its tables.
        shelf: Where versions are written to and read from.
        door: What stands before its tables.
        settings: How many threads share work on all parts, and limits.
    """

    def __init__(
        self, place: Place, options: Sequence[TableOptions], shelf: Shelf, door: ShardDoor, settings: PsSettings
    ) -> None:
        self.place = place
        self.epoch: Epoch | None = None
        self._options = tuple(options)
        self._shelf, self._door, self._threads = shelf, door, settings.threads
        self._left_max, self._end_wait_s_max = settings.exports_left_max, settings.export_end_wait_s_max
        self._tables: TableSet | None = None
        self._restored_by = 0  # the number of the order that began the epoch
        self._stands_at = ""  # the digest of the manifest of the newest committed version
        # What tables know beside their rows: since the newest committed version, and as of it.
        self._upkeep: dict[str, Upkeep] = {}
        self._committed: dict[str, Upkeep] = {}
        # The number of the newest order to expire, and what it has done so far.
        self._expired: tuple[int, dict[str, tuple[int, int, int, int]]] = (0, {})
        self._export: Exporting | None = None
        self._given_up: list[Exporting] = []
        # Orders are obeyed one at a time; an export only begins under it.
        self._lock = threading.Lock()

    @property
    def tables(self) -> TableSet:
        """Its tables.

        Raises:
            ShardNotReady: It has none: nobody has said yet at which version it is to stand.
        """
        if self._tables is None:
            message = f"shard {self.place} has no tables yet"
            raise ShardNotReady(message, help="wait: the trainer restores all shards when it starts")
        return self._tables

    def obey(self, order: Order) -> Answer:
        """Do what is ordered.

        Raises:
            EpochOver: The order is of another epoch than the shard.
            ShardNotReady: It has no tables yet.
            VersionRefused: A version is not what the order needs it to be.
            TableBusy: Something must end first.
        """
        if isinstance(order, Export):
            return self._obey_export(order)
        if isinstance(order, Stats):
            # Asked at any time, also while a version is loaded for an hour.
            return self._stats()
        with self._lock:
            if isinstance(order, Restore):
                return self._restore(order)
            self._check_epoch(order.epoch)
            match order:
                case Seal():
                    self._seal(order)
                case Commit():
                    self._commit(order)
                case Abandon():
                    self._abandon(order.version)
                case Expire():
                    return self._expire(order)
            return Done()

    def close(self) -> None:
        """Let everything go."""
        with self._lock:
            self._leave_export()
            self._drop()

    def _check_epoch(self, epoch: Epoch) -> None:
        if epoch != self.epoch:
            stands = "in none yet" if self.epoch is None else f"in {self.epoch}"
            message = f"an order of epoch {epoch}; shard {self.place} stands {stands}"
            if self.epoch is None:
                raise ShardNotReady(message, help="wait: the trainer restores all shards when it starts")
            raise EpochOver(message, help="a newer recovery has begun: restore all shards under a higher epoch")

    def _restore(self, order: Restore) -> Restored:
        if self.epoch is not None and order.epoch < self.epoch:
            self._check_epoch(order.epoch)
        if order.epoch == self.epoch:
            if self._restored_by == order.number and self._stands_at_version(order.version, order.sha256):
                return Restored(0, 0, 0.0)
            began = None if self._tables is None else self._newest()
            message = f"epoch {order.epoch} of shard {self.place} began at version {began}, not {order.version}"
            raise EpochOver(message, help="restore under a higher epoch")
        begin = time.monotonic()
        self._leave_export()
        self._door.close()
        self.epoch, self._restored_by = order.epoch, order.number
        try:
            tables, rows, size = self._stood_at(order)
            self._door.open(tables, order.epoch)
        except BaseException:
            # The epoch stays: an older trainer is not let in because a newer one could not read a version.
            self._drop()
            raise
        self._tables, self._stands_at = tables, order.sha256
        self._upkeep, self._expired = {}, (0, {})
        seconds = time.monotonic() - begin
        known = {"rows": rows, "bytes": size, "seconds": round(seconds, 3)}
        self._say("is at %s in epoch %s", _name(order.version), order.epoch, extra=known)
        return Restored(rows, size, seconds)

    def _stood_at(self, order: Restore) -> tuple[TableSet, int, int]:
        """Tables as of a version: those there are, without what was written since, or new ones from its files."""
        if self._tables is not None and self._stands_at_version(order.version, order.sha256):
            self._tables.discard(threads=self._threads)
            for name, known in self._committed.items():
                self._tables[name].restore(known)
            return self._tables, 0, 0
        self._drop()
        tables, rows, size = TableSet(self._options), 0, 0
        if order.version is not None:
            rows, size = self._shelf.load(order.version, order.sha256, tables, self.place)
        self._committed = {name: table.upkeep() for name, table in tables.tables.items()}
        return tables, rows, size

    def _stands_at_version(self, version: int | None, sha256: str) -> bool:
        return self._tables is not None and (self._newest(), self._stands_at) == (version, sha256)

    def _drop(self) -> None:
        self._door.close()
        self._tables, self._stands_at = None, ""

    def _newest(self) -> int | None:
        retained = self.tables.retained
        return retained[-1] if retained else None

    def _seal(self, order: Seal) -> None:
        tables = self.tables
        if tables.sealed == order.version:
            return
        if tables.sealed is not None and tables.sealed == order.committed:
            # The word that it was committed was lost on its way.
            tables.commit(tables.sealed)
            self._keep_upkeep()
            self._stands_at = _UNTOLD
        if tables.sealed is not None:
            # Of a cut that failed, whose end nobody could tell.
            self._abandon(tables.sealed)
        if self._newest() != order.committed:
            message = (
                f"the trainer reports version {order.committed} as committed; the newest that shard {self.place} "
                f"knows is {self._newest()}"
            )
            raise VersionRefused(message, help="restore all shards to the newest committed version")
        tables.seal(order.version)
        for name, table in tables.tables.items():
            now = table.upkeep(changed_only=order.committed is not None)
            self._upkeep[name] = _laid_over(self._upkeep.get(name), now)
        self._say("sealed version %d", order.version)

    def _keep_upkeep(self) -> None:
        """What was sealed is what is committed."""
        for name, now in self._upkeep.items():
            self._committed[name] = _laid_over(self._committed.get(name), now)
        self._upkeep.clear()

    def _commit(self, order: Commit) -> None:
        tables = self.tables
        if order.version not in tables.retained:
            tables.commit(order.version)
            self._keep_upkeep()
            tables.sweep(threads=self._threads)
            self._say("committed version %d", order.version)
        if order.version != self._newest():
            return  # it was committed before, and another after it
        self._stands_at = order.sha256
        for version in tables.retained[:-1]:
            if version not in order.keep:
                try:
                    tables.retire(version, wait_ms_max=0, threads=self._threads)
                except TableBusy:
                    continue  # someone reads it; it goes after the next version

    def _abandon(self, version: int) -> None:
        if self.tables.sealed != version:
            return
        if self._export is not None and self._export.is_going and not self._export.cancel(self._end_wait_s_max):
            message = f"version {version} is still being written after {self._end_wait_s_max:g} s"
            raise TableBusy(message, help="check that the store answers; try again")
        self.tables.abandon(version)
        self._say("gave up version %d", version)
        # Its number may be sealed again, and is another version then.
        self._export = None
        self.tables.sweep(threads=self._threads)

    def _expire(self, order: Expire) -> ExpiredKeys:
        if order.number != self._expired[0]:
            self._expired = (order.number, {})
        counts = self._expired[1]
        for name, expiry in order.expiries.items():
            if name not in counts:
                done = self.tables[name].expire(expiry, now_ms=order.now_ms, budget_keys=order.budget_keys)
                counts[name] = (done.scanned, done.idle, done.rare, done.over)
        return ExpiredKeys(dict(counts))

    def _obey_export(self, order: Export) -> Exported:
        head = order.head
        with self._lock:
            self._check_epoch(order.epoch)
            tables, upkeep = self.tables, dict(self._upkeep)
            export, is_mine = self._begun(head, tables)
            if head.kind == "base":
                upkeep = {name: _laid_over(self._committed.get(name), now) for name, now in upkeep.items()}
        if not is_mine:
            return export.wait()
        begin, answer = time.monotonic(), None
        try:
            files = self._shelf.write(head, self.place, export.going(), upkeep)
            rows = sum(file.rows for file in files if file.kind == "rows")
            answer = Exported(files, rows, time.monotonic() - begin)
        finally:
            was_left = export.is_left
            export.end(answer)
            if was_left:
                self._say("the export of version %d, which was given up, has ended", head.version)
        size, seconds = sum(file.bytes for file in files), round(answer.seconds, 3)
        known = {"files": len(files), "rows": rows, "bytes": size, "seconds": seconds}
        self._say("exported version %d", head.version, extra=known)
        return answer

    def _begun(self, head: Head, tables: TableSet) -> tuple[Exporting, bool]:
        """The export of a version, and whether the caller is to write it: nobody did or does."""
        if tables.sealed != head.version:
            message = f"cannot write version {head.version}: {tables.sealed} is sealed"
            raise VersionRefused(message, help="seal it first; a version that was given up is not written later")
        export = self._export
        if export is not None and export.version == head.version and not export.has_failed:
            return export, False
        if export is not None and export.is_going:
            message = f"version {export.version} is being written"
            raise TableBusy(message, help="wait for it, or give that version up")
        left = self._left()
        if len(left) >= self._left_max:
            message = (
                f"{len(left)} exports were given up and still run, which is the limit: "
                f"versions {', '.join(str(one.version) for one in left)}"
            )
            raise TableBusy(message, help="check that the store answers; restart the shard if it never will")
        since = None if head.parent is None or head.kind == "base" else head.parent.version
        # Both versions are held from here on; where they cannot be, nothing was begun.
        self._export = Exporting(head.version, tables.changed(since, head.version))
        return self._export, True

    def _leave_export(self) -> None:
        """What is being written is of no use any more; whoever writes it ends by itself."""
        if self._export is None:
            return
        if self._export.is_going and not self._export.cancel(0.0):
            self._say("gave up the export of version %d, which still runs", self._export.version)
        self._given_up, self._export = self._left(), None

    def _left(self) -> list[Exporting]:
        """Exports that were given up and whose writers wait for the store."""
        known = self._given_up if self._export is None else [*self._given_up, self._export]
        return [one for one in known if one.is_left]

    def _say(self, text: str, *values: object, extra: Mapping[str, object] | None = None) -> None:
        _log.info("shard %s %s", self.place, text % values, extra=extra)

    def _stats(self) -> ShardStats:
        tables = self._tables
        sizes = {} if tables is None else {name: table.stats() for name, table in tables.tables.items()}
        return ShardStats(
            place=str(self.place),
            epoch=self.epoch,
            sealed=None if tables is None else tables.sealed,
            retained=() if tables is None else tuple(tables.retained),
            tables={name: TableCount(one.keys, one.rows, one.images, one.bytes) for name, one in sizes.items()},
            served=dict(self._door.served()),
            exports_left=len(self._left()),
            exports_left_max=self._left_max,
        )


def _name(version: int | None) -> str:
    return "no version" if version is None else f"version {version}"


def _laid_over(before: Upkeep | None, now: Upkeep) -> Upkeep:
    """Later pages over earlier ones."""
    return now if before is None else replace(now, pages={**before.pages, **now.pages})
