"""Evaluation: the same samples learned several times over, and scored on others. It writes no version."""

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
from streamlearn.trainer.expiry_schedule import Expiring
from streamlearn.trainer.held_out import HeldOut, HeldOutScores
from streamlearn.trainer.intake.sample_range import Reading
from streamlearn.trainer.intake.split import Asked, Split, split_of
from streamlearn.trainer.learner import Learner
from streamlearn.trainer.learning_loop import Done, Learning, Tally
from streamlearn.trainer.quarantine import Kept
from streamlearn.trainer.rows import Rows
from streamlearn.trainer.trainer_setup import ends_of, samples_of
from streamlearn.versions import open_store

__all__ = ["Evaluated", "Evaluation", "Pass", "evaluate"]

_KEPT = ".streamlearn/kept-evaluation"


@dataclass(frozen=True)
class Pass:
    """One time through all samples.

    Attributes:
        number: From 1.
        seconds: How long it took, scoring included.
        tally: What was learned in it.
        held_out: How well it fitted then what is held out.
    """

    number: int
    seconds: float
    tally: Tally
    held_out: HeldOutScores

    @property
    def loss(self) -> float:
        """The mean loss of a row, of all its labels, each row before it was learned in this pass."""
        return self.tally.loss / max(self.tally.rows, 1)


@dataclass(frozen=True)
class Evaluated:
    """What an evaluation did.

    Attributes:
        split: What was learned, and what was held out.
        passes: The passes that were made whole.
    """

    split: Split
    passes: tuple[Pass, ...]


Show: TypeAlias = Callable[[int, Tally], None]


class Evaluation:
    """A model that begins anew and learns a split's samples, pass by pass.

    Args:
        folder: The application.
        model: Its model.
        topic: Its samples.
        client: Empty tables, which nobody else uses.
        split: What is learned, and what is held out.
        clock: What time is taken by.

    Attributes:
        learner: Its dense weights.
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
        self._expiry = Expiring(client, settings.tables)
        self._kept = _kept(folder)
        self._held_out = HeldOut(folder, topic, split, self.learner, self._rows, keep_aside=self._kept.add, clock=clock)
        self._passes = 0

    def passes(self, count: int, stop: threading.Event, show: Show = lambda number, tally: None) -> Iterator[Pass]:
        """Make passes; one that `stop` ends is not told of.

        Args:
            count: How many.
            stop: Ends it at the next step boundary.
            show: Told between steps of the pass's number and of what it has learned so far.

        Raises:
            StreamlearnError: What cannot be gone on from.
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
        # To tables a pass comes after the one before it: their time never goes back.
        ahead_ms = self._passes * split.span_ms

        def learned(done: Done) -> None:
            reading.forget(done.step.reached)
            if self._expiry.is_due(done.steps):
                reached = done.step.reached
                assert reached.clock_ms is not None
                self._expiry.look(done.steps, replace(reached, clock_ms=reached.clock_ms + ahead_ms))

        reading = Reading(
            self._folder, self._topic, split, split.begin, split.not_learned,
            keep_aside=self._kept.add, clock=self._clock,
        )  # fmt: skip
        learning = Learning(
            self._folder, reading.feed, self.learner, self._rows, reading.remembered,
            kept=self._kept, tally=tally, learned=learned, ahead_ms=ahead_ms, clock=self._clock,
        )  # fmt: skip
        with closing(reading), closing(learning.run(stop)) as steps:
            for _ in steps:
                show(self._passes + 1, tally)
        counts = vars(reading.stepping.counts) | {"bad": reading.feed.bad}
        tally.counts, tally.seconds = dict(counts), learning.seconds
        return tally


def evaluate(
    folder: AppFolder,
    asked: Asked,
    stop: threading.Event,
    *,
    passes: int = 1,
    until_offset: str = "end",
    told: Callable[[Pass], None] = lambda one: None,
    show: Show = lambda number, tally: None,
    clock: Clock = SYSTEM_CLOCK,
) -> Evaluated:
    """Evaluate an application's model on its samples: anew, in this process, and beside what is live.

    Args:
        folder: The application.
        asked: Which samples.
        stop: Ends it at the next step boundary.
        passes: How often they are learned.
        until_offset: Where they end, as `ends_of` takes it.
        told: Told of each pass.
        show: Told between steps.
        clock: What time is taken by.

    Raises:
        StreamlearnError: It cannot begin, or cannot go on.
    """
    model = model_of(folder)
    with ExitStack() as ends:
        topic = ends.enter_context(samples_of(folder))
        where = ends_of(topic, until_offset)
        split = split_of(folder, topic, asked, where, keep_aside=_kept(folder).add, clock=clock)
        client = ends.enter_context(_own_tables(folder))
        evaluation = Evaluation(folder, model, topic, client, split, clock=clock)
        made = []
        for one in evaluation.passes(passes, stop, show):
            told(one)
            made.append(one)
    return Evaluated(split, tuple(made))


def _own_tables(folder: AppFolder) -> PsClient:
    """Empty tables in this process, wherever those of the live model are; no version of them is ever written."""
    options = declared_tables(folder.app.features, folder.settings.tables)
    store = open_store("memory://evaluation", settings=folder.settings.versions)
    client = PsClient.local(options, Shelf(store, folder.app.name), folder.settings.ps)
    client.restore(Epoch(1), None)
    return client


def _kept(folder: AppFolder) -> Kept:
    """What cannot be learned from, apart from what live training keeps."""
    return Kept(folder.folder / _KEPT, folder.settings.trainer.kept_bytes_max)
