"""Users who acted: each once, in the order of their first action, and none forgotten."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from streamlearn.nearline.pending_users import PendingUsers


def test_actions_until_a_user_is_due_are_one() -> None:
    pending = PendingUsers(1.0, 10)
    pending.add([7, 8], 0, 3, 100, 0.0)
    pending.add([8, 9, 7], 0, 4, 200, 0.9)
    assert pending.take(5, 0.99) == []
    assert pending.take(5, 1.0) == [7, 8]
    assert (pending.positions().get(0, 5), pending.oldest_ms, len(pending)) == (3, 100, 3)
    pending.done([7, 8])
    assert (pending.positions().get(0, 5), pending.oldest_ms) == (4, 200)
    assert pending.take(5, 1.9) == [9]
    pending.done([9])
    assert (pending.positions().get(0, 5), pending.oldest_ms, len(pending)) == (5, None, 0)


def test_who_acts_while_a_list_is_made_gets_another_one() -> None:
    pending = PendingUsers(0.0, 10)
    pending.add([7], 0, 3, 100, 0.0)
    assert pending.take(5, 0.0) == [7]
    pending.add([7], 0, 6, 300, 0.0)
    assert pending.take(5, 9.0) == []  # the first list is still being made
    pending.done([7])
    assert pending.positions().get(0, 7) == 6
    assert pending.take(5, 9.0) == [7]


def test_who_is_given_back_is_first_and_keeps_the_older_action() -> None:
    pending = PendingUsers(0.0, 3)
    pending.add([7, 8], 0, 3, 100, 0.0)
    taken = pending.take(2, 0.0)
    pending.add([9, 7], 1, 5, 200, 0.0)
    assert pending.is_full
    pending.give_back(taken)
    assert pending.take(1, 0.0) == [7]
    assert pending.positions().get(0, 9) == 3
    assert pending.positions().get(1, 9) == 5
    assert pending.positions().get(2, 9) == 9


def test_a_failure_is_noted_until_the_user_is_done() -> None:
    pending = PendingUsers(0.0, 10)
    pending.add([7], 0, 3, 100, 0.0)
    pending.take(1, 0.0)
    assert not pending.fails_again(7)
    pending.give_back([7])
    pending.take(1, 0.0)
    assert pending.fails_again(7)
    pending.done([7])
    assert not pending.fails_again(7)


@given(st.lists(st.sampled_from(["act", "take", "done", "back"]), max_size=60), st.data())
def test_no_user_who_acted_is_before_the_position(steps: list[str], data: Any) -> None:
    pending, offset, taken = PendingUsers(0.0, 100), 0, list[int]()
    owed: dict[int, int] = {}  # users with an action that no list knows, and the first of those
    for step in steps:
        if step == "act":
            users = data.draw(st.lists(st.integers(1, 5), max_size=3))
            pending.add(users, 0, offset, offset, 0.0)
            for user in users:
                owed.setdefault(user, offset)
            offset += 1
        elif step == "take" and not taken:
            taken = pending.take(2, 0.0)
            served = {user: owed.pop(user) for user in taken}
        elif step == "done" and taken:
            pending.done(taken)
            taken = []
        elif step == "back" and taken:
            pending.give_back(taken)
            owed |= served
            taken = []
        still = [*owed.values(), *(served.values() if taken else ())]
        assert pending.positions().get(0, offset) <= min(still, default=offset)
        assert {*owed} <= {*pending._waiting}
