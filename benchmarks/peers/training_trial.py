"""The trial of trainers: they learn the same samples step by step, timed in windows, and must learn them.

It runs in the environments of peers, so it imports only numpy. The times include reading samples from arrays in
memory, and everything that a trainer does to them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks.keys import BATCH_KEYS
from benchmarks.peers.answer import Order, Turn, Wrong
from benchmarks.peers.trial import Memory
from benchmarks.trainer_samples import STEP_SAMPLES, StepSamples, Workload

__all__ = [
    "HISTORY_PADDED",
    "REQUESTS_PADDED",
    "WARM_STEPS",
    "Learner",
    "Padded",
    "Sizes",
    "learn",
    "padded",
    "steps_of",
]

WARM_STEPS = 16
# Queues of prepared steps fill while a peer waits for its turn. These steps are learned before its window begins.
_RESUMED_STEPS = 8
# More than any step has: compiled graphs need constant shapes.
REQUESTS_PADDED = 640
HISTORY_PADDED = 3_328
_LOSS_FALL_MIN = 0.005
_LOSS_LUCK = 0.02


class Sizes(NamedTuple):
    """The shape of a padded step, or of the part of it that one process learns."""

    requests: int = REQUESTS_PADDED
    history_ids: int = HISTORY_PADDED
    rows: int = STEP_SAMPLES


class Padded(NamedTuple):
    """Stacked steps, padded to one shape. A padded request has no item, and repeats ids of the step."""

    user_ids: Any  # (steps, REQUESTS_PADDED, USER_SLOTS)
    history_ids: Any  # (steps, HISTORY_PADDED)
    history_request: Any
    item_ids: Any
    request_index: Any
    dense: Any
    label: Any


def padded(steps: Sequence[StepSamples], sizes: Sizes | None = None) -> Padded:
    """Stack steps and pad them to one shape.

    Raises:
        Wrong: A step is too large.
    """
    sizes = sizes or Sizes()
    requests, history_ids = sizes.requests, sizes.history_ids
    most = max(step.requests for step in steps), max(len(step.history_ids) for step in steps)
    if most[0] >= requests or most[1] > history_ids:
        message = f"{most[0]} requests and {most[1]} ids of histories do not fit {requests} and {history_ids}"
        raise Wrong(message)
    return Padded(
        np.stack([_filled(step.user_ids, requests) for step in steps]),
        np.stack([_filled(step.history_ids, history_ids) for step in steps]),
        np.stack([_filled(step.history_request, history_ids, requests - 1) for step in steps]),
        np.stack([step.item_ids for step in steps]),
        np.stack([step.request_index for step in steps]),
        np.stack([step.dense for step in steps]),
        np.stack([step.label for step in steps]),
    )


def _filled(array: NDArray[Any], length: int, value: int | None = None) -> NDArray[Any]:
    more = length - len(array)
    filling = array[-1:] if value is None else np.full(1, value, array.dtype)
    return np.concatenate([array, np.repeat(filling, more, axis=0)])


class Learner(Protocol):
    """A model in training."""

    def feed(self, steps: Sequence[StepSamples]) -> Iterator[Any]:
        """Yield the learner's inputs of each step; this is timed."""

    def step(self, samples: Any) -> float:
        """Learn a step, and return its log loss before that."""

    def insert(self, ids: NDArray[np.int64]) -> None:
        """Store a row for each id."""

    def count(self) -> int | None:
        """Return the number of stored ids; None if all rows exist from the start."""


@dataclass
class _Window:
    """The losses and times of some steps."""

    losses: list[float]
    steps_s: list[float]
    wall_s: float
    cpu_s: float

    @classmethod
    def of(cls, learner: Learner, feed: Iterator[Any], steps: int) -> _Window:
        losses, taken = [], []
        began, cpu = time.perf_counter(), time.process_time()
        before = began
        for samples in islice(feed, steps):
            losses.append(learner.step(samples))
            now = time.perf_counter()
            taken.append(now - before)
            before = now
        if len(losses) != steps:
            message = f"{len(losses)} of {steps} steps arrived"
            raise Wrong(message)
        return cls(losses, taken, time.perf_counter() - began, time.process_time() - cpu)

    def figures(self, prefix: str, samples: int) -> dict[str, float]:
        return {
            f"{prefix}_samples_per_s": samples / self.wall_s,
            f"{prefix}_cpu_us_per_sample": self.cpu_s * 1e6 / samples,
        }


def steps_of(order: Order) -> int:
    """Return the number of steps that a trainer learns."""
    return WARM_STEPS + order.windows * (order.window_steps + _resumed(order))


def _resumed(order: Order) -> int:
    return _RESUMED_STEPS if order.in_turns else 0


def _no_turn(done: Mapping[str, float]) -> None:
    pass


def learn(
    make: Callable[[], Learner], order: Order, prefix: str, *, filled: bool, turn: Turn = _no_turn
) -> dict[str, float]:
    """Return the figures of a trainer.

    Args:
        make: Returns a new trainer.
        order: The number of ids, of windows, and of steps per window.
        prefix: Prefix of the figures' names.
        filled: Whether all ids are stored before the first step, or as they arrive.
        turn: Called before each window and after the last one, with the figures of the window before.
    """
    workload = Workload(order.keys_count, order.seed)
    steps = workload.steps(steps_of(order))
    memory = Memory()
    learner = make()
    feed = learner.feed(steps)
    if filled:
        for begin in range(0, order.keys_count, BATCH_KEYS):
            learner.insert(workload.ids(begin, min(begin + BATCH_KEYS, order.keys_count)))
    warm = _Window.of(learner, feed, WARM_STEPS)
    samples = order.window_steps * STEP_SAMPLES
    windows: list[_Window] = []
    for _ in range(order.windows):
        turn(windows[-1].figures(prefix, samples) if windows else {})
        _Window.of(learner, feed, _resumed(order))
        windows.append(_Window.of(learner, feed, order.window_steps))
    turn(windows[-1].figures(prefix, samples))
    _check_losses(warm, windows, steps)
    _check_count(learner, order, steps, filled=filled)
    return {
        f"{prefix}_samples_per_s": samples / float(np.median([window.wall_s for window in windows])),
        f"{prefix}_samples_per_s_best": samples / min(window.wall_s for window in windows),
        f"{prefix}_cpu_us_per_sample": float(np.median([window.cpu_s for window in windows])) * 1e6 / samples,
        f"{prefix}_step_worst_ms": max(max(window.steps_s) for window in windows) * 1e3,
        f"{prefix}_log_loss_begin": float(np.mean(warm.losses)),
        f"{prefix}_log_loss_end": float(np.mean(windows[-1].losses)),
        f"{prefix}_bytes": float(memory.grown_bytes()),
        f"{prefix}_bytes_peak": float(memory.peak_bytes()),
    }


def _check_losses(warm: _Window, windows: Sequence[_Window], steps: Sequence[StepSamples]) -> None:
    """Check that the loss is finite, falls, and is not below the optimum."""
    losses = [*warm.losses, *(loss for window in windows for loss in window.losses)]
    if not all(map(math.isfinite, losses)):
        message = "a step's log loss was not finite"
        raise Wrong(message)
    begin, end = float(np.mean(warm.losses)), float(np.mean(windows[-1].losses))
    if end > begin - _LOSS_FALL_MIN:
        message = f"the log loss was {begin:.4f} and then {end:.4f} over {len(losses)} steps: nothing was learned"
        raise Wrong(message)
    floor = float(np.mean([step.floor_log_loss for step in steps[-len(windows[-1].losses) :]]))
    if end < floor - _LOSS_LUCK:
        message = f"the log loss was {end:.4f}, below the optimum of {floor:.4f}: the labels were seen"
        raise Wrong(message)


def _check_count(learner: Learner, order: Order, steps: Sequence[StepSamples], *, filled: bool) -> None:
    """Check that exactly the ids in samples, or all ids, are stored."""
    count = learner.count()
    if count is None:
        return
    expected = order.keys_count if filled else len(np.unique(np.concatenate([_ids(step) for step in steps])))
    if count != expected:
        message = f"{count} ids are stored, expected {expected}"
        raise Wrong(message)


def _ids(step: StepSamples) -> NDArray[np.int64]:
    return np.concatenate([step.user_ids.ravel(), step.history_ids, step.item_ids.ravel()])
