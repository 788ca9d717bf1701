"""HitRates: how often the towers find what was then chosen, beside how often plain popularity does."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamlearn.trainer.towers.popularity import HALF_LIFE_MS
from streamlearn.trainer.towers.tower_learner import PackedTowers
from streamlearn.trainer.towers.tower_steps import TowerSteps

__all__ = ["TOPS", "HitRate", "HitRates"]

Float32s = npt.NDArray[np.float32]
Float64s = npt.NDArray[np.float64]
TOPS = (50, 100, 500)
"""A positive is found if its item is among this many."""
_DAY_MS = 86_400_000
_DOUBLINGS_MAX = 500.0
# Of more items, only a share of the steps is ranked, so that a step takes as long on average.
_ITEMS_A_STEP = 1 << 12
_ITEMS_AT_ONCE, _POSITIVES_MAX = 1 << 14, 256


@dataclass(frozen=True)
class HitRate:
    """The hit rates of the positives that were shown on a day in UTC; each has a number for each of `TOPS`."""

    day_ms: int
    positives: int
    items: int  # the most that a positive was ranked among
    towers: tuple[float, ...]
    popularity: tuple[float, ...]


class HitRates:
    """Ranks the positives of steps among the items known so far, before the towers learn them.

    Popularity ranks by counts of positives that halve every six hours. An item that was not known counts as not found,
    and of items with one count each is as likely to come first. A step of more than `_POSITIVES_MAX` positives is
    ranked by as many of them, and beyond `_ITEMS_A_STEP` items only a share of the steps is.
    """

    def __init__(self, steps: TowerSteps) -> None:
        self._learner, self._rows, self._items = steps.state.learner, steps.rows, steps.rows.items
        self._counts: dict[int, float] = {}
        self._begin_ms: int | None = None
        self._steps = 0
        self._sums: dict[int, Float64s] = defaultdict(lambda: np.zeros(1 + 2 * len(TOPS)))
        self._most = dict[int, int]()

    @property
    def days(self) -> tuple[HitRate, ...]:
        """The hit rates so far, in the order of time."""
        found = []
        for day, (count, *hits) in sorted(self._sums.items()):
            rates = tuple(float(hit / count) for hit in hits)
            ends = rates[: len(TOPS)], rates[len(TOPS) :]
            found.append(HitRate(day * _DAY_MS, int(count), self._most[day], *ends))
        return tuple(found)

    def see(self, packed: PackedTowers) -> None:
        """Rank the positives of a step, and count them."""
        self._steps += 1
        if len(self._items) and self._steps % (1 + (len(self._items) - 1) // _ITEMS_A_STEP) == 0:
            self._rank(packed)
        self._count(packed)

    def _rank(self, packed: PackedTowers) -> None:
        positives = len(packed.event_time_ms)
        chosen = np.linspace(0, positives - 1, min(positives, _POSITIVES_MAX)).astype(np.int64)
        of_item = packed.item_index[chosen]
        own = packed.keys[of_item]
        users = self._learner.users(packed.user_flat, packed.user_sequence)[packed.user_index[chosen]]
        logits = np.sum(users * self._learner.items(packed.item_flat)[of_item], axis=1)[:, None]
        counts = self._counts_of(own)
        before, more, as_many, known = (np.zeros(len(chosen), np.int64) for _ in range(4))
        for keys, columns in self._items.slices(_ITEMS_AT_ONCE):
            is_own = keys == own[:, None]
            vectors = self._learner.items(self._rows.pack_items(columns, len(keys)))
            before += np.count_nonzero((users @ vectors.T > logits) & ~is_own, axis=1)
            known += np.count_nonzero(is_own, axis=1)
            others = np.sort(self._counts_of(keys))
            first, end = np.searchsorted(others, counts, "left"), np.searchsorted(others, counts, "right")
            more += len(keys) - end
            as_many += end - first
        tops = np.array(TOPS)
        hits = np.concatenate(
            [before[:, None] < tops, np.clip((tops - more[:, None]) / np.maximum(as_many, 1)[:, None], 0, 1)], axis=1
        )
        days = packed.event_time_ms[chosen] // _DAY_MS
        for day in np.unique(days).tolist():
            of_day = np.concatenate([np.ones((len(chosen), 1)), hits * (known > 0)[:, None]], axis=1)[days == day]
            self._sums[day] += of_day.sum(axis=0)
            self._most[day] = max(self._most.get(day, 0), len(self._items))

    def _counts_of(self, keys: npt.NDArray[np.uint64]) -> Float64s:
        return np.array([self._counts.get(key, 0.0) for key in keys.tolist()], np.float64)

    def _count(self, packed: PackedTowers) -> None:
        """Count positives, a later one for more: all counts halve alike, so that their order stays."""
        times_ms = packed.event_time_ms
        if self._begin_ms is None:
            self._begin_ms = int(times_ms[0])
        doublings = (times_ms - self._begin_ms) / HALF_LIFE_MS
        if (most := float(doublings.max())) > _DOUBLINGS_MAX:
            self._counts = {key: count * 2.0**-most for key, count in self._counts.items()}
            self._begin_ms, doublings = int(times_ms.max()), doublings - most
        for key, of_one in zip(
            packed.keys[packed.item_index[: len(doublings)]].tolist(), doublings.tolist(), strict=True
        ):
            self._counts[key] = self._counts.get(key, 0.0) + 2.0**of_one
