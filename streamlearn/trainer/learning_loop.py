"""Learning: steps through the five stages, from one restore to the next. It cuts no version."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace

from streamlearn.apps import AppFolder
from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import TrainingFailed
from streamlearn.marks import MarkedRows
from streamlearn.samples import SampleCodec
from streamlearn.trainer.columns import StepColumns, columns_of
from streamlearn.trainer.intake.extract import rows_of
from streamlearn.trainer.intake.feed import Feed
from streamlearn.trainer.intake.message import Reached
from streamlearn.trainer.intake.step_cutter import Refused, marked_rows
from streamlearn.trainer.learner import Learned, Learner, Packed
from streamlearn.trainer.quarantine import Kept
from streamlearn.trainer.rows import Rows
from streamlearn.trainer.shared_marks import Remembered
from streamlearn.trainer.stages import Stages, Work
from streamlearn.trainer.step import Piece, Step
from streamlearn.trainer.warm_start import Carried

__all__ = ["Done", "Learning", "Tally", "TrainReport"]

_LOG = logging.getLogger("streamlearn.trainer.Learning")


@dataclass(frozen=True, eq=False)
class Done:
    """A step that was learned.

    Attributes:
        columns: What.
        learned: What came of it; None for a step without rows.
        rate_scale: What rates were multiplied with.
        steps: How many steps dense weights have learned with it.
    """

    columns: StepColumns
    learned: Learned | None
    rate_scale: float
    steps: int

    @property
    def step(self) -> Step:
        """The step."""
        return self.columns.step


@dataclass
class Tally:
    """What was done since the trainer began; it only grows.

    Attributes:
        steps: Steps that were learned.
        rows: Rows that were learned.
        keys: Keys of rows that were pushed.
        loss: The sum of all losses.
        refused_rows: Rows of steps whose gradients were no numbers.
        refused_steps: Those steps.
        counts: Of rows that were read, see `Counts`.
        seconds: By stage.
    """

    steps: int = 0
    rows: int = 0
    keys: int = 0
    loss: float = 0.0
    refused_rows: int = 0
    refused_steps: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainReport:
    """What a run did.

    Attributes:
        run: Its number.
        version: The newest committed version.
        seconds: How long it took.
        recoveries: How often shards were restored.
        rewinds: How often training was put back by a request.
        tally: What was learned.
        summary: How well first predictions fit, in the newest closed windows.
        carried: What it began with of another model; None for a model that did not.
        lost: By partition, the offsets that were passed over because their samples are gone: from, and up to.
    """

    run: int
    version: int
    seconds: float
    recoveries: int
    rewinds: int
    tally: Tally
    summary: dict[str, float]
    carried: Carried | None = None
    lost: Mapping[int, tuple[int, int]] = field(default_factory=dict)


class Learning:
    """One life of the pipeline.

    Args:
        folder: The application.
        feed: Where steps come from.
        learner: Dense weights.
        rows: Rows.
        remembered: What was learned.
        kept: Takes what cannot be learned from.
        tally: What is counted.
        learned: Told of each step that was learned, by the thread that pushes.
        refused: Told of the rows of steps that were left out for good.
        ahead_ms: How far the time of tables is ahead of the samples'.
        clock: How long stages take.
    """

    def __init__(
        self,
        folder: AppFolder,
        feed: Feed,
        learner: Learner,
        rows: Rows,
        remembered: Remembered,
        *,
        kept: Kept,
        tally: Tally,
        learned: Callable[[Done], None],
        refused: Refused = lambda event_time_ms, labels: None,
        ahead_ms: int = 0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        settings = folder.settings.trainer
        self._settings, self._feed, self._learner, self._rows = settings, feed, learner, rows
        self._codec = SampleCodec(folder.app, folder.settings.samples)
        self._remembered, self._kept, self.tally, self._told = remembered, kept, tally, learned
        self._told_of_refused = refused
        self._ahead_ms, self._refused_in_a_row = ahead_ms, 0
        self._stop: threading.Event | None = None
        work = Work(self._steps(), columns_of, self._pull, self._learn, self._push)
        # Whatever is pulled ahead, what it finds hangs on how fast others push.
        staleness = 0 if settings.order == "strict" else settings.staleness_steps
        self._stages = Stages(work, queue_max=settings.queue_steps_max, staleness=staleness, clock=clock)
        self.reached: Reached | None = None

    def run(self, stop: threading.Event) -> Generator[Done | None, None, None]:
        """Learn steps until their feed ends or `stop` is set; None while there is nothing.

        Between two of them `drain` makes a step boundary.
        """
        self._stop = stop
        with self._stages:
            for done in self._stages.learned():
                if done is not None:
                    self.reached = done.step.reached
                yield done

    def drain(self) -> None:
        """Wait until all that was learned is pushed: a step boundary."""
        self._stages.drain()

    @property
    def has_gone_round(self) -> bool:
        """Whether all stages are at work, or wait for one another; see `Stages`."""
        return self._stages.has_gone_round

    @property
    def seconds(self) -> dict[str, float]:
        """What each stage took so far."""
        return dict(self._stages.seconds)

    def _steps(self) -> Iterator[Step | None]:
        for step in self._feed.steps():
            if self._stop is not None and self._stop.is_set():
                return
            yield step

    def _pull(self, columns: StepColumns) -> tuple[StepColumns, Packed | None]:
        return columns, self._rows.pack(columns) if len(columns) else None

    def _learn(self, given: tuple[StepColumns, Packed | None]) -> Done:
        columns, packed = given
        scale = self._learner.rate_scale
        learned = None if packed is None else self._learner.learn(packed)
        return Done(columns, learned, scale, self._learner.steps)

    def _push(self, done: Done) -> None:
        learned, step = done.learned, done.step
        if learned is not None and learned.is_finite:
            now_ms = step.reached.clock_ms
            assert now_ms is not None  # there was a message
            self.tally.keys += self._rows.push(
                done.columns, learned.gradients, now_ms + self._ahead_ms, done.rate_scale
            )
            self._refused_in_a_row = 0
            self.tally.steps += 1
            self.tally.rows += len(step)
            self.tally.loss += learned.loss
            self._told(done)
        elif learned is not None:
            self._refuse(step)
        self._remembered.acknowledge(step.number)

    def _refuse(self, step: Step) -> None:
        """Leave a step out whose gradients are no numbers, for good."""
        self.tally.refused_steps += 1
        self.tally.refused_rows += len(step)
        self._refused_in_a_row += 1
        for number, piece in enumerate(step.pieces):
            rows = _refused(piece)
            self._remembered.refuse(step.number, rows)
            self._told_of_refused(rows.event_time_ms[rows.request_index], rows.settles)
            name = f"step-{step.number}-{number}-{step.reached.clock_ms}.avro"
            self._kept.add(name, self._codec.encode(rows_of(piece.batch, piece.rows)))
        _LOG.error("step %d of %d rows gave numbers that are not finite, and is skipped", step.number, len(step))
        if self._refused_in_a_row > self._settings.refused_steps_max:
            message = f"{self._refused_in_a_row} steps in a row gave numbers that are not finite"
            help = (
                "lower the learning rates, or set trainer.clip_norm; skipped steps are in quarantine, and the "
                "last version is unchanged: `streamlearn rewind` goes back further"
            )
            raise TrainingFailed(message, help=help)


def _refused(piece: Piece) -> MarkedRows:
    """The labels of a piece that were to be learned; what earlier steps learned of its rows stays."""
    rows, asked = marked_rows(piece.batch, piece.rows), piece.learn | piece.correct
    return replace(rows, settles=asked, labels=rows.labels & asked)
