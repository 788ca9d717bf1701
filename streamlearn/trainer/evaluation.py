"""Evaluation: trains a fresh model on the same samples several times and scores it on others. It writes no version."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from streamlearn.apps import AppFolder
from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.library.library import Library
from streamlearn.models import Model, model_of
from streamlearn.ps import Epoch, PsClient, Shelf
from streamlearn.table import declared_tables
from streamlearn.topics import Topic
from streamlearn.trainer.expiry_schedule import ExpirySchedule
from streamlearn.trainer.held_out import HeldOut, HeldOutScores
from streamlearn.trainer.history_pass import HistoryPass
from streamlearn.trainer.intake.feed import Until
from streamlearn.trainer.intake.item_feed import learn_shown
from streamlearn.trainer.intake.split import Split, SplitRequest, split_of
from streamlearn.trainer.learner import Learner
from streamlearn.trainer.learning_loop import LearnedStep, Tally
from streamlearn.trainer.quarantine import Quarantine
from streamlearn.trainer.rows import Rows
from streamlearn.trainer.towers.hit_rates import HitRate, HitRates
from streamlearn.trainer.towers.tower_steps import TowerSteps, own_steps
from streamlearn.trainer.trainer_setup import ends_of, samples_of
from streamlearn.trainer.validation_thread import CurveFit
from streamlearn.versions import open_store

__all__ = ["Evaluation", "EvaluationResult", "Pass", "evaluate", "kept_aside", "own_tables"]

_QUARANTINE_FOLDER = ".streamlearn/kept-evaluation"


@dataclass(frozen=True)
class Pass:
    """One pass over all training samples; `seconds` includes the scoring of the held-out samples."""

    number: int  # the number of the pass, from 1
    seconds: float
    tally: Tally
    held_out: HeldOutScores  # the scores of the held-out samples after the pass
    hit_rates: tuple[HitRate, ...] = ()  # of the towers, in the first pass: in others all was learned before

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

    `client` serves empty tables that nothing else uses. `learner` holds the dense weights. With `is_shuffled`, each
    pass has another order.
    """

    def __init__(
        self,
        folder: AppFolder,
        model: Model,
        topic: Topic,
        client: PsClient,
        split: Split,
        *,
        is_shuffled: bool = False,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        settings = folder.settings
        self._clock = clock
        self.learner = Learner(folder.app, model, settings.trainer)
        self._rows = Rows(folder.app, client, settings.trainer.step_rows, settings.tables)
        quarantine = kept_aside(folder)
        self._held_out = HeldOut(folder, topic, split, self.learner, self._rows, keep_aside=quarantine.add, clock=clock)
        self._library = None if folder.app.retrieval is None else Library(folder.app)
        self._steps = own_steps(folder, client, self._library)(self.learner, self._rows)
        self._features, self._curves = folder.app.features, CurveFit(folder, self.learner)
        self._pass = HistoryPass(
            folder, topic, self._steps, ExpirySchedule(client, settings.tables), quarantine,
            split.begin, Until(split.ends), split.not_learned, split.span_ms, clock, is_shuffled,
        )  # fmt: skip
        self._passes = 0

    def passes(self, count: int, stop: threading.Event, show: Show = lambda number, tally: None) -> Iterator[Pass]:
        """Learn all samples `count` times. A pass that `stop` interrupts is not returned.

        `show` is called between steps with the number of the pass and what it has learned so far.
        """
        for _ in range(count):
            begin_s = self._clock.monotonic_s()
            number = self._passes + 1
            hit_rates = self._hit_rates(number)
            done = self._pass.learn(self._passes, stop, on_step=self._learned, show=partial(show, number))
            if number == 1:  # in later passes all was learned before
                self._curves.fit(done.reached.watermark_ms)
            held_out = self._held_out.score(stop)
            if stop.is_set():
                return
            self._passes = number
            yield Pass(
                number, self._clock.monotonic_s() - begin_s, done.tally, held_out, hit_rates.days if hit_rates else ()
            )

    def _learned(self, done: LearnedStep) -> None:
        if done.learned is not None and not self._passes:
            self._curves.see(done.columns, done.learned.logits)
        if self._library is not None:
            learn_shown(self._library, self._features, done.columns)

    def _hit_rates(self, number: int) -> HitRates | None:
        """Return what ranks the positives of a pass; None after the first pass, and without towers."""
        if not isinstance(self._steps, TowerSteps):
            return None
        hit_rates = HitRates(self._steps) if number == 1 else None
        self._steps.before = None if hit_rates is None else hit_rates.see
        return hit_rates


def evaluate(
    folder: AppFolder,
    request: SplitRequest,
    stop: threading.Event,
    *,
    passes: int = 1,
    is_shuffled: bool = False,
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
        split = split_of(folder, topic, request, ends_by_partition, keep_aside=kept_aside(folder).add, clock=clock)
        client = ends.enter_context(own_tables(folder))
        evaluation = Evaluation(folder, model, topic, client, split, is_shuffled=is_shuffled, clock=clock)
        completed = []
        for result in evaluation.passes(passes, stop, show):
            on_pass(result)
            completed.append(result)
    return EvaluationResult(split, tuple(completed))


def own_tables(folder: AppFolder) -> PsClient:
    """Return a client of empty local tables, which never write a version."""
    options = declared_tables(folder.app.tables, folder.settings.tables)
    store = open_store("memory://evaluation", settings=folder.settings.versions)
    client = PsClient.local(options, Shelf(store, folder.app.name), folder.settings.ps)
    client.restore(Epoch(1), None)
    return client


def kept_aside(folder: AppFolder) -> Quarantine:
    """Return the quarantine of evaluations, which is separate from that of live training."""
    return Quarantine(folder.folder / _QUARANTINE_FOLDER, folder.settings.trainer.kept_bytes_max)
