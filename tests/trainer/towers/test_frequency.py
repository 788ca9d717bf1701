"""Frequency: the chance that an item is among the positives of a step, as it is estimated."""

from __future__ import annotations

import numpy as np
import pytest

from streamlearn.trainer.towers.frequency import Frequency

KEYS = np.random.default_rng(5).integers(0, 1 << 63, 40).astype(np.uint64)


@pytest.mark.parametrize("every", [1, 4, 25])
def test_an_item_that_comes_regularly_has_the_chance_of_it(every: int) -> None:
    frequency = Frequency()
    for step in range(1, 200 * every + 1, every):
        frequency.see(KEYS[:1], step)
    (chance,) = frequency.chances(KEYS[:1], 200 * every + 1, come=1)
    assert chance == pytest.approx(1 / every, rel=0.02)


def test_an_item_that_comes_at_random_has_about_the_chance_of_it() -> None:
    rng, frequency, found = np.random.default_rng(1), Frequency(), []
    for step in range(1, 2_000):
        came = KEYS[rng.random(len(KEYS)) < 0.2]
        if step > 500:
            found.append(1 / frequency.chances(came, step, come=len(came)))
        frequency.see(came, step)
    assert np.concatenate(found).mean() == pytest.approx(5, rel=0.1)


def test_the_longer_an_item_has_not_come_the_lower_its_chance_and_one_that_never_came_is_rarest() -> None:
    frequency = Frequency()
    for step in range(1, 41):
        frequency.see(KEYS[:1], step)
    chances = [float(frequency.chances(KEYS[:2], step, come=0)[0]) for step in (41, 45, 80)]
    assert chances == pytest.approx([1, 1 / 5, 1 / 40])
    assert float(frequency.chances(KEYS[:2], 80, come=0)[1]) == pytest.approx(1 / 80)


def test_an_estimate_of_items_that_come_takes_this_step_in_and_changes_nothing() -> None:
    frequency = Frequency()
    frequency.see(KEYS, 3)
    before = frequency.tensors()
    came = frequency.chances(KEYS, 13, come=10)
    assert came[:10] == pytest.approx(np.full(10, 1 / (3 + 0.1 * (10 - 3))))
    assert came[10:] == pytest.approx(np.full(30, 1 / 10))
    assert all(np.array_equal(tensor, before[name]) for name, tensor in frequency.tensors().items())


def test_it_continues_from_what_it_held_and_small_keys_are_spread_too() -> None:
    first, second = Frequency(), Frequency()
    small = np.arange(500, dtype=np.uint64)
    first.see(small[::2], 7)
    second.load(first.tensors())
    assert np.array_equal(first.chances(small, 9, come=0), second.chances(small, 9, come=0))
    assert np.count_nonzero(second.last) == 250
    second.see(small[1::2], 8)
    assert np.count_nonzero(first.last) == 250  # nothing is shared
    second.load({})
    assert not second.last.any()
