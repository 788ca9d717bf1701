"""The history: four generated days of a news site. Each request shows five of the newest articles to a user."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.events import text_columns
from streamlearn.replay import ColumnHistory, number_options

__all__ = ["NewsHistory", "history"]

Arrays = dict[str, npt.NDArray[Any]]
Int64s = npt.NDArray[np.int64]

BEGIN_MS = 1_750_032_000_000
DAYS, HOUR_MS = 4, 3_600_000
# An article appears every six minutes, and is shown while it is one of the newest: for about five hours.
ARTICLE_MS, NEWEST = 360_000, 50
USERS, SHOWN, TASTES = 2_000, 5, 4
CATEGORIES = ("business", "culture", "local", "politics", "science", "sports", "travel", "world")
# The logit of a click: a constant, what users, articles and tastes add to it, and what each hour takes away. The
# interest in a category changes by `CATEGORY` from day to day.
CONSTANT, USER, ARTICLE, TASTE, HOUR, CATEGORY = -1.8, 0.5, 0.8, 0.7, -0.2, 0.4


def history(options: Mapping[str, str]) -> NewsHistory:
    """Return the history. `requests` is how many requests there are, `seed` a number from which all follows.

    Raises:
        ConfigError: An option is unknown or wrong.
    """
    return NewsHistory(**number_options(options, {"requests": 60_000, "seed": 1}))


class NewsHistory(ColumnHistory):
    """Requests with a known truth.

    Attributes:
        chance: float64[requests, shown]. The probability of a click.
        is_clicked: bool[requests, shown]. Whether there was one.
    """

    def __init__(self, requests: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        shape, end_ms = (requests, SHOWN), DAYS * 24 * HOUR_MS
        # The articles before the first request are as many as are shown.
        older_ms = rng.integers(-NEWEST * ARTICLE_MS, 0, NEWEST)
        appeared_ms = np.sort(np.concatenate([older_ms, rng.integers(0, end_ms, end_ms // ARTICLE_MS)]))
        articles = len(appeared_ms)
        shown_ms = np.sort(rng.integers(0, end_ms, requests))
        self.user_id = rng.integers(0, USERS, requests)
        self.article_id = np.searchsorted(appeared_ms, shown_ms, "right")[:, None] - 1 - _places(rng, requests)
        self.category = rng.integers(0, len(CATEGORIES), articles)
        of_category, own = rng.normal(size=(len(CATEGORIES), TASTES)), rng.normal(size=(articles, TASTES))
        article = (of_category[self.category] + own) / np.sqrt(2)
        user = rng.normal(size=(USERS, TASTES))
        self.age_h = (shown_ms[:, None] - appeared_ms[self.article_id]) / HOUR_MS
        logit = CONSTANT + USER * rng.normal(size=USERS)[self.user_id][:, None] + HOUR * self.age_h
        logit += ARTICLE * rng.normal(size=articles)[self.article_id]
        logit += TASTE * (user[self.user_id][:, None] * article[self.article_id]).sum(axis=2) / np.sqrt(TASTES)
        of_days = np.cumsum(CATEGORY * rng.normal(size=(DAYS + 1, len(CATEGORIES))), axis=0)
        day, part = np.divmod(shown_ms[:, None] / (24 * HOUR_MS), 1)
        before, after = (of_days[day.astype(int) + one, self.category[self.article_id]] for one in (0, 1))
        logit += before + part * (after - before)
        self.chance = 1 / (1 + np.exp(-logit))
        self.is_clicked = rng.random(shape) < self.chance
        self._shown_ms = BEGIN_MS + shown_ms
        self._clicked_ms = self._shown_ms[:, None] + rng.integers(1_000, 60_000, shape)
        super().__init__(self._impression_columns(), self._action_columns())

    def _impression_columns(self) -> Arrays:
        articles = self.article_id.reshape(-1)
        categories = np.array(CATEGORIES)[self.category[articles]]
        return {
            **text_columns("request_id", _ids(np.arange(len(self.user_id)))),
            "event_time_ms": self._shown_ms,
            "user.user_id": self.user_id,
            "items[]": np.arange(len(self.user_id) + 1, dtype=np.int32) * np.int32(SHOWN),
            "items.article_id": articles,
            **text_columns("items.category", categories),
            "items.age_h": self.age_h.reshape(-1).astype(np.float32),
            **text_columns("items.segment_category", categories),
        }

    def _action_columns(self) -> Arrays:
        request, place = np.nonzero(self.is_clicked)
        return {
            **text_columns("request_id", _ids(request)),
            "event_time_ms": self._clicked_ms[request, place],
            "item_id": self.article_id[request, place],
            **text_columns("action", ["click"] * len(request)),
        }


def _ids(requests: Int64s) -> list[str]:
    return [f"request{number:08}" for number in requests.tolist()]


def _places(rng: np.random.Generator, requests: int) -> Int64s:
    """Return the places of each request's articles among the newest, each once; newer ones are shown more often."""
    places = np.sort((NEWEST * rng.random((requests, SHOWN)) ** 2).astype(np.int64), axis=1)
    while (again := (places[:, 1:] == places[:, :-1]).any(axis=1)).any():
        places[again] = np.sort((NEWEST * rng.random((int(again.sum()), SHOWN)) ** 2).astype(np.int64), axis=1)
    return rng.permuted(places, axis=1)
