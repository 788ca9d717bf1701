"""Vectors of items and users for searches: around centres, of length 1, with the true best items of each user."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.native import native

__all__ = ["DIM", "TRUTH", "Vectors", "blocks_of", "encoded", "none", "normalised"]

DIM, TRUTH = 64, 100
Floats = npt.NDArray[np.float32]
_CLUSTERS, _USERS, _AT_ONCE = 1_000, 256, 64


@dataclass(frozen=True)
class Vectors:
    """Items and users of one world, float32.

    Attributes:
        items: (items, DIM).
        users: (users, DIM).
    """

    items: Floats
    users: Floats

    @classmethod
    def made(cls, items: int, spread: float) -> Vectors:
        """Make vectors; with a larger `spread`, the items of a centre are less similar."""
        chance = np.random.default_rng(1)
        centres = chance.standard_normal((_CLUSTERS, DIM), np.float32)

        def around(count: int) -> Floats:
            noise = np.float32(spread) * chance.standard_normal((count, DIM), np.float32)
            return normalised(centres[chance.integers(0, _CLUSTERS, count)] + noise)

        return cls(around(items), around(_USERS))

    def truth(self, items: int) -> npt.NDArray[np.int64]:
        """Return the best of the first items for each user, (users, TRUTH), by products of float32."""
        best = []
        for begin in range(0, len(self.users), _AT_ONCE):
            products = self.users[begin : begin + _AT_ONCE] @ self.items[:items].T
            best += [np.argpartition(-of_user, TRUTH)[:TRUTH] for of_user in products]
        return np.stack(best)

    def save(self, folder: Path, truths: Sequence[int]) -> None:
        """Write them for a peer, with the truth among the first items for each of some numbers of items."""
        np.save(folder / "items.npy", self.items)
        np.save(folder / "users.npy", self.users)
        for items in truths:
            np.save(folder / f"truth-{items}.npy", self.truth(items))


def normalised(vectors: Floats) -> Floats:
    """Return vectors of length 1."""
    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
    found: Floats = vectors / lengths[:, None]
    return found


def none() -> npt.NDArray[np.uint64]:
    """Return no keys."""
    return np.zeros(0, np.uint64)


def encoded(vectors: Floats) -> tuple[npt.NDArray[np.int8], Floats]:
    """Return vectors as rows."""
    rows: tuple[npt.NDArray[np.int8], Floats] = native.encode_vectors(vectors)
    return rows


def blocks_of(vectors: Floats) -> Any:
    """Return blocks whose keys are the places of vectors."""
    keys = np.arange(len(vectors), dtype=np.uint64)
    return native.Blocks(vectors.shape[1]).apply(keys, *encoded(vectors), none())
