"""The world: users, items, and the true probability that a user clicks on an item.

It does not know events. Memory is proportional to users and items, not to events.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from .chance import chance_of, zipf_ranks
from .options import Options

__all__ = ["CATEGORIES", "COUNTRIES", "PAGES", "RECENT", "TASTES", "Shown", "World"]

COHORTS, CATEGORIES, DEVICES, LENGTHS, PAGES, TASTES, RECENT = 16, 32, 6, 8, 4, 16, 8
COUNTRIES = ("BR", "CN", "DE", "EG", "ES", "FR", "GB", "ID", "IN", "JP", "MX", "NG", "NO", "US", "VN", "ZA")
DAY_MS = 86_400_000
LONG_SHARE = 0.4
# Standard deviation of each term of the true logit.
USER, ITEM, DRIFT, CROSS, TASTE, RECENCY, DEVICE, POSITION = 0.5, 0.6, 0.6, 0.9, 0.6, 3.0, 0.4, 0.25
_USERS, _ITEMS, _TABLES, _PLACES, _NEW, _TRIAL = range(6)

Int64s: TypeAlias = npt.NDArray[np.int64]
Float32s: TypeAlias = npt.NDArray[np.float32]
Arrays: TypeAlias = dict[str, npt.NDArray[Any]]


class Shown(NamedTuple):
    """Items shown to users; each array has a value per shown item.

    Attributes:
        user: The user.
        place: The item's place in the catalogue.
        position: The position in the request.
        matches: Number of the user's recent clicks in the item's category.
        time_ms: Event time.
    """

    user: Int64s
    place: Int64s
    position: Int64s
    matches: npt.NDArray[np.integer[Any]]
    time_ms: Int64s


class World:
    """Users, items and truth.

    The catalogue is a ring of `items` places: the item with id n is at place n % items until item n + items replaces it
    and inherits its popularity.

    Attributes:
        users: Columns by name, a row per user.
        items: Columns by name, a row per place.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._begin_ms = options.start_ms
        self.users = _users(chance_of(options.seed, _USERS), options.users)
        ids = np.arange(options.items)
        self.items = _items(chance_of(options.seed, _ITEMS), ids)
        born = chance_of(options.seed, _ITEMS, 1).random(options.items)
        self.items["born_ms"] = (options.start_ms - born * 30 * DAY_MS).astype(np.int64)
        self._place_of_rank = chance_of(options.seed, _PLACES).permutation(options.items)
        self._next_id = options.items
        tables = chance_of(options.seed, _TABLES)
        self._cross = _normal(tables, CROSS, COHORTS, CATEGORIES)
        self._device = _normal(tables, DEVICE, DEVICES, LENGTHS)
        self._long = _normal(tables, 0.7, CATEGORIES, LENGTHS)
        self._bias = 0.0
        self._long_bias = 0.0
        self._set_biases()

    def draw_places(self, rng: np.random.Generator, draws: int) -> Int64s:
        """Draw places of items, popular ones more often."""
        return self._place_of_rank[zipf_ranks(rng, draws, self._options.items, self._options.zipf)]

    def draw_users(self, rng: np.random.Generator, draws: int) -> Int64s:
        """Draw users, active ones more often; user 0 is the most active."""
        return zipf_ranks(rng, draws, self._options.users, self._options.zipf)

    def renew(self, time_ms: int) -> None:
        """Add the new items up to a time."""
        items = self._options.items
        hours = (time_ms - self._begin_ms) / 3_600_000
        upto = items + int(hours * self._options.new_items * items)
        if upto <= self._next_id:
            return
        ids = np.arange(max(self._next_id, upto - items), upto)
        for name, values in _items(chance_of(self._options.seed, _NEW, upto), ids).items():
            self.items[name][ids % items] = values
        self.items["born_ms"][ids % items] = time_ms
        self._next_id = upto

    def click_logit(self, shown: Shown) -> Float32s:
        """Return the true logit of a click."""
        return self._appeal(shown) + np.float32(self._bias)

    def long_logit(self, shown: Shown) -> Float32s:
        """Return the true logit of a long view, given a click."""
        items, place = self.items, shown.place
        logit = self._long[items["category"][place], items["length_band"][place]]
        patience: Float32s = self.users["patience"][shown.user]
        return logit + patience + np.float32(self._long_bias)

    def _appeal(self, shown: Shown) -> Float32s:
        users, items, user, place = self.users, self.items, shown.user, shown.place
        logit: Float32s = users["appeal"][user] + items["appeal"][place]
        cycle = 2 * np.pi / (1000 * self._options.drift_s)
        phase = ((shown.time_ms - self._begin_ms) * cycle).astype(np.float32) + items["phase"][place]
        # The square root of 2 makes a sine's standard deviation 1.
        logit += np.float32(DRIFT * 2**0.5) * np.sin(phase)
        logit += self._cross[users["cohort"][user], items["category"][place]]
        logit += self._device[users["device"][user], items["length_band"][place]]
        taste = np.einsum("ij,ij->i", users["taste"][user], items["quality"][place])
        logit += np.float32(TASTE / TASTES**0.5) * taste
        logit += np.float32(RECENCY / RECENT) * shown.matches
        logit -= np.float32(POSITION) * shown.position
        return logit

    def _set_biases(self) -> None:
        """Choose the constants so that click_rate and LONG_SHARE come out, on average over the traffic."""
        rng, draws = chance_of(self._options.seed, _TRIAL), 20_000
        time_ms = self._begin_ms + (rng.random(draws) * 1000 * self._options.drift_s).astype(np.int64)
        user, place = self.draw_users(rng, draws), self.draw_places(rng, draws)
        none = np.zeros(draws, np.int64)
        shown = Shown(user, place, none, none, time_ms)
        appeal = self._appeal(shown).astype(np.float64)
        self._bias = _bias(appeal, np.ones(draws), self._options.click_rate)
        clicks = 1 / (1 + np.exp(-(appeal + self._bias)))
        self._long_bias = _bias(self.long_logit(shown).astype(np.float64), clicks, LONG_SHARE)


def _bias(logit: npt.NDArray[np.float64], weight: npt.NDArray[np.float64], wanted: float) -> float:
    """The constant that makes the weighted mean probability what is wanted, by bisection."""
    low, high = -40.0, 40.0
    for _ in range(60):
        middle = (low + high) / 2
        mean = float((weight / (1 + np.exp(-(logit + middle)))).sum() / weight.sum())
        low, high = (middle, high) if mean < wanted else (low, middle)
    return low


def _normal(rng: np.random.Generator, deviation: float, *shape: int) -> Float32s:
    return rng.standard_normal(shape, np.float32) * np.float32(deviation)


def _users(rng: np.random.Generator, count: int) -> Arrays:
    return {
        "cohort": rng.integers(0, COHORTS, count),
        "country": rng.integers(0, len(COUNTRIES), count),
        "device": rng.integers(0, DEVICES, count),
        "age_band": rng.integers(0, 8, count),
        "language": rng.integers(0, 10, count),
        "appeal": _normal(rng, USER, count),
        "patience": _normal(rng, 0.5, count),
        "taste": _normal(rng, 1.0, count, TASTES),
    }


def _items(rng: np.random.Generator, ids: Int64s) -> Arrays:
    count = len(ids)
    return {
        "item_id": ids,
        "author_id": rng.integers(0, max(1, count // 4), count),
        "category": rng.integers(0, CATEGORIES, count),
        "brand": rng.integers(0, 500, count),
        "length_band": rng.integers(0, LENGTHS, count),
        "price_band": rng.integers(0, 12, count),
        "origin": rng.integers(0, len(COUNTRIES), count),
        "topic": rng.integers(0, 200, (count, 2)),
        "born_ms": np.zeros(count, np.int64),
        "appeal": _normal(rng, ITEM, count),
        "phase": (rng.random(count, np.float32) * np.float32(2 * np.pi)),
        "quality": _normal(rng, 1.0, count, TASTES),
    }
