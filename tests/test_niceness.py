"""Niceness: who gives way takes part again in time, and where he may not come back he is no more than nice."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest

from streamlearn.niceness import Courtesy, give_way
from streamlearn.testing import ManualClock

T = TypeVar("T")


def apart(work: Callable[[], T]) -> T:
    """In a thread that ends with it: niceness stays with who has it."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def policy() -> int:
    return os.sched_getscheduler(threading.get_native_id())


def can_return() -> bool:
    """Whether this process may set niceness at all, such as back to less."""

    def tried() -> bool:
        give_way(15)
        try:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 14)
        except PermissionError:
            return False
        return True

    return apart(tried)


def test_a_thread_is_nice_and_others_are_as_they_were() -> None:
    def nice() -> int:
        give_way(7)
        return niceness()

    before = niceness()
    assert apart(nice) == max(7, before)
    assert niceness() == before


def test_who_gives_way_takes_what_is_left_and_takes_part_afterwards() -> None:
    def work() -> list[tuple[int, int]]:
        courtesy = Courtesy(15, 5.0, ManualClock())
        with courtesy.given():
            inside = policy(), niceness()
        return [inside, (policy(), niceness())]

    left = os.SCHED_IDLE if can_return() else os.SCHED_OTHER
    nice = max(15, niceness())
    assert apart(work) == [(left, nice), (os.SCHED_OTHER, nice)]


def test_it_takes_part_again_when_it_was_patient_for_long_enough_with_threads_it_started() -> None:
    def work() -> list[int]:
        clock = ManualClock()
        courtesy, found = Courtesy(15, 5.0, clock), list[int]()
        ended = threading.Event()
        with courtesy.given(), ThreadPoolExecutor(1) as pool:
            waits = pool.submit(lambda: (ended.wait(120), policy())[1])
            courtesy.look()
            found.append(policy())
            clock.sleep(5.0)
            courtesy.look()
            found.append(policy())
            ended.set()
            found.append(waits.result())
        return found

    first = os.SCHED_IDLE if can_return() else os.SCHED_OTHER
    assert apart(work) == [first, os.SCHED_OTHER, os.SCHED_OTHER]


def test_who_may_not_come_back_is_nice_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = os.sched_setscheduler

    def refused(thread: int, how: int, priority: Any) -> None:
        if how == os.SCHED_OTHER:
            raise PermissionError(1, "not permitted")
        allowed(thread, how, priority)

    monkeypatch.setattr(os, "sched_setscheduler", refused)

    def work() -> tuple[int, int]:
        with Courtesy(15, 5.0, ManualClock()).given():
            return policy(), niceness()

    assert apart(work) == (os.SCHED_OTHER, max(15, niceness()))
