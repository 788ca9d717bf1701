"""Arrival: others learn the slices of a lost worker, in the same session, and each label is learned once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from streamlearn.telemetry import counter
from streamlearn.testing import wait_until
from streamlearn.trainer.trainer import Trainer
from streamlearn.trainer.workers.leader import Leader
from streamlearn.trainer.workers.slice_worker import SUMS_KEPT, SliceWorker
from streamlearn.versions import Chain
from tests.trainer.runs import known_of, store_of
from tests.trainer.stream import outcomes, write_messages
from tests.trainer.workers.jobs import Job, give_up_sooner, wait_for, worker_process


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    with ExitStack() as ends:
        count = iter(range(9))
        yield lambda **trainer: Job(tmp_path / f"job{next(count)}", ends, **trainer)


@pytest.mark.parametrize("staleness", [0, 2])
def test_with_arrival_others_learn_the_slices_of_a_lost_worker_and_nothing_goes_back(
    job: Callable[..., Job], staleness: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    struck, done, learned = job(order="arrival", staleness_steps=staleness), list[str](), list[int]()
    write_messages(struck.folder(), struck.messages)
    again = counter("trainer", "slices_given_again", "")._value
    before = again.get()
    with worker_process(struck) as worker, worker_process(struck):
        give_up_sooner(monkeypatch, worker.pid, lambda: done == ["stopped"])
        join = wait_for(3)

        def strike(trainer: Trainer) -> None:
            join(trainer)
            leader = trainer._step_learner
            assert isinstance(leader, Leader)
            learned.append(trainer.tally.rows)

            def holds() -> bool:
                return any(state.name.endswith(f":{worker.pid}") and state.held for state in leader.workers)

            if trainer.tally.steps >= 2 and not done:
                wait_until(holds, "a slice of the next step")
                worker.send_signal(signal.SIGSTOP)  # it is silent: others learn its slices
                done.append("stopped")
            elif done == ["stopped"] and again.get() > before:
                done.append("went on")
                worker.send_signal(signal.SIGCONT)  # it goes on with what it held
                wait_until(lambda: len(leader.workers) == 3, "its return")
            elif done[-1:] == ["went on"]:
                wait_until(holds, "a slice of the next step")
                worker.kill()
                done.append("killed")

        report = struck.train(show=strike)
    assert done == ["stopped", "went on", "killed"]
    assert again.get() > before + 1
    assert (report.recoveries, report.tally.refused_steps) == (0, 0)
    assert learned == sorted(learned)
    expected = outcomes(struck.messages)
    assert known_of(struck.folder(), struck.messages) == expected
    newest_version = Chain.find(store_of(struck.folder()), struck.folder().app.name, None)
    metrics = newest_version.manifest.metrics
    assert metrics["labels_learned"] == len(expected)
    assert metrics["samples"] == report.tally.rows


def test_with_arrival_a_worker_whose_slices_come_too_late_for_shards_is_welcomed_again(
    job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, give, leaders, waited = job(order="arrival", step_rows=16), SliceWorker._give, list[Leader](), list[int]()
    write_messages(one.folder(), one.messages)

    def late(self: SliceWorker, item: Any) -> None:
        if self._name != "leader" and not waited and leaders and leaders[0]._own.applied > 2:
            waited.append(item.work.step)
            with leaders[0]._changed:
                leaders[0]._lose(self._name, "a test")
            is_late.set()
            wait_until(lambda: leaders[0]._own.applied > item.work.step + SUMS_KEPT, "further steps")
            is_late.clear()
        give(self, item)

    is_late = threading.Event()
    monkeypatch.setattr(SliceWorker, "_give", late)
    give_up_sooner(monkeypatch, os.getpid(), is_late.is_set)  # the leader has another name
    first = wait_for(2)

    def show(trainer: Trainer) -> None:
        leader = trainer._step_learner
        assert isinstance(leader, Leader)
        leaders.append(leader)
        first(trainer)

    with one.workers(1) as errors:
        report = one.train(show=show)
    assert waited
    assert not errors
    assert report.recoveries == 0
    assert known_of(one.folder(), one.messages) == outcomes(one.messages)
