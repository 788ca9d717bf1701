"""Lanes: every work is given back or failed, once, whatever goes wrong with another."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from streamlearn.errors import UsageError
from streamlearn.serving.lanes.lane_kind import Work
from streamlearn.serving.lanes.lanes import Lanes
from tests.models.packed import packed, scores_of
from tests.serving.made import Made, work_of

END_S_MAX = 300.0


class Queued:
    """Work that is there from the start; notes what became of it."""

    def __init__(self, works: list[Work]) -> None:
        self.works = deque(works)
        self.given: dict[Any, Any] = {}
        self.failed: dict[Any, Exception] = {}
        self.lanes: set[str] = set()
        self.left: list[int] = []
        self.before_take: Callable[[], None] = lambda: None

    def take(self, lane: int) -> Work | None:
        self.before_take()
        self.lanes.add(threading.current_thread().name)
        try:
            return self.works.popleft()
        except IndexError:
            return None

    def leave(self, lane: int) -> None:
        self.left.append(lane)

    def give(self, work: Work, scores: Any) -> None:
        assert work.note not in self.given
        self.given[work.note] = scores

    def fail(self, work: Work, error: Exception) -> None:
        assert work.note not in self.failed
        self.failed[work.note] = error


def works_of(made: Made, count: int) -> tuple[list[Work], list[Any]]:
    """Work of several versions and shapes, and the scores it is to have."""
    works, wanted = [], []
    for note in range(count):
        arrays, dense = made.dense(note % 3)
        inputs = packed(made.spec, 1 + note % 4, 1 + note % 16, note)
        works.append(work_of(dense, inputs, 4, 16, 5)._replace(note=note))
        wanted.append(scores_of(made.graphs, arrays, inputs))
    return works, wanted


@pytest.mark.parametrize("nice", [0, 7])
def test_lanes_are_as_nice_as_they_are_told(din: Made, nice: int) -> None:
    def note() -> None:
        found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    found: list[int] = []
    works, _ = works_of(din, 1)
    queued = Queued(works)
    queued.before_take = note
    own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    assert Lanes(queued, din.executables.score, [din.place], 0, nice=nice).join(END_S_MAX)
    assert found == [max(nice, own)] * 2


def test_lanes_share_what_there_is_and_answer_all_of_it(din: Made) -> None:
    works, wanted = works_of(din, 60)
    source = Queued(works)
    both_are_here = threading.Barrier(2)
    waited = threading.local()

    def wait_once() -> None:
        if not hasattr(waited, "is_done"):
            waited.is_done = True
            both_are_here.wait(END_S_MAX)

    source.before_take = wait_once
    lanes = Lanes(source, din.executables.score, [din.place, din.place], 0)
    assert lanes.join(END_S_MAX)
    assert lanes.alive == 0
    assert source.lanes == {"lane-0", "lane-1"}
    assert source.failed == {}
    assert sorted(source.given) == list(range(60))
    for note, expected in enumerate(wanted):
        np.testing.assert_allclose(source.given[note][: len(expected)], expected, rtol=1e-5, atol=1e-5)


def test_an_execution_that_fails_fails_its_own_work_alone(din: Made) -> None:
    works, _ = works_of(din, 12)
    works[3] = works[3]._replace(item=())
    # The index is of another length than the candidates: TensorFlow itself objects.
    works[7] = works[7]._replace(user_index=np.zeros(5, np.int32))
    source = Queued(works)
    assert Lanes(source, din.executables.score, [din.place], 0).join(END_S_MAX)
    assert sorted(source.failed) == [3, 7]
    assert isinstance(source.failed[3], UsageError)
    assert sorted(source.given) == [note for note in range(12) if note not in (3, 7)]


def test_a_lane_begins_anew_when_its_source_fails_and_ends_when_it_fails_again_and_again(
    din: Made, caplog: pytest.LogCaptureFixture
) -> None:
    works, _ = works_of(din, 6)
    source = Queued(works)
    turns = iter([True, False, True, True, False, *([True] * 3)])

    def fail_in_turn() -> None:
        if next(turns, False):
            message = "the source is broken"
            raise RuntimeError(message)

    source.before_take = fail_in_turn
    lanes = Lanes(source, din.executables.score, [din.place], 2)
    assert lanes.join(END_S_MAX)
    # Twice in a row it goes on, and a third time it ends with work left.
    assert sorted(source.given) == [0, 1]
    assert len(source.works) == 4
    assert source.left == [0] * 6
    assert "it failed 3 times in a row" in caplog.text
