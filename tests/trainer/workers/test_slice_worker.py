"""A worker's stages: whatever fails in one of them ends the session, and none waits for what will not come."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from streamlearn.errors import EpochOver, ShardNotReady, ShardUnreachable, StreamlearnError
from streamlearn.samples import FeatureColumns
from streamlearn.testing import wait_until
from streamlearn.trainer.columns import Inputs
from streamlearn.trainer.learner import SliceGradients
from streamlearn.trainer.workers import slice_worker
from streamlearn.trainer.workers.messages import Idle, Side, SliceWork
from streamlearn.trainer.workers.slice_worker import SliceWorker

_SIDE, _WAIT_S = Side([], []), 120.0


def slice_of(step: int, number: int = 0, *, released: int = 0) -> tuple[SliceWork, Inputs]:
    work = SliceWork(1, 0, released, step, number, 1, 0, 1, _SIDE, _SIDE)
    none = FeatureColumns({}, {})
    return work, Inputs(1, none, none, np.zeros(1, np.int32), np.zeros((1, 1, 4), np.float32))


class Sources:
    """Answers one after another; an error is raised. After the last one there is no news."""

    def __init__(self, *answers: Any) -> None:
        self._answers: Iterator[Any] = iter(answers)
        self.before_error: Callable[[], None] = lambda: None

    def ask(self, session: int, applied: int, *, leaves: bool = False) -> Any:
        answer = next(self._answers, None)
        if isinstance(answer, BaseException):
            self.before_error()
            raise answer
        if answer is None:
            threading.Event().wait(0.01)
        return answer or (Idle(session, 0, 0), None)

    def report(self, report: Any, logits: Any) -> None:
        pass


class Parts:
    """A learner, rows and sums that do nothing. `fails` raises what a call shall raise."""

    steps, rate_scale = 0, 1.0

    def __init__(self, fails: Callable[[str, int], None]) -> None:
        self._fails, self._packed, self.waits = fails, 0, False

    def dense_update(self) -> Any:
        return SimpleNamespace(whole=np.zeros(2, np.float32), slots=[])

    def gradients(self, packed: Any, number: int, rows: int, weights: Any) -> SliceGradients:
        return SliceGradients(np.zeros((1, 1), np.float32), 0.0, np.zeros(2, np.float32), (), True)

    def pack_inputs(self, inputs: Inputs) -> object:
        self._packed += 1
        self._fails("pack", self._packed)
        return object()

    def reduced(self, step: int, slices: int, out: Any, *, wait_s: float) -> None:
        self._fails("reduced", step)
        self.waits = True
        threading.Event().wait(0.01)


def learn(source: Sources, fails: tuple[str, int, BaseException] | None = None) -> BaseException | None:
    """Learn a session, and return what it raised. Errors come when the slice before them waits for what does not."""

    def fail(call: str, number: int) -> None:
        if fails is not None and fails[:2] == (call, number):
            source.before_error()
            raise fails[2]

    parts: Any = Parts(fail)
    worker, raised = SliceWorker("one", parts, parts, parts, source), list[BaseException | None]()
    # A slice waits for its release, or for a sum.
    source.before_error = lambda: wait_until(lambda: worker._changed._waiters or parts.waits, "a slice that waits")  # type: ignore[attr-defined]

    def run() -> None:
        try:
            worker.begin(1, 0, 2)
            worker.learn(threading.Event())
            raised.append(None)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(_WAIT_S)
    assert raised, "it waits for ever"
    return raised[0]


def test_a_leader_that_is_gone_ends_a_worker_whose_slice_waits_for_its_release() -> None:
    error = ShardUnreachable("gone", help="")
    assert learn(Sources(slice_of(1), error)) is error


def test_a_leader_that_is_gone_ends_a_worker_that_waits_for_a_sum() -> None:
    error = ShardUnreachable("gone", help="")
    assert learn(Sources(slice_of(2), error)) is error


@pytest.mark.parametrize(("call", "number"), [("reduced", 1), ("pack", 2)])
def test_an_error_of_one_stage_ends_those_that_wait_and_is_the_one_that_is_raised(call: str, number: int) -> None:
    error: StreamlearnError = EpochOver("over", help="") if call == "reduced" else ShardNotReady("not ready", help="")
    # The first slice waits for its release, the second one for the sum of the first step.
    assert learn(Sources(slice_of(1), slice_of(2)), (call, number, error)) is error


class Shards(Parts):
    """A learner, rows and sums of steps of two slices; the other one of each step is known from the beginning."""

    def __init__(self) -> None:
        super().__init__(lambda call, number: None)
        self.given, self.pushed, self.known = list[tuple[int, int, int]](), list[tuple[int, int]](), {(1, 1), (2, 1)}

    def dense_update(self) -> Any:
        made = SimpleNamespace(whole=np.zeros(2, np.float32), slots=[])

        def learn(*_: Any) -> None:
            made.whole = made.whole + np.float32(1)

        made.learn = learn
        return made

    def scalars(self, rows: int) -> Any:
        return np.ones(2, np.float32)

    def reduce(self, part: Any, values: Any, *, digest: int, is_finite: bool) -> None:
        self.given.append((part.step, part.slice, digest >> 32))
        self.known.add((part.step, part.slice))

    def reduced(self, step: int, slices: int, out: Any, *, wait_s: float) -> bool | None:  # type: ignore[override]
        if {(step, 0), (step, 1)} <= self.known:
            return True
        threading.Event().wait(0.01)
        return None

    def push(self, inputs: Any, gradients: Any, now_ms: int, scale: float, *, part: Any) -> int:
        self.pushed.append((part.step, part.slice))
        return 1


def works(*answers: Any, known: set[tuple[int, int]] = frozenset()) -> Shards:  # type: ignore[assignment]
    """Learn slices until all of them are pushed, and return what the shards were given."""
    shards, stop = Shards(), threading.Event()
    shards.known |= known
    worker = SliceWorker("one", shards, shards, shards, Sources(*answers))  # type: ignore[arg-type]

    def run() -> None:
        worker.begin(1, 0, 2)
        worker.learn(stop)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    wanted = {(work.step, work.slice) for work, inputs in answers if inputs is not None}
    wait_until(lambda: set(shards.pushed) == wanted, "all slices")
    stop.set()
    thread.join(_WAIT_S)
    assert not thread.is_alive(), "it waits for ever"
    assert len(shards.pushed) == len(wanted), "each once"
    return shards


def test_a_slice_of_a_lost_worker_is_learned_while_one_of_a_later_step_waits_for_it() -> None:
    shards = works(slice_of(2, released=1), slice_of(1, released=1), (Idle(1, 1, 2), None))
    assert shards.given == [(1, 0, 0), (2, 0, 1)]


def test_a_slice_whose_step_has_a_sum_already_is_learned_at_the_weights_before_that_step() -> None:
    shards = works(slice_of(2, released=1), slice_of(1, released=1), (Idle(1, 1, 2), None), known={(1, 0)})
    assert sorted(shards.given) == [(1, 0, 0), (2, 0, 1)]
    assert shards.pushed == [(1, 0), (2, 0)], "the later one is released when the earlier one is there"


def test_early_slices_of_several_steps_wait_for_their_releases() -> None:
    answers = (
        slice_of(3),
        slice_of(2),
        slice_of(1),
        (Idle(1, 0, 1), None),
        (Idle(1, 1, 2), None),
        (Idle(1, 2, 3), None),
    )
    shards = works(*answers, known={(3, 1)})
    assert shards.given == [(1, 0, 0), (2, 0, 1), (3, 0, 2)]


def test_an_early_slice_of_a_step_that_others_have_left_behind_is_dropped() -> None:
    shards = works(slice_of(3, released=3), known={(1, 0), (2, 0)})
    assert shards.pushed == [(3, 0)]
    early = Shards()
    early.known |= {(1, 0), (2, 0)}
    worker = SliceWorker("one", early, early, early, Sources())  # type: ignore[arg-type]
    worker.begin(1, 0, 2)
    worker._catch_up(2)
    work, inputs = slice_of(1)
    worker._released, worker._held, worker._early[1, 0] = 2, 1, slice_worker._Slice(work, inputs, is_early=True)
    worker._learn_early()
    assert (early.pushed, worker._held, worker._early) == ([], 0, {})
