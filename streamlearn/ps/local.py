"""LocalLink: one shard in this process, reached without a network."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from streamlearn.errors import EpochOver, StreamlearnError
from streamlearn.ps.epoch import Epoch
from streamlearn.ps.orders import Answer, Order
from streamlearn.ps.place import Place
from streamlearn.ps.shard import Shard
from streamlearn.ps.shelf import Shelf
from streamlearn.table import At, Pushed, TableOptions, TableSet

__all__ = ["LocalLink"]


class LocalLink:
    """The only shard of a model, and its door.

    Args:
        options: Of its tables.
        shelf: Where its versions are.
        threads: How many threads a call may use.
    """

    def __init__(self, options: Sequence[TableOptions], shelf: Shelf, *, threads: int = 1) -> None:
        self.dims = {one.spec.name: one.spec.dim for one in options}
        self.shards = 1
        self._threads = threads
        self._epoch: Epoch | None = None
        self._open: tuple[TableSet, Epoch] | None = None
        self._users = 0
        self._changed = threading.Condition()
        self._shard = Shard(Place(), options, shelf, self, threads=threads)

    def open(self, tables: TableSet, epoch: Epoch) -> None:
        """The shard's tables may be read and written."""
        with self._changed:
            self._open = (tables, epoch)

    def served(self) -> Mapping[str, float]:
        """Nothing goes over a network."""
        return {}

    def begin(self, epoch: Epoch) -> None:
        """Calls belong to this epoch from here on."""
        self._epoch = epoch

    def pull(self, table: str, keys: Any, at: int | None, is_distinct: bool, out: Any) -> None:
        """Read the table."""
        with self._tables() as tables:
            tables[table].lookup(keys, at=_at(at), out=out, threads=self._threads)

    def push(
        self, table: str, keys: Any, gradients: Any, rest: tuple[Any, Sequence[tuple[int, int]], int, float]
    ) -> Pushed:
        """Push to the table."""
        counts, admit, now_ms, rate_scale = rest
        with self._tables() as tables:
            return tables[table].push(
                keys,
                gradients,
                now_ms=now_ms,
                counts=counts,
                admit=admit,
                rate_scale=rate_scale,
                threads=self._threads,
            )

    def pack_flat(self, at: int | None, columns: Sequence[tuple[Any, ...]], shape: Any, out: Any) -> None:
        """Pack from the tables."""
        with self._tables() as tables:
            tables.pack_flat(_at(at), columns, shape, out)

    def pack_sequences(self, at: int | None, columns: Sequence[tuple[Any, ...]], shape: Any, out: Any) -> None:
        """Pack from the tables."""
        with self._tables() as tables:
            tables.pack_sequences(_at(at), columns, shape, out)

    def order_all(self, orders: Sequence[Order], wait_s: float) -> list[Answer | BaseException]:
        """Have the shard obey, in the caller's thread."""
        try:
            return [self._shard.obey(orders[0])]
        except StreamlearnError as error:
            return [error]

    def stats(self) -> list[dict[str, float]]:
        """Nothing goes over a network."""
        return [{}]

    def close(self) -> None:
        """Nobody reads or writes from here on; whoever does ends first."""
        with self._changed:
            self._open = None
            self._changed.wait_for(lambda: self._users == 0)

    @contextmanager
    def _tables(self) -> Iterator[TableSet]:
        with self._changed:
            if self._open is None or self._open[1] != self._epoch:
                stands = "in none" if self._open is None else f"in {self._open[1]}"
                message = f"the call is of epoch {self._epoch}, the shard stands {stands}"
                raise EpochOver(message, help="restore under a higher epoch")
            tables = self._open[0]
            self._users += 1
        try:
            yield tables
        finally:
            with self._changed:
                self._users -= 1
                self._changed.notify_all()


def _at(version: int | None) -> At:
    return "newest" if version is None else version
