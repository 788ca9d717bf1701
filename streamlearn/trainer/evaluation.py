"""Evaluation: trains a fresh model on the same samples several times and scores it on others. It writes no version."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import TypeAlias

from streamlearn.apps import AppFolder
from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.models import Model, model_of
from streamlearn.ps import Epoch, PsClient, Shelf
from streamlearn.table import declared_tables
from streamlearn.topics import Topic
from streamlearn.trainer.expiry_schedule import ExpirySchedule
from streamlearn.trainer.held_out import HeldOut, HeldOutScores
from streamlearn.trainer.intake.feed import Until
from streamlearn.trainer.intake.sample_range import SampleRange
from streamlearn.trainer.intake.split import Split, SplitRequest, split_of
from streamlearn.trainer.learner import Learner
from streamlearn.trainer.learning_loop import LearnedStep, LearningLoop, Tally
from streamlearn.trainer.quarantine import Quarantine
from streamlearn.trainer.rows import Rows
from streamlearn.trainer.trainer_setup import ends_of, samples_of
from streamlearn.versions import open_store

__all__ = ["Evaluation", "EvaluationResult", "Pass", "evaluate"]

_QUARANTINE_FOLDER = ".streamlearn/kept-evaluation"


@dataclass(frozen=True)
class Pass:
    """One pass over all training samples; `seconds` includes the scoring of the held-out samples."""

    number: int  # the number of the pass, from 1
    seconds: float
    tally: Tally
    held_out: HeldOutScores  # the scores of the held-out samples after the pass

    @property
    def loss(self) -> float:
        """The mean loss of a row over all its labels, taken before this pass learned the row."""
        return self.tally.loss / max(self.tally.rows, 1)


@dataclass(frozen=True)
class EvaluationResult:
    """The result of an evaluation: the split and the completed passes."""

    split: Split
    passes: tuple[Pass, ...]


Show: TypeAlias = Callable[[int, Tally], None]


class Evaluation:
    """A fresh model that learns the samples of a split, pass by pass.

    `client` serves empty tables that nothing else uses. `learner` holds the dense weights.
    """

    def __init__(
        self,
        folder: AppFolder,
        model: Model,
        topic: Topic,
        client: PsClient,
        split: Split,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        settings = folder.settings
        self._folder, self._topic, self._split, self._clock = folder, topic, split, clock
        self.learner = Learner(folder.app, model, settings.trainer)
        self._rows = Rows(folder.app, client, settings.trainer.step_rows, settings.tables)
        self._expiry = ExpirySchedule(client, settings.tables)
        self._quarantine = _quarantine(folder)
        self._held_out = HeldOut(
            folder, topic, split, self.learner, self._rows, keep_aside=self._quarantine.add, clock=clock
        )
        self._passes = 0

    def passes(self, count: int, stop: threading.Event, show: Show = lambda number, tally: None) -> Iterator[Pass]:
        """Learn all samples `count` times. A pass that `stop` interrupts is not returned.

        `show` is called between steps with the number of the pass and what it has learned so far.
        """
        for _ in range(count):
            begin_s = self._clock.monotonic_s()
            tally = self._learn(stop, show)
            held_out = self._held_out.score(stop)
            if stop.is_set():
                return
            self._passes += 1
            yield Pass(self._passes, self._clock.monotonic_s() - begin_s, tally, held_out)

    def _learn(self, stop: threading.Event, show: Show) -> Tally:
        split, tally = self._split, Tally()
        # Each pass continues the table time of the previous one, so that it never goes back.
        ahead_ms = self._passes * split.span_ms

        def learned(done: LearnedStep) -> None:
            reading.forget(done.step.reached)
            if self._expiry.is_due(done.steps):
                reached = done.step.reached
                assert reached.clock_ms is not None
                self._expiry.look(done.steps, replace(reached, clock_ms=reached.clock_ms + ahead_ms))

        reading = SampleRange(
            self._folder, self._topic, split.begin, split.not_learned,
            until=Until(split.ends), keep_aside=self._quarantine.add, clock=self._clock,
        )  # fmt: skip
        learning = LearningLoop(
            self._folder, reading.feed, self.learner, self._rows, reading.marks,
            quarantine=self._quarantine, tally=tally, on_step=learned, ahead_ms=ahead_ms, clock=self._clock,
        )  # fmt: skip
        with closing(reading.feed), closing(learning.run(stop)) as steps:
            for _ in steps:
                show(self._passes + 1, tally)
        tally.counts, tally.seconds = reading.counts, dict(learning.stages.seconds)
        return tally


def evaluate(
    folder: AppFolder,
    request: SplitRequest,
    stop: threading.Event,
    *,
    passes: int = 1,
    until_offset: str = "end",
    on_pass: Callable[[Pass], None] = lambda result: None,
    show: Show = lambda number, tally: None,
    clock: Clock = SYSTEM_CLOCK,
) -> EvaluationResult:
    """Evaluate an application's model on its samples: from scratch, in this process, without touching the live model.

    `on_pass` is called after each pass, `show` between steps. `stop` ends the evaluation at the next step boundary.
    """
    model = model_of(folder)
    with ExitStack() as ends:
        topic = ends.enter_context(samples_of(folder))
        ends_by_partition = ends_of(topic, until_offset)
        split = split_of(folder, topic, request, ends_by_partition, keep_aside=_quarantine(folder).add, clock=clock)
        client = ends.enter_context(_own_tables(folder))
        evaluation = Evaluation(folder, model, topic, client, split, clock=clock)
        completed = []
        for result in evaluation.passes(passes, stop, show):
            on_pass(result)
            completed.append(result)
    return EvaluationResult(split, tuple(completed))


def _own_tables(folder: AppFolder) -> PsClient:
    """Return a client of empty local tables, which never write a version."""
    options = declared_tables(folder.app.features, folder.settings.tables)
    store = open_store("memory://evaluation", settings=folder.settings.versions)
    client = PsClient.local(options, Shelf(store, folder.app.name), folder.settings.ps)
    client.restore(Epoch(1), None)
    return client


def _quarantine(folder: AppFolder) -> Quarantine:
    """Return the quarantine of evaluations, which is separate from that of live training."""
    return Quarantine(folder.folder / _QUARANTINE_FOLDER, folder.settings.trainer.kept_bytes_max)
