"""Link: how a client reaches shards. It carries; what is asked of whom is the client's to decide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from streamlearn.ps.epoch import Epoch
from streamlearn.ps.orders import Answer, Order
from streamlearn.table import Pushed

__all__ = ["Link"]


class Link(Protocol):
    """The shards of a model, in this process or in others."""

    @property
    def dims(self) -> Mapping[str, int]:
        """Length of a row by table, in the order the tables are numbered."""

    @property
    def shards(self) -> int:
        """How many shards there are."""

    def begin(self, epoch: Epoch) -> None:
        """What is asked from here on belongs to this epoch."""

    def pull(self, table: str, keys: Any, at: int | None, is_distinct: bool, out: Any) -> None:
        """Rows into `out`; None reads what was written last."""

    def push(
        self, table: str, keys: Any, gradients: Any, rest: tuple[Any, Sequence[tuple[int, int]], int, float]
    ) -> Pushed:
        """Let rows learn, once; `rest` is counts, admit, now_ms and rate_scale."""

    def pack_flat(self, at: int | None, columns: Sequence[tuple[Any, ...]], shape: Any, out: Any) -> None:
        """Write a flat matrix."""

    def pack_sequences(self, at: int | None, columns: Sequence[tuple[Any, ...]], shape: Any, out: Any) -> None:
        """Write a sequence block."""

    def order_all(self, orders: Sequence[Order], wait_s: float) -> list[Answer | BaseException]:
        """Order i for shard i, at once; of each the answer, or what went wrong."""

    def stats(self) -> list[dict[str, float]]:
        """Of each shard what was asked of it."""

    def close(self) -> None:
        """Let go of the shards."""
