"""The numbers of users that steps are padded to."""

from __future__ import annotations

from itertools import pairwise

import pytest

from streamlearn.table.users_ladder import UsersLadder

__all__: list[str] = []


@pytest.mark.parametrize("rows_max", [1, 63, 64, 65, 4_096])
def test_there_are_few_sizes_of_users_and_one_for_every_step(rows_max: int) -> None:
    ladder = UsersLadder(rows_max)
    sizes = ladder.sizes
    assert sizes[-1] == rows_max
    assert list(sizes) == sorted(set(sizes))
    assert all(after <= 1.25 * before for before, after in pairwise(sizes))
    assert len(sizes) <= 20
    for users in range(1, rows_max + 1):
        assert ladder.holds(users) == min(size for size in sizes if size >= users)


def test_beside_a_size_are_the_next_larger_and_the_next_smaller_one() -> None:
    ladder = UsersLadder(4_096)
    for before, size, after in zip(ladder.sizes, ladder.sizes[1:], ladder.sizes[2:], strict=False):
        assert ladder.beside(size) == (after, before)
    assert ladder.beside(64) == ladder.sizes[1:2]
    assert ladder.beside(4_096) == ladder.sizes[-2:-1]
    assert ladder.beside(65) == ladder.beside(5_000) == ()
