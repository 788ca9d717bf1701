"""LocalLink: the only shard of a model, in this process, reached without a network."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from streamlearn.errors import EpochOver, StreamlearnError, TableBusy, UsageError
from streamlearn.ps.orders import Answer, Epoch, Export, Order
from streamlearn.ps.place import Place
from streamlearn.ps.shard import Shard
from streamlearn.ps.shelf import Shelf
from streamlearn.ps.slice_part import NativePart
from streamlearn.settings import PsSettings
from streamlearn.table import Pushed, TableOptions, TableSet
from streamlearn.table.pin import At
from streamlearn.table.source import ColumnArrays, PackShape
from streamlearn.table.table import PushOptions

__all__ = ["LocalLink"]


class LocalLink:
    """The only shard of a model, and the `ShardDoor` to its tables."""

    def __init__(self, options: Sequence[TableOptions], shelf: Shelf, settings: PsSettings) -> None:
        self.dims = {table.spec.name: table.spec.dim for table in options}
        self.shards = 1
        self._threads = settings.threads
        self._epoch: Epoch | None = None
        self._open: tuple[TableSet, Epoch] | None = None
        self._users = 0
        self._changed = threading.Condition()
        self._shard = Shard(Place(), options, shelf, self, settings)

    def open(self, tables: TableSet, epoch: Epoch) -> None:
        """Let calls of this epoch read and write the tables."""
        with self._changed:
            self._open = (tables, epoch)

    def served(self) -> Mapping[str, float]:
        """Nothing: no call goes over a network."""
        return {}

    def begin(self, epoch: Epoch) -> None:
        """Send all further calls in this epoch."""
        self._epoch = epoch

    def pull(self, table: str, keys: Any, at: int | None, is_distinct: bool, out: Any) -> None:
        """Read rows into `out`; None reads the newest rows."""
        with self._tables() as tables:
            tables[table].lookup(keys, at=_at(at), out=out, threads=self._threads)

    def push(self, table: str, keys: Any, gradients: Any, options: PushOptions) -> Pushed:
        """Apply gradients once."""
        with self._tables() as tables:
            return tables[table].push_checked(keys, gradients.reshape(-1), options, self._threads)

    def push_part(self, part: NativePart, table: str, keys: Any, gradients: Any, options: PushOptions) -> Pushed:
        """Refuse: the only worker of these tables has no slices to share."""
        raise _no_slices()

    def reduce(self, part: NativePart, values: Any, digest: int) -> None:
        """Refuse."""
        raise _no_slices()

    def reduced(self, step: int, slices: int, out: Any, wait_ms: int) -> bool | None:
        """Refuse."""
        raise _no_slices()

    def pack_flat(self, at: int | None, columns: Sequence[ColumnArrays], shape: PackShape, out: Any) -> None:
        """Pack from the tables."""
        with self._tables() as tables:
            tables.pack_flat(_at(at), columns, shape, out)

    def pack_sequences(self, at: int | None, columns: Sequence[ColumnArrays], shape: PackShape, out: Any) -> None:
        """Pack from the tables."""
        with self._tables() as tables:
            tables.pack_sequences(_at(at), columns, shape, out)

    def order_all(self, orders: Sequence[Order], wait_s: float) -> list[Answer | BaseException]:
        """Have the shard obey in the caller's thread; an export runs in its own, because its store may hang."""
        (order,) = orders
        try:
            return [self._export(order, wait_s) if isinstance(order, Export) else self._shard.obey(order)]
        except StreamlearnError as error:
            return [error]

    def stats(self) -> list[dict[str, float]]:
        """Nothing: no call goes over a network."""
        return [{}]

    def close(self) -> None:
        """Refuse new calls, and wait for those under way."""
        with self._changed:
            self._open = None
            self._changed.wait_for(lambda: self._users == 0)

    def _export(self, order: Export, wait_s: float) -> Answer:
        outcome: Future[Answer] = Future()

        def obey() -> None:
            try:
                outcome.set_result(self._shard.obey(order))
            except BaseException as error:
                outcome.set_exception(error)

        threading.Thread(target=obey, name="ps-export", daemon=True).start()
        try:
            return outcome.result(wait_s)
        except TimeoutError:
            if outcome.done():
                raise
            message = f"exporting version {order.head.version} took longer than {wait_s:g} s"
            raise TableBusy(message, help="check that the store answers; give the version up") from None

    @contextmanager
    def _tables(self) -> Iterator[TableSet]:
        with self._changed:
            if self._open is None or self._open[1] != self._epoch:
                shard_epoch = "none" if self._open is None else str(self._open[1])
                message = f"the call is of epoch {self._epoch}, but the shard's epoch is {shard_epoch}"
                raise EpochOver(message, help="restore under a higher epoch")
            tables = self._open[0]
            self._users += 1
        try:
            yield tables
        finally:
            with self._changed:
                self._users -= 1
                if not self._users:
                    self._changed.notify_all()


def _no_slices() -> UsageError:
    message = "these tables are in this process: no other worker can learn slices of their steps"
    return UsageError(message, help="slices need shards of their own: set `ps.addresses`")


def _at(version: int | None) -> At:
    return "newest" if version is None else version
