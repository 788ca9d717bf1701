"""Epoch: the run and recovery that a message belongs to. Messages of an older epoch are refused."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

__all__ = ["Epoch"]


class Epoch(Struct, frozen=True, order=True, forbid_unknown_fields=True):
    """A trainer's run (its fencing number), and how often it has put all shards back to a committed version.

    Examples:
        >>> Epoch(3, 1) < Epoch(3, 2) < Epoch(4, 0)
        True
    """

    run: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    recovery: Annotated[int, Meta(ge=0, le=(1 << 32) - 1)] = 0

    def next(self) -> Epoch:
        """The epoch of the next recovery of this run."""
        return Epoch(self.run, self.recovery + 1)

    def __str__(self) -> str:
        return f"{self.run}.{self.recovery}"
