"""Derived columns: a front packs what training packs, of several requests at once."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from streamlearn.features import Calibration, CountIn, Cross, Dense, FeatureSpec, Product, Slot
from streamlearn.features.keys import keys_of
from streamlearn.native import native
from streamlearn.samples import FeatureColumns, SlotColumns
from streamlearn.table import Changes, Packing, TableOptions, TableSet
from streamlearn.table.derivation import with_derived
from streamlearn.testing import wait_until
from tests.serving import test_front
from tests.serving.test_front import Rig, array

FEATURES = FeatureSpec(
    slots=(
        Slot("user_id", "user", dim=4),
        Slot("country", "user", dim=4, value="str", default="NO"),
        Slot("seen", "user", dim=4, multi=True, pooling="sequence", length=3, keys_of="item_id"),
        Slot("item_id", "item", dim=4),
        Slot("brand", "item", dim=4, value="str"),
        Slot("topics", "item", dim=4, multi=True, pooling="mean"),
    ),
    dense=(Dense("price", "item", width=2), Dense("purse", "user", width=2), Dense("cost", "item", width=2)),
    derived=(
        Cross("country", "user_id", table="pairs", dim=3, initial_range=1.0),
        Cross("brand", "country", table="pairs", dim=3, initial_range=1.0),
        Cross("user_id", "item_id", dim=4),
        Cross("item_id", "brand", table="pairs", dim=3, initial_range=1.0),
        Product("price", "purse"),
        Product("cost", "price"),
        Product("purse", "purse", name="purse_squared"),
        CountIn("item_id", "seen"),
        Calibration("click", "country"),
        Calibration("click", "brand"),
        Calibration("click", "country", name="country_curve", method="isotonic"),
        Calibration("click", "brand", name="brand_curve", method="isotonic"),
    ),
    item_id="item_id",
)


class Watched(Rig):
    """A rig whose lane keeps what it was given."""

    def _lane(self, lane: int) -> None:
        self.seen: list[Any] = []
        while not self._ended.is_set():
            self._parked[lane] = True
            self._open.wait()
            self._parked[lane] = False
            if (work := self.front.take(lane, 0.05)) is None:
                continue
            user, index, (item,) = [*map(array, work.user())], array(work.user_index()), map(array, work.item())
            self.seen.append((user[0].copy(), index.copy(), item.copy(), work.candidates))
            self.front.give(work, np.zeros((len(index), 2), np.float32))


USERS: list[tuple[int, str | None, int]] = [(7, "SE", 3), (8, None, 1), (9, "NO", 4)]
"""The requests: the user, the country, and how many candidates."""
BRANDS = ("acme", "globex", "initech")


def request(user: int, country: str | None, items: int) -> dict[str, Any]:
    listed = [
        {"item_id": user * at, "brand": BRANDS[at % 3], "topics": list(range(at)), **prices_of(at)}
        for at in range(items)
    ]
    known = {"user_id": user, "seen": seen_of(user), "purse": [user / 3, 2.0]}
    return {"user": known | ({"country": country} if country else {}), "items": listed}


def seen_of(user: int) -> list[int]:
    """A history that has some of the candidates, once or twice; longer than what is kept."""
    return [0, user, user, 2 * user, 0, user][: user - 4]


def prices_of(item: int) -> dict[str, list[float]]:
    # A product of large numbers stays finite.
    return {"price": [item / 2, -item], "cost": [0.1, 3e38 if item == 2 else item * item]}


def calibrated(slot: str, values: Sequence[str]) -> Any:
    """The keys of a calibration's rows."""
    keys = keys_of(FEATURES.slot(slot), [*values])
    return native.cross_keys(keys, keys, native.slot_salt(f"click_by_{slot}"))


def packed(tables: TableSet, user: int, country: str | None, items: int) -> tuple[Any, Any]:
    """The same request as training packs it."""
    slot = {one.name: one for one in FEATURES.slots}
    history = keys_of(slot["seen"], seen_of(user)[-3:])
    of_user = {
        "user_id": SlotColumns(keys_of(slot["user_id"], [user])),
        "country": SlotColumns(keys_of(slot["country"], [country or "NO"])),
        "seen": SlotColumns(history, np.array([0, len(history)], np.int32)),
    }
    of_item = {
        "item_id": SlotColumns(keys_of(slot["item_id"], [user * at for at in range(items)])),
        "brand": SlotColumns(keys_of(slot["brand"], [BRANDS[at % 3] for at in range(items)])),
        "topics": SlotColumns(
            keys_of(slot["topics"], [topic for at in range(items) for topic in range(at)]),
            np.cumsum([0, *range(items)], dtype=np.int32),
        ),
    }
    prices = {name: np.array([prices_of(at)[name] for at in range(items)], np.float32) for name in ("price", "cost")}
    users, candidates = with_derived(
        FEATURES.pack,
        FeatureColumns(of_user, {"purse": np.array([[user / 3, 2.0]], np.float32)}),
        FeatureColumns(of_item, prices),
        np.zeros(items, np.int32),
    )
    pack = FEATURES.pack
    return Packing(pack.user, tables).flat(users, 1)[0], Packing(pack.item, tables).flat(candidates, items)


def test_what_is_packed_of_merged_requests_is_what_training_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_front, "FEATURES", FEATURES)
    tables = TableSet([TableOptions(spec, 10_000) for spec in FEATURES.tables])
    known = {
        name: Changes(name, np.zeros(0, np.uint64), np.zeros((0, dim), np.float32)) for name, dim in tables.dims.items()
    }
    keys = np.concatenate([calibrated("country", ("SE", "NO")), calibrated("brand", BRANDS)])
    known["calibration"] = Changes("calibration", keys, np.arange(2 * len(keys), dtype=np.float32).reshape(-1, 2))
    tables.stage(1, None, [*known.values()])
    rig = Watched(tables=tables)
    try:
        rig.front.activate(rig.handles[1])
        rig.hold()
        with ThreadPoolExecutor(len(USERS)) as callers:
            asked = [callers.submit(rig.ask, "/score", request(*one)) for one in USERS]
            wait_until(lambda: rig.front.waiting() == len(USERS), "all requests to wait")
            rig.let_go()
            assert {one.result()[0] for one in asked} == {200}
    finally:
        rig.close()
    wanted = [packed(tables, *one) for one in USERS]
    rows = np.concatenate([items for _, items in wanted])
    by_name = {one.name: rows[:, one.at : one.at + one.width] for one in FEATURES.pack.item.flat}
    spreads = {one.name: float(np.ptp(by_name[one.name])) for one in FEATURES.derived if one.name in by_name}
    assert min(spreads.values()) > 0.05, spreads
    assert set(by_name["item_id_in_seen"].ravel()) == {0, 1, 2}
    met = 0
    for user_flat, index, item_flat, candidates in rig.seen:
        for user in np.unique(index[:candidates]):
            (items,) = (items for row, items in wanted if np.array_equal(row, user_flat[user]))
            np.testing.assert_array_equal(item_flat[:candidates][index[:candidates] == user], items)
            met += 1
    assert met == len(USERS)
    assert len(rig.seen) < len(USERS), "no requests were merged"
