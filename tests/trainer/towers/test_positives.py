"""Positives: what is taken of them fits together, a sample is bounded and the same for any steps; and popularity."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streamlearn.samples import FeatureColumns, SlotColumns
from streamlearn.trainer.towers.popularity import HALF_LIFE_MS, Popularity
from streamlearn.trainer.towers.positives import Positives, SampledPositives, are_held_out


def positives(count: int, seed: int) -> Positives:
    """Positives of which each has the key of its user plus 1,000 as that of its item."""
    chance = np.random.default_rng(seed)
    keys = chance.integers(0, 1 << 40, max(1, count // 3)).astype(np.uint64)
    index = chance.integers(0, len(keys), count)
    offsets = np.arange(len(keys) + 1, dtype=np.int32) * 2
    users = FeatureColumns({"id": SlotColumns(keys), "seen": SlotColumns(np.repeat(keys, 2), offsets)}, {})
    identity = chance.integers(0, 1 << 64, count, np.uint64)
    return Positives(users, len(keys), index, keys[index] + np.uint64(1_000), identity, np.full(count, seed))


def check(some: Positives) -> None:
    assert some.requests == len(some.users.slots["id"].keys)
    assert np.array_equal(np.unique(some.user_index), np.arange(some.requests))
    of_each = some.users.slots["id"].keys[some.user_index]
    assert np.array_equal(of_each + np.uint64(1_000), some.keys)
    seen = some.users.slots["seen"]
    assert seen.offsets is not None
    assert np.array_equal(seen.keys[seen.offsets[some.user_index]], of_each)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(0, 99))
def test_what_is_taken_and_joined_has_the_users_of_each_positive(counts: list[int], seed: int) -> None:
    parts = [positives(count, seed + at) for at, count in enumerate(counts)]
    whole = Positives.joined([part.take(np.arange(len(part))) for part in parts])
    check(whole)
    assert np.array_equal(whole.identity, np.concatenate([part.identity for part in parts]))
    check(whole.take(whole.identity % np.uint64(2) == 0))


@given(st.lists(st.integers(1, 60), min_size=1, max_size=12), st.integers(0, 99), st.integers(1, 50))
def test_a_sample_is_bounded_fair_and_the_same_for_any_steps(counts: list[int], seed: int, most: int) -> None:
    parts = [positives(count, seed + at) for at, count in enumerate(counts)]
    identity = np.concatenate([part.identity for part in parts])
    for steps in (parts, [Positives.joined(parts)]):
        sample = SampledPositives(most)
        for step in steps:
            if len(chosen := np.flatnonzero(sample.choose(step.identity))):
                sample.add(step.take(chosen))
        found = sample.take()
        kept = np.zeros(0, np.uint64) if found is None else found.identity
        assert len(kept) <= most
        # Those with the lowest hashes, and as many as a power of two of all hashes lets in.
        shares = ((1 << 64) - 1 >> bits for bits in range(64))
        share_max = next(share for share in shares if (identity <= np.uint64(share)).sum() <= most)
        assert np.array_equal(np.sort(kept), np.sort(identity[identity <= share_max]))
        assert sample.take() is None
        if found is not None:
            check(found)


def test_a_thirty_second_of_positives_is_held_out() -> None:
    identity = np.random.default_rng(1).integers(0, 1 << 64, 32_000, np.uint64)
    assert 850 < are_held_out(identity).sum() < 1_150


def test_popularity_counts_what_came_lately_among_the_items_that_are_there() -> None:
    chance, popularity, truth, now_ms = np.random.default_rng(1), Popularity(), dict[int, float](), 0
    assert len(popularity.top(5, lambda keys: keys > 0)) == 0
    for _ in range(20):
        keys = chance.integers(1, 40, 100).astype(np.uint64)
        times_ms = now_ms + chance.integers(0, HALF_LIFE_MS, 100)
        popularity.count(keys, times_ms)
        for key, time_ms in zip(keys.tolist(), times_ms.tolist(), strict=True):
            truth[key] = truth.get(key, 0.0) + 2.0 ** (time_ms / HALF_LIFE_MS)
        now_ms += HALF_LIFE_MS // 2
    expected = [key for key in sorted(truth, key=lambda key: -truth[key]) if key % 3]
    assert popularity.top(10, lambda keys: keys % np.uint64(3) != 0).tolist() == expected[:10]
    assert 9 * HALF_LIFE_MS < popularity.span_ms <= 11 * HALF_LIFE_MS


def test_popularity_forgets_the_items_that_came_least() -> None:
    popularity, often = Popularity(), np.repeat(np.arange(1, 9, dtype=np.uint64), 3)
    times_ms = np.zeros(1 << 17, np.int64)
    popularity.count(often, times_ms[: len(often)])
    popularity.count(np.arange(9, (1 << 17) + 9, dtype=np.uint64), times_ms)
    assert len(popularity.top(1 << 20, lambda keys: keys > 0)) == 1 << 16
    assert sorted(popularity.top(8, lambda keys: keys > 0).tolist()) == [*range(1, 9)]
