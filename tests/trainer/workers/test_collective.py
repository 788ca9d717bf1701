"""Sums of a group without TensorFlow's part: what each member gives, what it refuses, and how long it waits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from streamlearn.errors import GroupLost
from streamlearn.ps.slice_part import SlicePart
from streamlearn.testing import ManualClock
from streamlearn.trainer.workers import collective
from streamlearn.trainer.workers.collective import CollectiveSums

_ADDRESSES, _WAIT_S = ["127.0.0.1:7401", "127.0.0.1:7402", "127.0.0.1:7403"], 120.0


class Ring:
    """Sums what all members give, once all have given it; an aborted one fails those that still wait."""

    def __init__(self, members: int) -> None:
        self._members, self._changed, self._is_aborted = members, threading.Condition(), False
        self._given, self._totals = list[np.ndarray](), list[np.ndarray]()

    def total(self, vector: np.ndarray) -> np.ndarray:
        with self._changed:
            number = len(self._totals)
            self._given.append(vector)
            if len(self._given) == self._members:
                self._totals.append(np.array(self._given).sum(axis=0, dtype=np.float32))
                self._given.clear()
                self._changed.notify_all()
            self._changed.wait_for(lambda: len(self._totals) > number or self._is_aborted, _WAIT_S)
            if len(self._totals) == number:
                raise tf.errors.UnavailableError(None, None, "{{node}} a peer is gone")
            return self._totals[number]

    def abort(self) -> None:
        with self._changed:
            self._is_aborted = True
            self._changed.notify_all()


@pytest.fixture
def members(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[CollectiveSums]]:
    """Three members with two slices each, on a clock that stands still; a member that ends lets the others end."""
    ring, joined = Ring(len(_ADDRESSES)), list[Any]()

    monkeypatch.setattr(collective, "join_cluster", lambda *given: joined.append(given))
    monkeypatch.setattr(collective, "filter_port", lambda *given: joined.append(given))
    monkeypatch.setattr(collective, "abort_collectives", lambda reason: ring.abort())
    monkeypatch.setattr(CollectiveSums, "_total", lambda _, vector: ring.total(vector))
    made = [CollectiveSums(_ADDRESSES, at, 2, device="/CPU:0", wait_s_max=30.0, clock=ManualClock()) for at in range(3)]
    assert joined[:2] == [(_ADDRESSES, 0), (7401, {"127.0.0.1"})]
    yield made
    for one in made:
        one.close()


def give(member: CollectiveSums, step: int, slice: int, *, digest: int = 7, is_finite: bool = True) -> None:
    values = np.array([slice, 10 * slice, 1], np.float32)
    member.reduce(SlicePart(step, slice, 6), values, digest=digest, is_finite=is_finite)


def got(member: CollectiveSums, step: int, wait_s: float = _WAIT_S) -> list[float] | bool | None:
    out = np.zeros(3, np.float32)
    found = member.reduced(step, 6, out, wait_s=wait_s)
    return out.tolist() if found else found


def test_all_members_get_the_sum_of_all_slices_once_all_have_given_theirs(members: list[CollectiveSums]) -> None:
    for step in (1, 2):
        for at, one in enumerate(members):
            give(one, step, 2 * at)
            give(one, step, 2 * at)  # again
            assert got(members[0], step, 0.0) is None
            give(one, step, 2 * at + 1)
        assert [got(one, step) for one in members] == [[15.0, 150.0, 6.0]] * 3


def test_a_slice_that_is_not_finite_takes_its_step_from_all(members: list[CollectiveSums]) -> None:
    for at, one in enumerate(members):
        for slice in (2 * at, 2 * at + 1):
            give(one, 1, slice, is_finite=slice != 3)
    assert [got(one, 1) for one in members] == [False] * 3


# The sums of the last digests are those of equal ones.
@pytest.mark.parametrize("digests", [(7, 7, 8), (7, 7 << 56, 7), (6, 7, 8)])
def test_weights_that_differ_are_refused_by_all_members(
    members: list[CollectiveSums], digests: tuple[int, ...]
) -> None:
    for at, one in enumerate(members):
        for slice in (2 * at, 2 * at + 1):
            give(one, 1, slice, digest=digests[at])
    for one in members:
        with pytest.raises(GroupLost, match="step 1 at different weights") as caught:
            got(one, 1)
        assert caught.value.exit_code == 75


def test_a_member_that_is_gone_ends_the_others_for_good(members: list[CollectiveSums]) -> None:
    for slice in (0, 1):
        give(members[0], 1, slice)
    members[2].close()
    with pytest.raises(GroupLost, match="the sum of step 1 failed: a peer is gone"):
        got(members[0], 1)
    with pytest.raises(GroupLost):
        give(members[0], 2, 0)


def test_a_member_does_not_wait_for_ever(members: list[CollectiveSums]) -> None:
    clock: Any = members[0]._clock
    clock.sleep(100.0)
    assert got(members[0], 1, 0.0) is None, "its own slices are not given yet"
    for slice in (0, 1):
        give(members[0], 1, slice)
    clock.sleep(29.0)
    assert got(members[0], 1, 0.0) is None
    clock.sleep(2.0)
    with pytest.raises(GroupLost, match="no sum after 30 s"):
        got(members[0], 1, 0.0)
