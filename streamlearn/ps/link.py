"""Link: how a client reaches shards. It transports calls; the client decides what to call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from streamlearn.ps.epoch import Epoch
from streamlearn.ps.orders import Answer, Order
from streamlearn.table import Pushed
from streamlearn.table.source import ColumnArrays, PackShape
from streamlearn.table.table import PushOptions

__all__ = ["Link"]


class Link(Protocol):
    """The shards of a model, in this process or in others."""

    @property
    def dims(self) -> Mapping[str, int]:
        """The row length of each table, in the order of the tables' numbers."""

    @property
    def shards(self) -> int:
        """The number of shards."""

    def begin(self, epoch: Epoch) -> None:
        """Send all further calls in this epoch."""

    def pull(self, table: str, keys: Any, at: int | None, is_distinct: bool, out: Any) -> None:
        """Read rows into `out`; None reads the newest rows."""

    def push(self, table: str, keys: Any, gradients: Any, options: PushOptions) -> Pushed:
        """Apply gradients once."""

    def pack_flat(self, at: int | None, columns: Sequence[ColumnArrays], shape: PackShape, out: Any) -> None:
        """Write a flat matrix."""

    def pack_sequences(self, at: int | None, columns: Sequence[ColumnArrays], shape: PackShape, out: Any) -> None:
        """Write a sequence block."""

    def order_all(self, orders: Sequence[Order], wait_s: float) -> list[Answer | BaseException]:
        """Send order i to shard i, all at once; returns each shard's answer or error."""

    def stats(self) -> list[dict[str, float]]:
        """The counts of calls to each shard."""

    def close(self) -> None:
        """Disconnect from the shards."""
