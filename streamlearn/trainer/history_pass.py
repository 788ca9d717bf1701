"""A pass over a range of samples: each label is learned once, with marks of the pass's own. It writes no version."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from streamlearn.apps import AppFolder
from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.pulse import PULSE
from streamlearn.topics import Topic
from streamlearn.trainer.expiry_schedule import ExpirySchedule
from streamlearn.trainer.intake.feed import Until
from streamlearn.trainer.intake.message import Reached
from streamlearn.trainer.intake.sample_range import SampleRange
from streamlearn.trainer.intake.shuffle import shuffled
from streamlearn.trainer.learning_loop import LearnedStep, LearningLoop, StepLearner, Tally
from streamlearn.trainer.quarantine import Quarantine
from streamlearn.trainer.shared_marks import SharedMarks
from streamlearn.versions.format.manifest import Skip

__all__ = ["HistoryPass", "PassDone", "Show"]

Show: TypeAlias = Callable[[Tally], None]


@dataclass(frozen=True)
class PassDone:
    """A pass: what it learned, where it ended, and its marks."""

    tally: Tally
    reached: Reached
    marks: SharedMarks


@dataclass(frozen=True, eq=False)
class HistoryPass:
    """What all passes over a range of samples share.

    Attributes:
        begin: Where reading begins.
        until: Where it ends.
        skips: Samples in the range that are left out.
        span_ms: The table time from the first message to the last.
        is_shuffled: Whether each pass learns the rows in another order; see `shuffled`.
    """

    folder: AppFolder
    topic: Topic
    learner: StepLearner
    expiry: ExpirySchedule
    quarantine: Quarantine
    begin: Reached
    until: Until
    skips: Sequence[Skip]
    span_ms: int
    clock: Clock = SYSTEM_CLOCK
    is_shuffled: bool = False

    def learn(
        self,
        ahead: int,
        stop: threading.Event,
        *,
        show: Show = lambda tally: None,
        on_step: Callable[[LearnedStep], None] = lambda done: None,
    ) -> PassDone:
        """Learn the range. `ahead` is by how many spans the time of tables is ahead of the samples'.

        It increases from pass to pass, so that the time of tables never goes back. `show` is called between steps, and
        `on_step` for each learned step by the thread that pushes.
        """
        tally, ahead_ms = Tally(), ahead * self.span_ms

        def learned(done: LearnedStep) -> None:
            reading.forget(done.step.reached)
            on_step(done)
            if self.expiry.is_due(done.steps):
                reached = done.step.reached
                assert reached.clock_ms is not None
                self.expiry.look(done.steps, replace(reached, clock_ms=reached.clock_ms + ahead_ms))

        reading = SampleRange(
            self.folder, self.topic, self.begin, self.skips,
            until=self.until, keep_aside=self.quarantine.add, clock=self.clock,
        )  # fmt: skip
        to_learn = reading.feed.steps()
        if self.is_shuffled:
            to_learn = shuffled(to_learn, np.random.default_rng([self.folder.settings.trainer.seed, ahead % (1 << 32)]))
        learning = LearningLoop(
            self.folder, to_learn, self.learner, reading.marks,
            quarantine=self.quarantine, tally=tally, on_step=learned, ahead_ms=ahead_ms, clock=self.clock,
        )  # fmt: skip
        with closing(reading.feed), closing(learning.run(stop)) as steps:
            for _ in steps:
                if PULSE.is_due and learning.stages.is_moving:
                    PULSE.beat()
                show(tally)
        tally.counts, tally.seconds = reading.counts, dict(learning.stages.seconds)
        return PassDone(tally, learning.reached or self.begin, reading.marks)
