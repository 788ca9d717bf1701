"""What users clicked on lately, as a feature service that is one chunk of traffic behind would know it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from streamlearn.events import join_rows

from .waiting import Waiting
from .world import RECENT, Int64s

__all__ = ["Clicks", "Recent"]


class Clicks(NamedTuple):
    """Clicks; each array has one value a click.

    Attributes:
        time_ms: When.
        user: Whose.
        item_id: On what.
        category: Of which category.
    """

    time_ms: Int64s
    user: Int64s
    item_id: Int64s
    category: Int64s


class Recent:
    """The last clicks of every user.

    Args:
        users: How many users there are.
    """

    def __init__(self, users: int) -> None:
        # Rings: the user's n-th click stands at n % RECENT.
        self._items = np.full((users, RECENT), -1, np.int32)
        self._categories = np.full((users, RECENT), -1, np.int8)
        self._clicks = np.zeros(users, np.int64)
        self._waiting = Waiting()

    def add(self, clicks: Clicks) -> None:
        """Take note of clicks, which may be of the future."""
        self._waiting.put(clicks._asdict(), clicks.time_ms)

    def advance(self, time_ms: int) -> None:
        """Make known what was clicked before then."""
        parts = self._waiting.take(time_ms)
        if not parts:
            return
        known = Clicks(**join_rows([columns for columns, _ in parts]))
        order = np.lexsort((known.time_ms, known.user))
        user = known.user[order]
        begins = np.flatnonzero(np.diff(user, prepend=-1))
        counts = np.diff(np.append(begins, len(user)))
        rank = np.arange(len(user)) - np.repeat(begins, counts)
        # Of more clicks than a ring holds only the last count, so that no place is written twice.
        last = rank >= np.repeat(counts, counts) - RECENT
        place = (self._clicks[user] + rank) % RECENT
        self._items[user[last], place[last]] = known.item_id[order][last]
        self._categories[user[last], place[last]] = known.category[order][last]
        self._clicks[user[begins]] += counts

    def categories(self, users: Int64s) -> npt.NDArray[np.int8]:
        """(rows, RECENT) in no order; -1 where there is none."""
        return self._categories[users]

    def sequences(self, users: Int64s) -> tuple[Int64s, Int64s, npt.NDArray[np.int32]]:
        """Items and categories, oldest first, and where each row's begin."""
        clicks = self._clicks[users]
        counts = np.minimum(clicks, RECENT)
        offsets = np.zeros(len(users) + 1, np.int32)
        np.cumsum(counts, out=offsets[1:])
        # The place of value j of a row that begins at offset o is (first click + j - o).
        place = np.arange(int(offsets[-1])) + np.repeat(clicks - counts - offsets[:-1], counts)
        at = np.repeat(users * RECENT, counts) + place % RECENT
        items = self._items.reshape(-1)[at].astype(np.int64)
        return items, self._categories.reshape(-1)[at].astype(np.int64), offsets
