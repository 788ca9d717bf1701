"""LearningLoop: runs steps through the five stages, from one restore to the next. It cuts no version."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from streamlearn.apps import AppFolder
from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import TrainingFailed
from streamlearn.marks import MarkedRows
from streamlearn.samples import SampleCodec
from streamlearn.trainer.columns import StepColumns, columns_of
from streamlearn.trainer.intake.extract import rows_of
from streamlearn.trainer.intake.message import Reached
from streamlearn.trainer.intake.step_cutter import Refused, marked_rows
from streamlearn.trainer.learner import Learned, Learner
from streamlearn.trainer.quarantine import Quarantine
from streamlearn.trainer.rows import Rows
from streamlearn.trainer.shared_marks import SharedMarks
from streamlearn.trainer.stages import Stages, Work
from streamlearn.trainer.step import Piece, Step

__all__ = ["LearnedStep", "LearningLoop", "NoWorker", "OwnSteps", "StepLearner", "Tally", "TrainReport", "Weights"]

_LOG = logging.getLogger("streamlearn.trainer.LearningLoop")


class NoWorker(Exception):
    """Training shall stop, and no worker is there that could learn the steps that were read."""


class Weights(Protocol):
    """All that is learned and held beside rows, by name as a version holds it. See `Learner`."""

    def reset(self) -> None:
        """Forget all that was learned."""

    def dense(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return a copy of the weights."""

    def optimizer_state(self) -> dict[str, npt.NDArray[Any]]:
        """Return a copy of all else."""

    def load(self, dense: Mapping[str, npt.NDArray[Any]], state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Continue from both."""


class StepLearner(Protocol):
    """Learns steps in three stages, each in a thread of its own; a step goes through them in order.

    `packed` is what `pack` returned for a step. `learn` is called once all that the step before changed may be read as
    one state; until then, nothing of a packed step may be seen in rows or weights.
    """

    @property
    def steps(self) -> int:
        """The steps that the dense weights have learned."""

    @property
    def rate_scale(self) -> float:
        """The factor of all learning rates at the next step."""

    @property
    def weights(self) -> Weights:
        """What it learns and holds beside rows."""

    def session(self, stop: threading.Event) -> AbstractContextManager[None]:
        """Learn within the block; an error ends what was begun. `stop` is set when training shall stop."""

    def pack(self, columns: StepColumns, now_ms: int) -> Any:
        """Prepare a step that has rows; `now_ms` is table time."""

    def learn(self, packed: Any) -> Learned:
        """Learn a step; raises NoWorker if none is there to learn it when training shall stop."""

    def push(self, columns: StepColumns, packed: Any, learned: Learned, now_ms: int, rate_scale: float) -> int:
        """Have the rows learn, too, and return how many there are; not called if the step is not finite."""


class OwnSteps:
    """Learns steps in this process."""

    def __init__(self, learner: Learner, rows: Rows) -> None:
        self._learner, self._rows = learner, rows

    @property
    def steps(self) -> int:
        """See `StepLearner`."""
        return self._learner.steps

    @property
    def rate_scale(self) -> float:
        """See `StepLearner`."""
        return self._learner.rate_scale

    @property
    def weights(self) -> Weights:
        """See `StepLearner`."""
        return self._learner

    def session(self, stop: threading.Event) -> AbstractContextManager[None]:
        """See `StepLearner`."""
        return nullcontext()

    def pack(self, columns: StepColumns, now_ms: int) -> Any:
        """Pull the rows of a step."""
        return self._rows.pack(columns)

    def learn(self, packed: Any) -> Learned:
        """Learn a step."""
        return self._learner.learn(packed)

    def push(self, columns: StepColumns, packed: Any, learned: Learned, now_ms: int, rate_scale: float) -> int:
        """Push the gradients of a step's rows."""
        return self._rows.push(columns, learned.gradients, now_ms, rate_scale)


@dataclass(frozen=True, eq=False)
class LearnedStep:
    """A step that was learned."""

    columns: StepColumns
    packed: Any  # what `StepLearner.pack` returned for it
    learned: Learned | None  # the result; None for a step without rows
    rate_scale: float  # the factor of the learning rates in this step
    steps: int  # the number of steps that the dense weights have learned, this one included

    @property
    def step(self) -> Step:
        """The step."""
        return self.columns.step


@dataclass
class Tally:
    """Totals since the trainer started."""

    steps: int = 0
    rows: int = 0
    keys: int = 0  # rows that were pushed
    loss: float = 0.0  # the sum of all losses
    refused_rows: int = 0  # rows of steps whose loss or gradients were not finite
    refused_steps: int = 0
    counts: dict[str, int] = field(default_factory=dict)  # rows that were read, by outcome; see `Counts`
    seconds: dict[str, float] = field(default_factory=dict)  # busy time by stage


@dataclass(frozen=True)
class TrainReport:
    """The result of a run; `lost` has, by partition, the lost offset and the one at which training continued."""

    run: int
    version: int  # the newest committed version
    seconds: float
    recoveries: int  # how often all shards were restored after a failure
    rewinds: int  # how often a request put training back
    tally: Tally
    summary: dict[str, float]  # the validation scores of the newest closed windows
    lost: Mapping[int, tuple[int, int]] = field(default_factory=dict)


class LearningLoop:
    """One run of the pipeline between two restores.

    `on_step` is called for each learned step by the thread that pushes; `on_refused` for rows of steps that are left
    out for good. `ahead_ms` is added to the samples' time to get table time. `stages` runs the steps.
    """

    def __init__(
        self,
        folder: AppFolder,
        steps: Iterable[Step | None],
        learner: StepLearner,
        marks: SharedMarks,
        *,
        quarantine: Quarantine,
        tally: Tally,
        on_step: Callable[[LearnedStep], None],
        on_refused: Refused = lambda event_time_ms, labels: None,
        ahead_ms: int = 0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        settings = folder.settings.trainer
        self._settings, self._read, self._learner = settings, steps, learner
        self._codec = SampleCodec(folder.app, folder.settings.samples)
        self._marks, self._quarantine, self.tally = marks, quarantine, tally
        self._on_step, self._on_refused = on_step, on_refused
        self._ahead_ms, self._refused_in_a_row = ahead_ms, 0
        self._stop: threading.Event | None = None
        work = Work(self._steps(), columns_of, self._pull, self._learn, self._push)
        # With steps pulled ahead, the rows they see depend on how fast pushes are.
        staleness = 0 if settings.order == "strict" else settings.staleness_steps
        self.stages = Stages(work, queue_max=settings.queue_steps_max, staleness=staleness, clock=clock)
        self.reached: Reached | None = None

    def run(self, stop: threading.Event) -> Generator[LearnedStep | None, None, None]:
        """Learn steps until they end or `stop` is set; yields None while there is nothing to learn.

        Between two items `stages.drain` makes a step boundary.
        """
        self._stop = stop
        with self._learner.session(stop), self.stages:
            try:
                for done in self.stages.learned():
                    if done is not None:
                        self.reached = done.step.reached
                    yield done
            except NoWorker:
                _LOG.warning("training stops without a worker for the steps that were read; the next run learns them")
                self.stages.drain()

    def _steps(self) -> Iterator[Step | None]:
        for step in self._read:
            if self._stop is not None and self._stop.is_set():
                return
            yield step

    def _pull(self, columns: StepColumns) -> tuple[StepColumns, Any]:
        return columns, self._learner.pack(columns, self._now_ms(columns.step)) if len(columns) else None

    def _learn(self, pulled: tuple[StepColumns, Any]) -> LearnedStep:
        columns, packed = pulled
        scale = self._learner.rate_scale
        learned = None if packed is None else self._learner.learn(packed)
        return LearnedStep(columns, packed, learned, scale, self._learner.steps)

    def _now_ms(self, step: Step) -> int:
        clock_ms = step.reached.clock_ms
        assert clock_ms is not None  # a step with rows has a message
        return clock_ms + self._ahead_ms

    def _push(self, done: LearnedStep) -> None:
        learned, step = done.learned, done.step
        if learned is not None and learned.is_finite:
            now_ms = self._now_ms(step)
            self.tally.keys += self._learner.push(done.columns, done.packed, learned, now_ms, done.rate_scale)
            self._refused_in_a_row = 0
            self.tally.steps += 1
            self.tally.rows += len(step)
            self.tally.loss += learned.loss
            self._on_step(done)
        elif learned is not None:
            self._refuse(step)
        self._marks.acknowledge(step.number)

    def _refuse(self, step: Step) -> None:
        """Leave out for good a step whose loss or gradients are not finite."""
        self.tally.refused_steps += 1
        self.tally.refused_rows += len(step)
        self._refused_in_a_row += 1
        for number, piece in enumerate(step.pieces):
            rows = _refused(piece)
            self._marks.refuse(step.number, rows)
            self._on_refused(rows.event_time_ms[rows.request_index], rows.settles)
            name = f"step-{step.number}-{number}-{step.reached.clock_ms}.avro"
            self._quarantine.add(name, self._codec.encode(rows_of(piece.batch, piece.rows)))
        _LOG.error("step %d of %d rows gave numbers that are not finite, and is skipped", step.number, len(step))
        if self._refused_in_a_row > self._settings.refused_steps_max:
            message = f"{self._refused_in_a_row} steps in a row gave numbers that are not finite"
            help = (
                "lower the learning rates, or set trainer.clip_norm; skipped steps are in quarantine, and the "
                "last version is unchanged: `streamlearn rewind MODEL --to VERSION` goes back further"
            )
            raise TrainingFailed(message, help=help)


def _refused(piece: Piece) -> MarkedRows:
    """Return the labels of a piece that this step was to learn; labels that earlier steps learned stay."""
    rows, labels = marked_rows(piece.batch, piece.rows), piece.learn | piece.correct
    return replace(rows, settles=labels, labels=rows.labels & labels)
