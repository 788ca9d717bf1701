"""Stages: order, bounds and ends of a pipeline, whatever its stages do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from streamlearn.testing import ManualClock, wait_until
from streamlearn.trainer.stages import STAGES, Stages, Work

_COUNT = 40


def _same(one: Any) -> Any:
    return one


def _reaches(found: list[int], least: int) -> bool:
    return found[0] >= least


def work(read: Iterable[Any], **stages: Callable[[Any], Any]) -> Work:
    """Stages that do nothing, but for those given."""
    given = {name: stages.get(name, _same) for name in STAGES if name != "read"}
    return Work(read, **given)


def left() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name.startswith("streamlearn-trainer-")]


def have_noted(stages: Stages, stuck: str) -> bool:
    """Whether all threads but that of a stage have noted that they do something, so that only that one can miss."""
    threads = [one for one in stages._threads if one.name != f"streamlearn-trainer-{stuck}"]
    return {one.ident for one in threads} <= stages._active_threads


def learned(stages: Stages) -> list[Any]:
    """All that comes, once all of it was pushed and no thread is left."""
    with stages:
        found = [one for one in stages.learned() if one is not None]
    assert left() == []
    return found


@pytest.mark.parametrize("staleness", [0, 1, 3])
@pytest.mark.parametrize("queue_max", [1, 4])
def test_steps_keep_their_order_through_all_stages(queue_max: int, staleness: int) -> None:
    seen: dict[str, list[int]] = {name: [] for name in STAGES}

    def noted(name: str) -> Callable[[int], int]:
        def note(one: int) -> int:
            seen[name].append(one)
            return one

        return note

    one = work(range(_COUNT), **{name: noted(name) for name in STAGES if name != "read"})
    assert learned(Stages(one, queue_max=queue_max, staleness=staleness)) == list(range(_COUNT))
    del seen["read"]
    assert all(found == list(range(_COUNT)) for found in seen.values())


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_pulling_is_never_further_ahead_of_pushing_than_is_allowed(staleness: int) -> None:
    pushed, lags = [0], []

    def pull(number: int) -> int:
        lags.append(number - pushed[0])
        return number

    def push(number: int) -> None:
        # Others get as far as they can.
        if number and staleness:
            wait_until(lambda: len(lags) > min(number + staleness, _COUNT - 1), "pulling is as far as it may be")
        pushed[0] = number + 1

    learned(Stages(work(range(_COUNT), pull=pull, push=push), queue_max=8, staleness=staleness))
    assert max(lags) == staleness
    assert len(lags) == _COUNT


@pytest.mark.parametrize("queue_max", [1, 3])
def test_what_is_read_ahead_is_bounded(queue_max: int) -> None:
    read, bound = [0], 3 * queue_max + 4

    def reading() -> Iterator[int]:
        for number in range(_COUNT):
            read[0] = number + 1
            yield number

    with Stages(work(reading()), queue_max=queue_max, staleness=_COUNT) as stages, closing(stages.learned()) as found:
        most = 0
        for at, _ in enumerate(one for one in found if one is not None):
            if at % 8 == 0:
                least = min(_COUNT, at + 3 * queue_max)
                wait_until(partial(_reaches, read, least), "the stages are full")
            most = max(most, read[0] - at)
    assert 3 * queue_max <= most <= bound


@pytest.mark.parametrize("at", [0, 5, _COUNT - 1])
@pytest.mark.parametrize("name", STAGES)
def test_an_error_of_any_stage_ends_all_and_is_raised(name: str, at: int) -> None:
    class Broken(Exception):
        pass

    def breaking(number: int) -> int:
        if number == at:
            raise Broken(name)
        return number

    read = map(breaking, range(_COUNT)) if name == "read" else range(_COUNT)
    stages = Stages(work(read, **{} if name == "read" else {name: breaking}), queue_max=2, staleness=1)
    with pytest.raises(Broken, match=name), stages:
        for _ in stages.learned():
            pass
    assert left() == []


def test_an_error_of_whoever_iterates_ends_all() -> None:
    stages = Stages(work(iter(int, 1)), queue_max=2, staleness=1)
    with pytest.raises(ZeroDivisionError), stages:
        print(1 // next(one for one in stages.learned() if one is not None))
    assert left() == []


def test_stopping_in_the_middle_leaves_no_thread_even_where_every_queue_is_full() -> None:
    pushing = threading.Event()

    def push(number: int) -> None:
        pushing.set()
        wait_until(lambda: stages._has_ended.is_set(), "the stages were ended")

    stages = Stages(work(iter(int, 1), push=push), queue_max=1, staleness=9)
    with stages, closing(stages.learned()) as found:
        assert next(one for one in found if one is not None) == 0
        assert pushing.wait(120)
    assert left() == []


def test_nothing_to_learn_is_said_again_and_again() -> None:
    gate = threading.Event()

    def reading() -> Iterator[int | None]:
        while not gate.is_set():
            yield None
        yield 1

    with Stages(work(reading()), queue_max=1, staleness=0) as stages:
        found = stages.learned()
        assert [next(found), next(found)] == [None, None]
        gate.set()
        assert [one for one in found if one is not None] == [1]


def test_drained_means_pushed() -> None:
    pushed: list[int] = []
    with Stages(work(range(_COUNT), push=pushed.append), queue_max=2, staleness=2) as stages:
        count = 0
        for one in stages.learned():
            if one is not None:
                count += 1
                stages.drain()
                assert len(pushed) == count
    assert pushed == list(range(_COUNT))


def test_the_seconds_of_each_stage_are_its_own() -> None:
    clock = ManualClock()

    def taking(seconds: float) -> Callable[[int], int]:
        def take(one: int) -> int:
            clock.sleep(seconds)
            return one

        return take

    # One at a time, so that no other moves the clock meanwhile.
    one = work([0], gather=taking(2), pull=taking(4), learn=taking(8), push=taking(16))
    stages = Stages(one, queue_max=1, staleness=0, clock=clock)
    assert learned(stages) == [0]
    assert {name: stages.seconds[name] for name in STAGES[1:]} == {"gather": 2, "pull": 4, "learn": 8, "push": 16}


@pytest.mark.parametrize("stuck", ["gather", "pull", "push"])
def test_a_stage_that_stands_still_is_seen_while_the_others_wait_for_it(stuck: str) -> None:
    is_in, go_on = threading.Event(), threading.Event()

    def stand_still(one: int) -> int:
        if one == 2:
            is_in.set()
            assert go_on.wait(60)
        return one

    stages = Stages(work(range(_COUNT), **{stuck: stand_still}), queue_max=1, staleness=1)
    with stages:
        found = stages.learned()
        wait_until(lambda: next(found) is None and is_in.is_set(), f"{stuck} stands still")
        # What was noted before it stood still counts once.
        wait_until(
            lambda: next(found) is None and have_noted(stages, stuck) and not stages.is_moving,
            "a round that is not whole",
        )
        for _ in range(5):
            next(found)
            assert not stages.is_moving
        go_on.set()
        wait_until(lambda: next(found, "") == "" or stages.is_moving, "it goes on")
        rest = [one for one in found if one is not None]
    assert not rest or rest[-1] == _COUNT - 1


def test_a_reader_that_does_not_come_back_is_seen_and_one_that_finds_nothing_is_not() -> None:
    is_in, is_away, go_on = threading.Event(), threading.Event(), threading.Event()

    def read() -> Iterator[int | None]:
        while not is_in.is_set():
            yield None
        is_away.set()
        assert go_on.wait(60)

    stages = Stages(work(read()), queue_max=1, staleness=1)
    with stages:
        found = stages.learned()
        for _ in range(3):
            wait_until(lambda: next(found) is None and stages.is_moving, "a round while there is nothing")
        is_in.set()
        wait_until(is_away.is_set, "the reader does not come back")
        wait_until(
            lambda: next(found) is None and have_noted(stages, "read") and not stages.is_moving,
            "a round that is not whole",
        )
        next(found)
        assert not stages.is_moving
        go_on.set()
        assert [one for one in found if one is not None] == []
