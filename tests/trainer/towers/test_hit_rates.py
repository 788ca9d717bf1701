"""HitRates: ranks against ranks by NumPy, of the towers and of popularity."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamlearn.trainer.intake.item_feed import ItemFeed
from streamlearn.trainer.towers import hit_rates
from streamlearn.trainer.towers.hit_rates import HitRates
from streamlearn.trainer.towers.tower_learner import PackedTowers
from streamlearn.trainer.towers.tower_steps import TowerSteps, own_steps
from tests.trainer.runs import local_client
from tests.trainer.stream import messages_of, write_messages
from tests.trainer.towers.towered import towered_folder

HOUR_MS, DAY_MS = 3_600_000, 86_400_000


class Towers:
    """Vectors that hold numbers: a user's is one, an item's is the number of its key."""

    def __init__(self, of_keys: dict[int, float]) -> None:
        self.of_keys = of_keys

    def users(self, flat: Any, sequence: Any) -> Any:
        return np.ones((len(flat), 1), np.float32)

    def items(self, flat: Any) -> Any:
        return np.array([[self.of_keys[int(key)]] for key in flat[:, 0]], np.float32)


class Known:
    """Keys of items; a packed item is its key."""

    def __init__(self, keys: list[int]) -> None:
        self.keys = np.array(keys, np.uint64)
        self.items = self

    def __len__(self) -> int:
        return len(self.keys)

    def slices(self, size: int) -> Any:
        for begin in range(0, len(self.keys), size):
            yield self.keys[begin : begin + size], self.keys[begin : begin + size]

    def pack_items(self, keys: Any, count: int) -> Any:
        assert len(keys) == count
        return keys[:, None].astype(np.float32)


def rates_of(of_keys: dict[int, float], known: list[int]) -> tuple[HitRates, Known]:
    library = Known(known)
    steps = type("Steps", (), {"rows": library})()
    steps.state = type("State", (), {"learner": Towers(of_keys)})()
    return HitRates(steps), library


def positives(keys: list[int], time_ms: int) -> PackedTowers:
    items, item_index = np.unique(np.array(keys, np.uint64), return_inverse=True)
    count = len(keys)
    fields: dict[str, Any] = dict.fromkeys(PackedTowers.__dataclass_fields__)
    fields |= {"keys": items, "item_index": item_index, "user_index": np.arange(count)}
    fields |= {"event_time_ms": np.full(count, time_ms), "user_flat": np.zeros((count, 1), np.float32)}
    return PackedTowers(**fields | {"item_flat": items[:, None].astype(np.float32)})


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hit_rates, "TOPS", (1, 2, 4))


def test_a_positive_is_found_if_few_items_have_higher_logits() -> None:
    rates, _ = rates_of({1: 0.1, 2: 0.4, 3: 0.3, 4: 0.2, 5: 0.9}, [1, 2, 3, 4])
    rates.see(positives([2, 3, 4, 1], 0))
    rates.see(positives([5], 0))  # the best one is not known yet
    (day,) = rates.days
    assert (day.positives, day.items) == (5, 4)
    assert day.towers == pytest.approx((1 / 5, 2 / 5, 4 / 5))


def test_popularity_ranks_by_positives_of_before_that_halve_every_six_hours() -> None:
    rates, _ = rates_of(dict.fromkeys(range(1, 7), 0.0), [1, 2, 3, 4, 5, 6])
    rates.see(positives([1, 1, 1], 0))
    rates.see(positives([2], 12 * HOUR_MS))
    # Now 1 has 3/4 and 2 has 1.
    rates.see(positives([2, 1], DAY_MS))
    # Here 3 is one of four that never came.
    rates.see(positives([3], 2 * DAY_MS))
    _, next_day, last = rates.days
    assert next_day.popularity == pytest.approx((1 / 2, 1, 1))
    assert last.popularity == pytest.approx((0, 0, 2 / 4))
    assert [day.day_ms for day in rates.days] == [0, DAY_MS, 2 * DAY_MS]


def test_counts_stay_finite_and_in_order_for_years() -> None:
    rates, _ = rates_of({1: 0.0, 2: 0.0, 3: 0.0}, [1, 2, 3])
    for day in range(0, 2_000, 40):
        rates.see(positives([1], day * DAY_MS))
        rates.see(positives([2], day * DAY_MS + HOUR_MS))
    rates.see(positives([2], 2_000 * DAY_MS))
    assert rates.days[-1].popularity == pytest.approx((1, 1, 1))
    assert all(np.isfinite(count) for count in rates._counts.values())


def test_of_many_items_a_share_of_the_steps_is_ranked_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    numbers = dict(enumerate(rng.permutation(100).astype(float).tolist()))
    rates, _ = rates_of(numbers, [*range(100)])
    monkeypatch.setattr(hit_rates, "_ITEMS_AT_ONCE", 35)
    monkeypatch.setattr(hit_rates, "_ITEMS_A_STEP", 30)
    for _ in range(8):
        rates.see(positives([*range(100)], 0))
    (day,) = rates.days
    assert day.positives == 2 * 100
    assert day.towers == pytest.approx((1 / 100, 2 / 100, 4 / 100))
    monkeypatch.setattr(hit_rates, "_POSITIVES_MAX", 7)
    monkeypatch.setattr(hit_rates, "_ITEMS_A_STEP", 100)
    rates.see(positives([*range(100)], DAY_MS))
    assert rates.days[-1].positives == 7


def test_each_step_is_ranked_before_it_is_learned_by_what_was_learned_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hit_rates, "TOPS", (50, 100, 500))
    folder = towered_folder(tmp_path)
    write_messages(folder, messages_of(folder.app, 8))
    hits, expected, positives_seen = np.zeros(3), np.zeros(3), [0]
    with local_client(folder) as client, ItemFeed.open(folder) as items:
        made = own_steps(folder, client, items.library)

        def watched(learner: Any, rows: Any) -> TowerSteps:
            steps = made(learner, rows)
            assert isinstance(steps, TowerSteps)
            rates = HitRates(steps)

            def see(packed: PackedTowers) -> None:
                rates.see(packed)
                known = dict[int, np.ndarray]()
                for keys, columns in steps.rows.items.slices(1_000):
                    vectors = steps.state.learner.items(steps.rows.pack_items(columns, len(keys)))
                    known |= dict(zip(keys.tolist(), vectors, strict=True))
                users = steps.state.learner.users(packed.user_flat, packed.user_sequence)
                vectors_now = steps.state.learner.items(packed.item_flat)
                for user, item in zip(packed.user_index, packed.item_index, strict=True):
                    key = int(packed.keys[item])
                    positives_seen[0] += bool(known)
                    if key in known:
                        of_user = {other: float(users[user] @ vector) for other, vector in known.items()}
                        own = float(users[user] @ vectors_now[item])  # as it was shown in this step
                        before = sum(value > own + 1e-5 for other, value in of_user.items() if other != key)
                        expected[:] += before < np.array([50, 100, 500])
                count = sum(day.positives for day in rates.days)
                hits[:] = sum((np.array(day.towers) * day.positives for day in rates.days), np.zeros(3))
                assert count == positives_seen[0]

            steps.before = see
            return steps

        from tests.trainer.runs import run

        run(folder, client=client, lead=watched, items=items)
    assert positives_seen[0] > 100
    assert hits == pytest.approx(expected, abs=1)
