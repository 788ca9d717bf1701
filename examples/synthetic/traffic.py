"""The traffic: requests of users, the shown items, and the users' actions, chunk by chunk.

It does not know topics, or how events arrive.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from streamlearn.events import texts_of
from streamlearn.features import LabelGroup

from .chance import chance_of, mix
from .options import Options
from .recent import Clicks, Recent
from .world import CATEGORIES, COUNTRIES, LONG_SHARE, PAGES, TASTES, Arrays, Int64s, Shown, World

__all__ = ["ACTIONS", "Chunk", "Traffic"]

ACTIONS = ("click", "long_view")
PAGE_NAMES = ("feed", "follow", "search", "similar")
# 7 of 10 requests show one item, 2 show two, and 1 shows three.
ITEMS_SHARES = (0.7, 0.9)
ITEMS_MEAN = 1.4
CHUNK_REQUESTS = 16_384
CHUNK_MS_MAX = 60_000
HOUR_MS = 3_600_000
# Delays of actions: most are seconds, the others uniform in the window.
SOON_SHARE, SOON_MS, LONG_VIEW_MS = 0.9, 8_000.0, 11_000.0
_CHUNK = 100
_HEX = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), np.uint16)

assert len(PAGE_NAMES) == PAGES
assert np.iinfo(np.int8).max >= CATEGORIES


class Chunk(NamedTuple):
    """The requests of a period of event time, and the actions on them, which may be later.

    Attributes:
        begin_ms: Begin of the period.
        end_ms: End of the period.
        impressions: Columns of impressions in the order of time, also the true probabilities `items.true_click` and
            `items.true_long_view`, and `items.poisoned`.
        actions: Columns of actions in the order of their impressions.
    """

    begin_ms: int
    end_ms: int
    impressions: Arrays
    actions: Arrays


class Traffic:
    """The generator of traffic.

    Args:
        options: The options.
        group: The label group, whose window determines the delays of actions.
    """

    def __init__(self, options: Options, group: LabelGroup) -> None:
        self._options = options
        self._window_ms = group.window_s * 1000
        self._world = World(options)
        self._recent = Recent(options.users)
        events = (1 + ITEMS_MEAN * options.click_rate * (1 + LONG_SHARE)) * (1 + options.duplicates)
        self._requests = max(1, round(options.events / events))
        self._requests_per_ms = options.rate / events / 1000
        self._chunk_ms = max(1, min(CHUNK_MS_MAX, round(CHUNK_REQUESTS / self._requests_per_ms)))

    def chunks(self) -> Iterator[Chunk]:
        """Yield all chunks; call it only once."""
        number, made = 0, 0
        while made < self._requests:
            upto = min(self._requests, int((number + 1) * self._chunk_ms * self._requests_per_ms))
            yield self._chunk(number, np.arange(made, upto))
            number, made = number + 1, upto

    def _chunk(self, number: int, requests: Int64s) -> Chunk:
        begin_ms = self._options.start_ms + number * self._chunk_ms
        rng = chance_of(self._options.seed, _CHUNK, number)
        self._world.renew(begin_ms)
        self._recent.advance(begin_ms)
        since_ms = (requests + rng.random(len(requests))) / self._requests_per_ms
        time_ms = self._options.start_ms + since_ms.astype(np.int64)
        time_ms = np.clip(time_ms, begin_ms, begin_ms + self._chunk_ms - 1)
        user = self._world.draw_users(rng, len(requests))
        request_id = _request_ids(requests, self._options.seed)
        items_at, place, position = self._shown_items(rng, len(requests))
        row = np.repeat(np.arange(len(requests)), np.diff(items_at))
        shown = Shown(user[row], place, position, self._matches(user[row], place), time_ms[row])
        impressions: Arrays = {
            "request_id": request_id.reshape(-1),
            "request_id$": _every(request_id.shape[1], len(requests)),
            "event_time_ms": time_ms,
            **self._user_columns(rng, user, time_ms),
            "items[]": items_at,
            **self._item_columns(shown),
        }
        actions = self._actions(rng, shown, impressions)
        # Replace the row of each action's request with the request id.
        of_request = row[actions.pop("row")]
        actions["request_id"] = request_id[of_request].reshape(-1)
        actions["request_id$"] = _every(request_id.shape[1], len(of_request))
        return Chunk(begin_ms, begin_ms + self._chunk_ms, impressions, actions)

    def _shown_items(self, rng: np.random.Generator, requests: int) -> tuple[npt.NDArray[np.int32], Int64s, Int64s]:
        """Return the offsets of requests' items, the items' places in the catalogue, and their positions."""
        counts = 1 + np.searchsorted(ITEMS_SHARES, rng.random(requests), side="right")
        items_at = np.zeros(requests + 1, np.int32)
        np.cumsum(counts, out=items_at[1:])
        place = self._world.draw_places(rng, int(items_at[-1]))
        position = np.arange(len(place)) - np.repeat(items_at[:-1], counts)
        # A request shows no item twice: replace repeated items with neighbours in the catalogue.
        for at in (1, 2):
            of = np.flatnonzero(position == at)
            for _ in range(at):
                for back in range(1, at + 1):
                    place[of] += place[of] == place[of - back]
                    place[of] %= self._options.items
        return items_at, place, position

    def _matches(self, user: Int64s, place: Int64s) -> Int64s:
        category = self._world.items["category"][place].astype(np.int8)
        matches: Int64s = np.count_nonzero(self._recent.categories(user) == category[:, None], axis=1)
        return matches

    def _user_columns(self, rng: np.random.Generator, user: Int64s, time_ms: Int64s) -> Arrays:
        users = self._world.users
        page = rng.integers(0, PAGES, len(user))
        columns: Arrays = {"user.user_id": user, "user.page": page, "user.hour": time_ms // HOUR_MS % 24}
        columns["segments.page"], columns["segments.page$"] = texts_of(page, PAGE_NAMES)
        country, country_at = texts_of(users["country"][user], COUNTRIES)
        columns["user.country"], columns["user.country$"] = country, country_at
        for name in ("cohort", "device", "age_band", "language"):
            columns[f"user.{name}"] = users[name][user]
        items, categories, offsets = self._recent.sequences(user)
        columns["user.recent_items"], columns["user.recent_items[]"] = items, offsets
        columns["user.recent_categories"], columns["user.recent_categories[]"] = categories, offsets
        columns["user.taste"] = users["taste"][user].reshape(-1)
        columns["user.taste[]"] = _every(TASTES, len(user))
        return columns

    def _item_columns(self, shown: Shown) -> Arrays:
        items, place = self._world.items, shown.place
        names = ("item_id", "author_id", "category", "brand", "length_band", "price_band", "origin")
        columns: Arrays = {f"items.{name}": items[name][place] for name in names}
        minutes = ((shown.time_ms - items["born_ms"][place]) / 60_000).astype(np.float32)
        age = np.log2(1 + np.maximum(minutes, 0))
        columns["items.fresh_band"] = age.astype(np.int64)
        columns["items.age"] = age / np.float32(16)
        columns["items.position"] = shown.position
        columns["items.topics"] = items["topic"][place].reshape(-1)
        columns["items.topics[]"] = _every(2, len(place))
        columns["items.quality"] = items["quality"][place].reshape(-1)
        columns["items.quality[]"] = _every(TASTES, len(place))
        click = _sigmoid(self._world.click_logit(shown))
        columns["items.true_click"] = click
        columns["items.true_long_view"] = click * _sigmoid(self._world.long_logit(shown))
        columns["items.poisoned"] = self._poisoned(shown.time_ms)
        return columns

    def _poisoned(self, time_ms: Int64s) -> npt.NDArray[np.bool_]:
        begin_ms, end_ms = (
            self._options.start_ms + 1000 * since_s
            for since_s in (self._options.poison_from_s, self._options.poison_to_s)
        )
        return (time_ms >= begin_ms) & (time_ms < end_ms)

    def _actions(self, rng: np.random.Generator, shown: Shown, impressions: Arrays) -> Arrays:
        """Return the actions, with `row`, the row of the shown item."""
        click, long_view = impressions["items.true_click"], impressions["items.true_long_view"]
        poisoned = impressions["items.poisoned"]
        wrong = 1 - click if self._options.poison_kind == "flip" else np.float32(0.5)
        clicked = np.flatnonzero(rng.random(len(click), np.float32) < np.where(poisoned, wrong, click))
        share = long_view[clicked] / np.maximum(click[clicked], np.float32(1e-30))
        wrong = 1 - share if self._options.poison_kind == "flip" else np.float32(0.5)
        share = np.where(poisoned[clicked], wrong, share)
        long = np.flatnonzero(rng.random(len(clicked), np.float32) < share)
        clicked_ms, long_ms = self._delays_ms(rng, len(clicked))
        time_ms = shown.time_ms[clicked]
        item_id = impressions["items.item_id"]
        self._recent.add(
            Clicks(
                time_ms + clicked_ms,
                shown.user[clicked],
                item_id[clicked],
                impressions["items.category"][clicked],
            )
        )
        row = np.concatenate((clicked, clicked[long]))
        action, action_at = texts_of(np.repeat([0, 1], [len(clicked), len(long)]), ACTIONS)
        return {
            "row": row,
            "event_time_ms": np.concatenate((time_ms + clicked_ms, (time_ms + long_ms)[long])),
            "item_id": item_id[row],
            "action": action,
            "action$": action_at,
        }

    def _delays_ms(self, rng: np.random.Generator, clicks: int) -> tuple[Int64s, Int64s]:
        """Return the delays of clicks, and of long views of the same items, after the impression."""
        soon = rng.random(clicks) < SOON_SHARE
        delay_ms = np.where(soon, rng.exponential(SOON_MS, clicks), rng.random(clicks) * self._window_ms)
        # Delays are within the window. Late ones are within the next window.
        late = rng.random(clicks) < self._options.late_share
        low, high = np.where(late, self._window_ms + 1, 0), self._window_ms * np.where(late, 2, 1)
        late_ms = self._window_ms * (1 + rng.random(clicks))
        delay_ms = np.where(late, late_ms, delay_ms)
        click_ms = np.clip(delay_ms, low, high).astype(np.int64)
        long_ms = np.clip(delay_ms + LONG_VIEW_MS, low, high).astype(np.int64)
        return click_ms, long_ms


def _sigmoid(logit: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    unit = np.float32(1)
    return unit / (unit + np.exp(-logit))


def _every(width: int, rows: int) -> npt.NDArray[np.int32]:
    """Return the offsets of rows with `width` values each."""
    return np.arange(rows + 1, dtype=np.int32) * np.int32(width)


def _request_ids(numbers: Int64s, seed: int) -> npt.NDArray[np.uint8]:
    """Return uint8[n, 16]: 16 hex digits per request, all different."""
    big_endian = mix(numbers, seed).astype(">u8").view(np.uint8)
    return _HEX[big_endian].view(np.uint8).reshape(len(numbers), 16)
