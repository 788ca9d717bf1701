"""Our trainer in the trial of its peers: from a topic of encoded samples to rows in tables of its process.

Like a peer, it runs in its own process. The measurement covers everything that a trainer does between two versions:
reading, decoding, marks, gathering, pulling, learning, pushing, and keeping first predictions for scores.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.keys import DIM, every_bit
from benchmarks.peers.answer import Order, Turn, Wrong, answer_in_turns
from benchmarks.peers.training_trial import WARM_STEPS, learn
from benchmarks.trainer_samples import STEP_SAMPLES, StepSamples, Workload
from benchmarks.trainer_topic import samples_folder, write_samples
from streamlearn.apps import AppFolder
from streamlearn.models.deepfm import DeepFm
from streamlearn.ps import Epoch, PsClient, Shelf
from streamlearn.table import declared_tables
from streamlearn.topics import Topic
from streamlearn.trainer.columns import columns_of
from streamlearn.trainer.intake.feed import Feed, Until, beginning_of
from streamlearn.trainer.intake.message import Reached
from streamlearn.trainer.intake.recent import RecentSamples
from streamlearn.trainer.intake.step_cutter import StepCutter
from streamlearn.trainer.learner import Learner, Packed
from streamlearn.trainer.learning_loop import LearnedStep, LearningLoop, OwnSteps, Tally
from streamlearn.trainer.quarantine import Quarantine
from streamlearn.trainer.rows import Rows
from streamlearn.trainer.shared_marks import SharedMarks
from streamlearn.trainer.trainer_setup import ends_of
from streamlearn.trainer.validation_thread import ValidationThread
from streamlearn.versions import open_store

__all__ = ["StreamLearner"]

_HIDDEN = (256, 128)
_READY_STEPS = 8
# Queues fill during a pause: this number of steps is learned before the next window.
_RESUMED_STEPS = 8


class StreamLearner:
    """A trainer with its topic, tables and model.

    Args:
        place: The folder of the topic and the store.
        keys_count: Number of keys that its table must hold.
        ends: Closes everything.
    """

    def __init__(self, place: Path, keys_count: int, ends: ExitStack) -> None:
        self.folder, self._ends = samples_folder(place, keys_count), ends
        app, settings = self.folder.app, self.folder.settings
        options = declared_tables(app.tables, settings.tables)
        shelf = Shelf(open_store(self.folder.store_url), app.name)
        self._client = ends.enter_context(PsClient.local(options, shelf, settings.ps))
        self._client.restore(Epoch(1), None)
        self._learner, self.rows = _learner(self.folder), Rows(app, self._client, settings.trainer.step_rows)
        self._learning: LearningLoop | None = None
        self._steps = 0
        self._began: dict[str, float] = {}

    def feed(self, steps: Sequence[StepSamples]) -> Iterator[Any]:
        """Write the topic, and yield learned steps. All stages but learning run in parallel to the caller."""
        write_samples(self.folder, steps)
        topic = self._ends.enter_context(self.folder.open_topic("samples"))
        return self._learned(topic, self._ends)

    def step(self, samples: LearnedStep) -> float:
        """Return the log loss of a step, which was learned when `feed` yielded it."""
        self._steps += 1
        if self._steps == WARM_STEPS:
            self._began = self._seconds
        if samples.learned is None or len(samples.step) != STEP_SAMPLES:
            message = f"step {self._steps} had {len(samples.step)} rows"
            raise Wrong(message)
        return samples.learned.loss / len(samples.step)

    def insert(self, ids: NDArray[np.int64]) -> None:
        """Push gradients of zero, which create rows and accumulators."""
        self._client.push("main", every_bit(ids), np.zeros((len(ids), DIM), np.float32), now_ms=0)

    def count(self) -> int | None:
        """Wait for all pushes and return the number of keys in the table."""
        if self._learning is not None:
            self._learning.stages.drain()
        return sum(shard.tables["main"].keys for shard in self._client.stats())

    def stage_figures(self, prefix: str) -> dict[str, float]:
        """Return the time of each stage per sample, after the first steps; stages run in parallel."""
        samples = (self._steps - WARM_STEPS) * STEP_SAMPLES
        return {
            f"{prefix}_{stage}_us_per_sample": (seconds - self._began[stage]) * 1e6 / samples
            for stage, seconds in self._seconds.items()
        }

    @property
    def _seconds(self) -> dict[str, float]:
        assert self._learning is not None
        return dict(self._learning.stages.seconds)

    def _learned(self, topic: Topic, ends: ExitStack) -> Iterator[LearnedStep]:
        app, settings = self.folder.app, self.folder.settings
        marks = SharedMarks(len(app.labels), settings.marks)
        quarantine = Quarantine(self.folder.folder / "kept", settings.trainer.kept_bytes_max)
        recent = RecentSamples(app, settings.judge.scored_rows_max, settings.trainer.step_rows)
        validating = ends.enter_context(
            ValidationThread(app, settings.validation, on_scores=lambda scores: None, learned_before_ms=None)
        )
        reached = beginning_of(topic)
        feed = _feed(self.folder, topic, reached, marks, quarantine)
        ends.callback(feed.close)

        def pushed(done: LearnedStep) -> None:
            assert done.learned is not None
            validating.add(done.columns, done.learned)
            recent.add(done.step.pieces, done.step.reached.watermark_ms)

        self._learning = LearningLoop(
            self.folder, feed.steps(), OwnSteps(self._learner, self.rows), marks,
            quarantine=quarantine, tally=Tally(), on_step=pushed,
        )  # fmt: skip
        run = self._learning.run(threading.Event())
        ends.callback(run.close)
        return (done for done in run if done is not None)


def _learner(folder: AppFolder) -> Learner:
    return Learner(folder.app, DeepFm(hidden=_HIDDEN, dense_scale="none", pairs=False), folder.settings.trainer)


def _feed(folder: AppFolder, topic: Topic, reached: Reached, marks: SharedMarks, quarantine: Quarantine) -> Feed:
    settings = folder.settings.trainer
    horizon_ms = round((folder.app.groups[0].window_s + settings.restart_slack_s) * 1e3)
    stepping = StepCutter(marks, settings.step_rows, (), horizon_ms)
    return Feed(folder, topic, reached, stepping, until=Until(ends_of(topic, "end")), keep_aside=quarantine.add)


class _Ready:
    """The dense part alone: a second learner, on prepared inputs.

    Args:
        place: The folder of a topic, from which inputs are made.
        steps: The inputs.
        ends: Closes everything.
    """

    def __init__(self, place: Path, steps: Sequence[StepSamples], ends: ExitStack) -> None:
        trainer = StreamLearner(place, 0, ends)
        write_samples(trainer.folder, steps)
        topic = ends.enter_context(trainer.folder.open_topic("samples"))
        folder = trainer.folder
        quarantine = Quarantine(place / "kept", 0)
        feed = _feed(folder, topic, beginning_of(topic), SharedMarks(1, folder.settings.marks), quarantine)
        ends.callback(feed.close)
        columns = [columns_of(step) for step in feed.steps() if step is not None and len(step)]
        self._inputs: list[Packed] = [trainer.rows.pack(step_columns) for step_columns in columns]
        self._learner = _learner(folder)

    def window(self, steps: int) -> tuple[float, float]:
        """Learn a number of steps and return the wall and CPU seconds."""
        began, cpu = time.perf_counter(), time.process_time()
        for number in range(steps):
            self._learner.learn(self._inputs[number % len(self._inputs)])
        return time.perf_counter() - began, time.process_time() - cpu


def _dense(order: Order, turn: Turn) -> dict[str, float]:
    """Measure the trainer and its dense part alone by turns, window by window in one process."""
    steps = Workload(order.keys_count, order.seed).steps(
        WARM_STEPS + order.windows * (order.window_steps + _RESUMED_STEPS) + _RESUMED_STEPS
    )
    with tempfile.TemporaryDirectory(prefix="streamlearn-bench-") as place, ExitStack() as ends:
        ready = _Ready(Path(place, "ready"), steps[:_READY_STEPS], ends)
        ours = StreamLearner(Path(place, "ours"), order.keys_count, ends)
        fed = ours.feed(steps)
        ready.window(WARM_STEPS)
        _window(ours, fed, WARM_STEPS)
        pairs = []
        for _ in range(order.windows):
            _window(ours, fed, _RESUMED_STEPS)
            pairs.append((_window(ours, fed, order.window_steps), ready.window(order.window_steps)))
    samples = order.window_steps * STEP_SAMPLES
    walls, cpus = ([(whole[kind], alone[kind]) for whole, alone in pairs] for kind in (0, 1))
    return {
        "dense_samples_per_s": samples / statistics.median(alone for _, alone in walls),
        "dense_cpu_us_per_sample": statistics.median(alone for _, alone in cpus) * 1e6 / samples,
        "to_dense_only": statistics.median(alone / whole for whole, alone in walls),
        "cpu_to_dense_only": statistics.median(alone / whole for whole, alone in cpus),
    }


def _window(ours: StreamLearner, fed: Iterator[LearnedStep], steps: int) -> tuple[float, float]:
    began, cpu = time.perf_counter(), time.process_time()
    taken = sum(1 for done in islice(fed, steps) if ours.step(done) >= 0)
    if taken != steps:
        message = f"{taken} of {steps} steps arrived"
        raise Wrong(message)
    return time.perf_counter() - began, time.process_time() - cpu


def _trial(prefix: str, *, filled: bool) -> Callable[[Order, Turn], dict[str, float]]:
    def measured(order: Order, turn: Turn) -> dict[str, float]:
        made: list[StreamLearner] = []
        with tempfile.TemporaryDirectory(prefix="streamlearn-bench-") as place, ExitStack() as ends:

            def make() -> StreamLearner:
                made.append(StreamLearner(Path(place), order.keys_count, ends))
                return made[0]

            figures = learn(make, order, prefix, filled=filled, turn=turn)
            return figures | made[0].stage_figures(prefix)

    return measured


if __name__ == "__main__":
    gc.freeze()  # as `streamlearn train` does
    answer_in_turns({"learn": _trial("learn", filled=True), "grow": _trial("grow", filled=False), "dense": _dense})
