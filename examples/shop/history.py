"""The history: a generated week of a shop. Each request shows five products; orders come hours after clicks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.events import text_columns
from streamlearn.replay import ColumnHistory, number_options

__all__ = ["ShopHistory", "history"]

Arrays = dict[str, npt.NDArray[Any]]
Int64s = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

BEGIN_MS = 1_750_032_000_000
DAYS, DAY_MS, HOUR_MS = 7, 86_400_000, 3_600_000
USERS, PRODUCTS, SHOWN, TASTES = 3_000, 500, 5, 4
CATEGORIES = ("books", "clothes", "food", "games", "garden", "kitchen", "music", "toys")
PRICE, PRICE_SPREAD, SALE_SHARE, SALE = 25.0, 0.6, 0.2, 0.7
# The logit of a click: a constant, and what users, products and tastes add to it.
CLICK, CLICK_USER, CLICK_PRODUCT, CLICK_TASTE = -2.0, 0.4, 0.5, 0.6
# The logit of an order after a click: the same without tastes, and what the logarithm of the price adds.
ORDER, ORDER_USER, ORDER_PRODUCT, ORDER_PRICE = -1.6, 0.5, 0.6, -0.7
# The logarithm of the mean number of further pieces: a constant, and what users and categories add to it.
FURTHER, FURTHER_USER, FURTHER_CATEGORY = -1.0, 0.5, 0.8


def history(options: Mapping[str, str]) -> ShopHistory:
    """Return the history. `requests` is how many requests there are, `seed` a number from which all follows.

    Raises:
        ConfigError: An option is unknown or wrong.
    """
    return ShopHistory(**number_options(options, {"requests": 60_000, "seed": 1}))


class ShopHistory(ColumnHistory):
    """Requests with a known truth.

    Attributes:
        click_chance: float64[requests, shown]. The probability of a click.
        order_chance: float64[requests, shown]. The probability of an order, click or not: the product of both.
        worth: float64[requests, shown]. What is paid on average if there is an order.
        is_clicked: bool[requests, shown]. Whether there was a click; likewise `is_ordered`.
        paid: float64[requests, shown]. What was paid, or would have been.
        shown_ms: int64[requests]. When the products were shown.
    """

    def __init__(self, requests: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        shape = (requests, SHOWN)
        shown_ms = np.sort(rng.integers(0, DAYS * DAY_MS, requests))
        self.user_id = rng.integers(0, USERS, requests)
        self.product_id = _products(rng, requests)
        self.category = rng.integers(0, len(CATEGORIES), PRODUCTS)
        # On each day other products are cheaper, so the price says more than the product.
        listed = PRICE * np.exp(PRICE_SPREAD * rng.normal(size=PRODUCTS))
        prices = np.round(listed * np.where(rng.random((DAYS, PRODUCTS)) < SALE_SHARE, SALE, 1.0), 2)
        self.price = prices[shown_ms[:, None] // DAY_MS, self.product_id]

        def added(user: float, product: float) -> Floats:
            of_users, of_products = user * rng.normal(size=USERS), product * rng.normal(size=PRODUCTS)
            return of_users[self.user_id][:, None] + of_products[self.product_id]

        of_category, own = rng.normal(size=(len(CATEGORIES), TASTES)), rng.normal(size=(PRODUCTS, TASTES))
        product = ((of_category[self.category] + own) / np.sqrt(2))[self.product_id]
        taste = (rng.normal(size=(USERS, TASTES))[self.user_id][:, None] * product).sum(axis=2) / np.sqrt(TASTES)
        self.click_chance = _sigmoid(CLICK + added(CLICK_USER, CLICK_PRODUCT) + CLICK_TASTE * taste)
        dear = ORDER_PRICE * np.log(self.price / PRICE)
        after_click = _sigmoid(ORDER + added(ORDER_USER, ORDER_PRODUCT) + dear)
        self.order_chance = self.click_chance * after_click
        of_categories = FURTHER_CATEGORY * rng.normal(size=len(CATEGORIES))
        further = np.exp(FURTHER + added(FURTHER_USER, 0.0) + of_categories[self.category][self.product_id])
        self.worth = self.price * (1 + further)
        self.is_clicked = rng.random(shape) < self.click_chance
        self.is_ordered = self.is_clicked & (rng.random(shape) < after_click)
        self.paid = self.price * (1 + rng.poisson(further))
        self.shown_ms = BEGIN_MS + shown_ms
        self._clicked_ms = self.shown_ms[:, None] + rng.integers(1_000, 60_000, shape)
        # Half of the orders come within an hour and a half of the click, the last ones within six hours.
        self._ordered_ms = self._clicked_ms + (5.9 * HOUR_MS * rng.random(shape) ** 2).astype(np.int64)
        super().__init__(self._impression_columns(), self._action_columns())

    def _impression_columns(self) -> Arrays:
        products = self.product_id.reshape(-1)
        categories = np.array(CATEGORIES)[self.category[products]]
        return {
            **text_columns("request_id", _ids(np.arange(len(self.user_id)))),
            "event_time_ms": self.shown_ms,
            "user.user_id": self.user_id,
            "items[]": np.arange(len(self.user_id) + 1, dtype=np.int32) * np.int32(SHOWN),
            "items.product_id": products,
            **text_columns("items.category", categories),
            "items.price": self.price.reshape(-1).astype(np.float32),
            **text_columns("items.segment_category", categories),
        }

    def _action_columns(self) -> Arrays:
        clicks, orders = np.nonzero(self.is_clicked), np.nonzero(self.is_ordered)
        request, place = (np.concatenate(both) for both in zip(clicks, orders, strict=True))
        is_order = np.arange(len(request)) >= len(clicks[0])
        return {
            **text_columns("request_id", _ids(request)),
            "event_time_ms": np.concatenate([self._clicked_ms[clicks], self._ordered_ms[orders]]),
            "item_id": self.product_id[request, place],
            **text_columns("action", np.where(is_order, "order", "click")),
            "value": np.where(is_order, self.paid[request, place], 0).astype(np.float32),
            "value?": is_order.astype(np.uint8),
        }


def _sigmoid(logit: Floats) -> Floats:
    chances: Floats = 1 / (1 + np.exp(-logit))
    return chances


def _ids(requests: Int64s) -> list[str]:
    return [f"request{number:08}" for number in requests.tolist()]


def _products(rng: np.random.Generator, requests: int) -> Int64s:
    """Return the products of each request, each once; some are shown far more often than others."""
    products = np.sort((PRODUCTS * rng.random((requests, SHOWN)) ** 2).astype(np.int64), axis=1)
    while (again := (products[:, 1:] == products[:, :-1]).any(axis=1)).any():
        products[again] = np.sort((PRODUCTS * rng.random((int(again.sum()), SHOWN)) ** 2).astype(np.int64), axis=1)
    return rng.permuted(products, axis=1)
