"""Recent clicks of users, as known to a feature service that is one chunk of traffic behind."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from streamlearn.events import join_rows

from .pending_rows import PendingRows
from .world import RECENT, Int64s

__all__ = ["Clicks", "Recent"]


class Clicks(NamedTuple):
    """Clicks; each array has a value per click."""

    time_ms: Int64s
    user: Int64s
    item_id: Int64s
    category: Int64s


class Recent:
    """The last clicks of each of `users` users."""

    def __init__(self, users: int) -> None:
        # Ring buffers: the user's n-th click is at n % RECENT.
        self._items = np.full((users, RECENT), -1, np.int32)
        self._categories = np.full((users, RECENT), -1, np.int8)
        self._clicks = np.zeros(users, np.int64)
        self._pending = PendingRows()

    def add(self, clicks: Clicks) -> None:
        """Add clicks, which may be in the future."""
        self._pending.put(clicks._asdict(), clicks.time_ms)

    def advance(self, time_ms: int) -> None:
        """Apply the clicks before a time."""
        parts = self._pending.take(time_ms)
        if not parts:
            return
        clicks = Clicks(**join_rows([columns for columns, _ in parts]))
        order = np.lexsort((clicks.time_ms, clicks.user))
        user = clicks.user[order]
        begins = np.flatnonzero(np.diff(user, prepend=-1))
        counts = np.diff(np.append(begins, len(user)))
        rank = np.arange(len(user)) - np.repeat(begins, counts)
        # Keep only as many clicks as fit into the ring, so that no entry is written twice.
        last = rank >= np.repeat(counts, counts) - RECENT
        place = (self._clicks[user] + rank) % RECENT
        self._items[user[last], place[last]] = clicks.item_id[order][last]
        self._categories[user[last], place[last]] = clicks.category[order][last]
        self._clicks[user[begins]] += counts

    def categories(self, users: Int64s) -> npt.NDArray[np.int8]:
        """Return categories (rows, RECENT) in any order; -1 where there is no click."""
        return self._categories[users]

    def sequences(self, users: Int64s) -> tuple[Int64s, Int64s, npt.NDArray[np.int32]]:
        """Return items and categories, oldest first, and the offsets of rows."""
        clicks = self._clicks[users]
        counts = np.minimum(clicks, RECENT)
        offsets = np.zeros(len(users) + 1, np.int32)
        np.cumsum(counts, out=offsets[1:])
        # Value j of a row that begins at offset o is click number (first click + j - o).
        place = np.arange(int(offsets[-1])) + np.repeat(clicks - counts - offsets[:-1], counts)
        at = np.repeat(users * RECENT, counts) + place % RECENT
        items = self._items.reshape(-1)[at].astype(np.int64)
        return items, self._categories.reshape(-1)[at].astype(np.int64), offsets
