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
from streamlearn.trainer.workers.messages import Idle, Side, SliceWork
from streamlearn.trainer.workers.slice_worker import SliceWorker

_SIDE, _WAIT_S = Side([], []), 10.0


def slice_of(step: int, *, released: int = 0) -> tuple[SliceWork, Inputs]:
    work = SliceWork(1, 0, released, step, 0, 1, 0, 1, _SIDE, _SIDE)
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
