"""The history: a month of generated film evenings. Each shows five films to a user, who rates some of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.errors import ConfigError
from streamlearn.events import rows_of, texts_of
from streamlearn.replay import HistoryBlock

__all__ = ["RatingsHistory", "history"]

Arrays = dict[str, npt.NDArray[Any]]

BEGIN_MS = 1_750_000_000_000
DAYS, DAY_MS, HOUR_MS = 30, 86_400_000, 3_600_000
USERS, FILMS, SHOWN, TASTES = 3_000, 1_200, 5, 4
GENRES = ("comedy", "crime", "drama", "family", "horror", "romance", "science", "war")
REQUESTS_MAX = 10_000_000
# Stars: their mean, and the spread of what users, films, tastes and moods add to it.
MEAN, USER, FILM, TASTE, MOOD = 3.6, 0.35, 0.45, 0.5, 0.6


def history(options: Mapping[str, str]) -> RatingsHistory:
    """Return the history. `requests` is how many evenings there are, `seed` a number from which all follows.

    Raises:
        ConfigError: An option is unknown or wrong.
    """
    known = {"requests": 40_000, "seed": 1}
    for name, text in options.items():
        try:
            number = int(text)
        except ValueError:
            number = 0
        if name not in known or not 1 <= number <= REQUESTS_MAX:
            message = f"option {name[:50]}={text[:50]}"
            raise ConfigError(message, help=f"the options are requests and seed, numbers from 1 to {REQUESTS_MAX:,}")
        known[name] = number
    return RatingsHistory(**known)


class RatingsHistory:
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
        self._impressions = self._impression_columns()
        self._actions = self._action_columns()

    @property
    def events_count(self) -> int:
        """Number of events."""
        return len(self._shown_ms) + len(self._actions["event_time_ms"])

    @property
    def begin_ms(self) -> int:
        """Time of the first impression."""
        return int(self._shown_ms[0])

    def blocks(self, span_ms: int) -> Iterator[HistoryBlock]:
        """Yield the whole month in blocks of `span_ms`; every event arrives when it happens."""
        times = self._shown_ms, self._actions["event_time_ms"]
        last_ms = int(max(column[-1] for column in times))
        bounds = [*range(self.begin_ms, last_ms + 1, span_ms), last_ms + 1]
        cuts = [np.searchsorted(column, bounds).tolist() for column in times]
        for at, until_ms in enumerate(bounds[1:]):
            (shown, shown_end), (done, done_end) = ((cut[at], cut[at + 1]) for cut in cuts)
            yield HistoryBlock(
                rows_of(self._impressions, shown, shown_end) if shown_end > shown else {},
                shown_end - shown,
                rows_of(self._actions, done, done_end) if done_end > done else {},
                done_end - done,
                watermark_ms=until_ms,
                until_ms=until_ms,
            )

    def _impression_columns(self) -> Arrays:
        films, genres = self.film_id.reshape(-1), self.genre[self.film_id.reshape(-1)]
        return {
            **_texts("request_id", *self._ids(np.arange(len(self.user_id)))),
            "event_time_ms": self._shown_ms,
            "user.user_id": self.user_id,
            "items[]": np.arange(len(self.user_id) + 1, dtype=np.int32) * np.int32(SHOWN),
            "items.film_id": films,
            **_texts("items.genre", *texts_of(genres, GENRES)),
            **_texts("items.segment_genre", *texts_of(genres, GENRES)),
        }

    def rated_in_order(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the requests and places of the ratings, in the order in which they are given."""
        request, place = np.nonzero(self.is_rated)
        order = np.argsort(self._rated_ms[request, place], kind="stable")
        return request[order], place[order]

    def _action_columns(self) -> Arrays:
        request, place = self.rated_in_order()
        return {
            **_texts("request_id", *self._ids(request)),
            "event_time_ms": self._rated_ms[request, place],
            "item_id": self.film_id[request, place],
            **_texts("action", *texts_of(np.zeros(len(request), np.int64), ["rate"])),
            "value": self.stars[request, place].astype(np.float32),
            "value?": np.ones(len(request), np.uint8),
        }

    def _ids(self, requests: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
        """Return the ids of requests, of 15 bytes each, and where each begins."""
        ids = np.char.add("evening", np.char.zfill(requests.astype("U8"), 8)).astype("S15")
        return np.frombuffer(ids.tobytes(), np.uint8), np.arange(len(ids) + 1, dtype=np.int32) * np.int32(15)


def _films(rng: np.random.Generator, requests: int) -> npt.NDArray[np.int64]:
    """Return the films of each evening, each once; some are shown far more often than others."""
    films = np.sort((FILMS * rng.random((requests, SHOWN)) ** 2).astype(np.int64), axis=1)
    while (again := (films[:, 1:] == films[:, :-1]).any(axis=1)).any():
        films[again] = np.sort((FILMS * rng.random((int(again.sum()), SHOWN)) ** 2).astype(np.int64), axis=1)
    return rng.permuted(films, axis=1)


def _texts(name: str, data: npt.NDArray[np.uint8], at: npt.NDArray[np.int32]) -> Arrays:
    return {name: data, f"{name}$": at}
