"""The loss of a worker, on a loop that is played: what is done to the worker, and what is waited for."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tools.demo import worker_loss
from tools.demo.worker_loss import lose_worker

_OLD, _NEW = "host:41", "host:42"


def learner(slices: int, held: int = 0) -> dict[str, int]:
    return {"slices": slices, "held": held}


def played(looks: Iterator[dict[str, dict[str, int]]], done: list[Any]) -> Any:
    """A loop whose trainer answers with one look after another."""
    return SimpleNamespace(
        pid=lambda name: 41,
        signal=lambda name, number: done.append((name, number)),
        kill=lambda name: done.append((name, "killed")),
        learners=lambda: next(looks),
        folder=SimpleNamespace(settings=SimpleNamespace(workers=SimpleNamespace(slices=2))),
    )


def waited(done: list[Any]) -> Callable[[Callable[[], bool], str], None]:
    """Waits without a pause, and notes for what."""

    def wait(is_so: Callable[[], bool], what: str) -> None:
        while not is_so():
            pass
        done.append(what)

    return wait


def test_it_is_killed_with_a_slice_and_the_others_learn_a_whole_step_before_it_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_loss, "_SLICE_S_MAX", 600.0)
    done: list[Any] = []
    looks = iter(
        [
            {"leader": learner(50), _OLD: learner(40)},
            {"leader": learner(50), _OLD: learner(40, held=1)},
            {"leader": learner(50), _OLD: learner(40, held=1)},
            {},  # the trainer has not answered
            {"leader": learner(50), _OLD: learner(40, held=1)},
            {"leader": learner(51)},
            {"leader": learner(51)},
            {"leader": learner(53)},  # it may have finished its part of the step that the worker took part in
            {"leader": learner(54)},
            {"leader": learner(60), _NEW: learner(0, held=1)},
            {"leader": learner(61), _NEW: learner(1)},
        ]
    )
    loss = lose_worker(played(looks, done), waited(done))
    assert loss.held
    assert 0.0 < loss.continued_s < loss.back_s
    assert done == [
        ("worker-1", signal.SIGSTOP),
        "the worker to get a slice",
        ("worker-1", "killed"),
        "the trainer to miss the worker",
        "training to continue without the worker",
        "the worker to learn again",
    ]
    assert next(looks, None) is None


def test_one_that_gets_no_slice_is_killed_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_loss, "_SLICE_S_MAX", 0.0)

    def looks() -> Iterator[dict[str, dict[str, int]]]:
        yield from [{"leader": learner(50), _OLD: learner(40)}] * 2
        slices = 50
        while True:
            yield {"leader": learner(slices), _NEW: learner(slices - 50)}
            slices += 1

    done: list[Any] = []
    assert not lose_worker(played(looks(), done), waited(done)).held
    assert ("worker-1", "killed") in done
