"""InteractionBatch: interactions of users with items, as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["InteractionBatch"]

Uint64s: TypeAlias = npt.NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class InteractionBatch:
    """N interactions: impressions of items, and actions on them.

    Keys of users and items are those of their slots in samples, so they find the same rows.

    Attributes:
        side: "user" or "item": whose key chose the partition. Each interaction of an entity is in its partition.
        kinds: The names of kinds: "impression", and actions.
        sources: The slots whose values are here, each by its first name.
        ingest_run: The run of ingest that wrote it.
        identity: uint64[N]. The same for the same interaction, which may come more than once.
        user: uint64[N]. The key of the user; 0 if no slot is known to name one.
        item: uint64[N]. The key of the item.
        kind: uint8[N]. The index of its kind.
        event_time_ms: int64[N]. When it happened.
        weight: float32[N]. The weight of an action; 1 for an impression.
        number: float32[N]. The number of an action; NaN without one.
        values: int64[N, sources]. The value of each source.
    """

    side: str
    kinds: tuple[str, ...]
    sources: tuple[str, ...]
    ingest_run: int
    identity: Uint64s
    user: Uint64s
    item: Uint64s
    kind: npt.NDArray[np.uint8]
    event_time_ms: npt.NDArray[np.int64]
    weight: npt.NDArray[np.float32]
    number: npt.NDArray[np.float32]
    values: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.identity)

    @property
    def entity(self) -> Uint64s:
        """The key of each interaction's entity."""
        return self.user if self.side == "user" else self.item

    def take(self, rows: npt.NDArray[np.int64] | slice, side: str | None = None) -> InteractionBatch:
        """Return some rows, in the given order, if asked for as those of another side."""
        columns = {name: value[rows] for name, value in vars(self).items() if isinstance(value, np.ndarray)}
        return InteractionBatch(side or self.side, self.kinds, self.sources, self.ingest_run, **columns)

    @classmethod
    def empty(cls, kinds: Sequence[str] = (), sources: Sequence[str] = ()) -> InteractionBatch:
        """Return a batch without interactions."""
        u8, f4 = np.zeros(0, np.uint64), np.zeros(0, np.float32)
        times, values = np.zeros(0, np.int64), np.zeros((0, len(sources)), np.int64)
        return cls("user", tuple(kinds), tuple(sources), 0, u8, u8, u8, np.zeros(0, np.uint8), times, f4, f4, values)

    @classmethod
    def concatenated(cls, batches: Sequence[InteractionBatch]) -> InteractionBatch:
        """Return the rows of batches of one application, one batch after the other."""
        first = batches[0]
        names = [name for name, value in vars(first).items() if isinstance(value, np.ndarray)]
        columns = {name: np.concatenate([getattr(batch, name) for batch in batches]) for name in names}
        return cls(first.side, first.kinds, first.sources, first.ingest_run, **columns)
