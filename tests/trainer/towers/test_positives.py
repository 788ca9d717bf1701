"""Positives: what is joined and thinned fits together, some are held out; and popularity counts what came lately."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streamlearn.samples import FeatureColumns, SlotColumns
from streamlearn.trainer.towers.popularity import HALF_LIFE_MS, Popularity
from streamlearn.trainer.towers.positives import Positives, are_held_out


def positives(count: int, seed: int) -> Positives:
    """Positives of which each has the key of its user plus 1,000 as that of its item."""
    chance = np.random.default_rng(seed)
    keys = chance.integers(0, 1 << 40, max(1, count // 3)).astype(np.uint64)
    index = np.sort(chance.integers(0, len(keys), count))
    used, index = np.unique(index, return_inverse=True)
    keys = keys[used]
    offsets = np.arange(len(keys) + 1, dtype=np.int32) * 2
    users = FeatureColumns({"id": SlotColumns(keys), "seen": SlotColumns(np.repeat(keys, 2), offsets)}, {})
    return Positives(users, len(keys), index, keys[index] + np.uint64(1_000))


def check(some: Positives) -> None:
    assert some.requests == len(some.users.slots["id"].keys)
    assert np.array_equal(np.unique(some.user_index), np.arange(some.requests))
    of_each = some.users.slots["id"].keys[some.user_index]
    assert np.array_equal(of_each + np.uint64(1_000), some.keys)
    seen = some.users.slots["seen"]
    assert seen.offsets is not None
    assert np.array_equal(seen.keys[seen.offsets[some.user_index]], of_each)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(0, 99), st.integers(1, 100))
def test_what_is_joined_and_thinned_has_the_users_of_each_positive(counts: list[int], seed: int, most: int) -> None:
    parts = [positives(count, seed + at) for at, count in enumerate(counts)]
    whole = Positives.joined(parts)
    check(whole)
    assert np.array_equal(whole.keys, np.concatenate([part.keys for part in parts]))
    some = whole.thinned(most)
    check(some)
    assert len(some) == min(most, sum(counts))
    assert np.isin(some.keys, whole.keys).all()
    assert len(Positives.joined([])) == 0


def test_a_thirty_second_of_positives_is_held_out() -> None:
    identity = np.random.default_rng(1).integers(0, 1 << 64, 32_000, np.uint64)
    assert 850 < are_held_out(identity).sum() < 1_150


def test_popularity_counts_what_came_lately_among_the_items_that_are_there() -> None:
    chance, popularity, truth = np.random.default_rng(1), Popularity(), dict[int, float]()
    assert len(popularity.top(5, lambda keys: keys > 0)) == 0
    for number in range(20):
        keys = chance.integers(1, 40, 100).astype(np.uint64)
        popularity.count(keys, 1_700_000_000_000 + number * HALF_LIFE_MS // 2)
        for key in keys.tolist():
            truth[key] = truth.get(key, 0.0) + 2.0 ** (number / 2)
    expected = [key for key in sorted(truth, key=lambda key: -truth[key]) if key % 3]
    assert popularity.top(10, lambda keys: keys % np.uint64(3) != 0).tolist() == expected[:10]
    assert popularity.span_ms == 19 * HALF_LIFE_MS // 2


def test_popularity_forgets_the_items_that_came_least() -> None:
    popularity = Popularity()
    popularity.count(np.repeat(np.arange(1, 9, dtype=np.uint64), 3), 1)
    popularity.count(np.arange(9, (1 << 17) + 9, dtype=np.uint64), 1)
    assert len(popularity.top(1 << 20, lambda keys: keys > 0)) == 1 << 16
    assert sorted(popularity.top(8, lambda keys: keys > 0).tolist()) == [*range(1, 9)]
