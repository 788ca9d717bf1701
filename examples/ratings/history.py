"""The history: a month of generated film evenings. Each shows five films to a user, who rates some of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.events import text_columns
from streamlearn.replay import ColumnHistory, number_options

__all__ = ["RatingsHistory", "history"]

Arrays = dict[str, npt.NDArray[Any]]

BEGIN_MS = 1_750_000_000_000
DAYS, DAY_MS, HOUR_MS = 30, 86_400_000, 3_600_000
USERS, FILMS, SHOWN, TASTES = 3_000, 1_200, 5, 4
GENRES = ("comedy", "crime", "drama", "family", "horror", "romance", "science", "war")
# Stars: their mean, and the spread of what users, films, tastes and moods add to it.
MEAN, USER, FILM, TASTE, MOOD = 3.6, 0.35, 0.45, 0.5, 0.6


def history(options: Mapping[str, str]) -> RatingsHistory:
    """Return the history. `requests` is how many evenings there are, `seed` a number from which all follows.

    Raises:
        ConfigError: An option is unknown or wrong.
    """
    return RatingsHistory(**number_options(options, {"requests": 40_000, "seed": 1}))


class RatingsHistory(ColumnHistory):
    """Film evenings with a known truth.

    Attributes:
        expected: float64[requests, shown]. The stars without the user's mood of the day.
        stars: float64[requests, shown]. The stars that a user gives, or would give.
        is_rated: bool[requests, shown]. Whether they do.
    """

    def __init__(self, requests: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        shape = (requests, SHOWN)
        self.user_id = rng.integers(0, USERS, requests)
        self.film_id = _films(rng, requests)
        self.genre = rng.integers(0, len(GENRES), FILMS)
        of_genre, own = rng.normal(size=(len(GENRES), TASTES)), rng.normal(size=(FILMS, TASTES))
        film = (of_genre[self.genre] + own) / np.sqrt(2)
        user = rng.normal(size=(USERS, TASTES))
        liked = (user[self.user_id][:, None] * film[self.film_id]).sum(axis=2) / np.sqrt(TASTES)
        worth = FILM * rng.normal(size=FILMS)[self.film_id] + TASTE * liked
        self.expected = MEAN + USER * rng.normal(size=USERS)[self.user_id][:, None] + worth
        self.stars = np.clip(np.rint(self.expected + MOOD * rng.normal(size=shape)), 1, 5)
        # A user rates a good film more often than a bad one.
        self.is_rated = rng.random(shape) < 1 / (1 + np.exp(0.6 - worth))
        self._shown_ms = np.sort(rng.integers(0, DAYS * DAY_MS, requests)) + BEGIN_MS
        self._rated_ms = self._shown_ms[:, None] + rng.integers(HOUR_MS, 5 * HOUR_MS, shape)
        super().__init__(self._impression_columns(), self._action_columns())

    def _impression_columns(self) -> Arrays:
        films = self.film_id.reshape(-1)
        genres = np.array(GENRES)[self.genre[films]]
        return {
            **text_columns("request_id", _ids(np.arange(len(self.user_id)))),
            "event_time_ms": self._shown_ms,
            "user.user_id": self.user_id,
            "items[]": np.arange(len(self.user_id) + 1, dtype=np.int32) * np.int32(SHOWN),
            "items.film_id": films,
            **text_columns("items.genre", genres),
            **text_columns("items.segment_genre", genres),
        }

    def rated_in_order(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the requests and places of the ratings, in the order in which they are given."""
        request, place = np.nonzero(self.is_rated)
        order = np.argsort(self._rated_ms[request, place], kind="stable")
        return request[order], place[order]

    def _action_columns(self) -> Arrays:
        request, place = self.rated_in_order()
        return {
            **text_columns("request_id", _ids(request)),
            "event_time_ms": self._rated_ms[request, place],
            "item_id": self.film_id[request, place],
            **text_columns("action", ["rate"] * len(request)),
            "value": self.stars[request, place].astype(np.float32),
            "value?": np.ones(len(request), np.uint8),
        }


def _ids(requests: npt.NDArray[np.int64]) -> list[str]:
    return [f"evening{number:08}" for number in requests.tolist()]


def _films(rng: np.random.Generator, requests: int) -> npt.NDArray[np.int64]:
    """Return the films of each evening, each once; some are shown far more often than others."""
    films = np.sort((FILMS * rng.random((requests, SHOWN)) ** 2).astype(np.int64), axis=1)
    while (again := (films[:, 1:] == films[:, :-1]).any(axis=1)).any():
        films[again] = np.sort((FILMS * rng.random((int(again.sum()), SHOWN)) ** 2).astype(np.int64), axis=1)
    return rng.permuted(films, axis=1)
