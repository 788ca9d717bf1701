"""Our trainer in the trial its peers go through: from a topic of encoded samples to rows in tables of its process.

It runs in a process of its own, as the peers do. What is timed is all that a trainer does between two versions:
reading, decoding, marks, gathering, pulling, learning, pushing, first predictions kept to be scored.
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
from benchmarks.peers.answer import Order, Wrong, answer
from benchmarks.peers.learning import WARM_STEPS, WINDOWS, learn
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
from streamlearn.trainer.intake.recent import Recent
from streamlearn.trainer.intake.skips import SkippedRows
from streamlearn.trainer.intake.step_cutter import Stepping
from streamlearn.trainer.learner import Learner, Packed
from streamlearn.trainer.learning_loop import Done, Learning, Tally
from streamlearn.trainer.quarantine import Kept
from streamlearn.trainer.rows import Rows
from streamlearn.trainer.shared_marks import Remembered
from streamlearn.trainer.trainer_setup import ends_of
from streamlearn.trainer.validation_thread import Validating
from streamlearn.versions import open_store

__all__ = ["StreamLearner"]

_HIDDEN = (256, 128)
_READY_STEPS = 8
# After a pause queues are full: so many steps are learned before a window is timed again.
_RESUMED_STEPS = 8


class StreamLearner:
    """A trainer with its topic, its tables and its model.

    Args:
        place: Where the topic and the store are.
        keys_count: How many keys its table may come to hold.
        ends: Closes all of it.
    """

    def __init__(self, place: Path, keys_count: int, ends: ExitStack) -> None:
        self.folder, self._ends = samples_folder(place, keys_count), ends
        app, settings = self.folder.app, self.folder.settings
        options = declared_tables(app.features, settings.tables)
        shelf = Shelf(open_store(self.folder.store_url), app.name)
        self._client = ends.enter_context(PsClient.local(options, shelf, settings.ps))
        self._client.restore(Epoch(1), None)
        self._learner, self.rows = _learner(self.folder), Rows(app, self._client, settings.trainer.step_rows)
        self._learning: Learning | None = None
        self._steps = 0
        self._began: dict[str, float] = {}

    def feed(self, steps: Sequence[StepSamples]) -> Iterator[Any]:
        """All stages but learning go on beside whoever takes steps from here; the topic is written at once."""
        write_samples(self.folder, steps)
        topic = self._ends.enter_context(self.folder.open_topic("samples"))
        return self._learned(topic, self._ends)

    def step(self, samples: Done) -> float:
        """Nothing more: the step was learned when it was given. Its log loss."""
        self._steps += 1
        if self._steps == WARM_STEPS:
            self._began = self._seconds
        if samples.learned is None or len(samples.step) != STEP_SAMPLES:
            message = f"step {self._steps} had {len(samples.step)} rows"
            raise Wrong(message)
        return samples.learned.loss / len(samples.step)

    def insert(self, ids: NDArray[np.int64]) -> None:
        """Gradients of zero: a row and its accumulators."""
        self._client.push("main", every_bit(ids), np.zeros((len(ids), DIM), np.float32), now_ms=0)

    def count(self) -> int | None:
        """How many keys the table holds once all is pushed."""
        if self._learning is not None:
            self._learning.drain()
        return sum(one.tables["main"].keys for one in self._client.stats())

    def stage_figures(self, prefix: str) -> dict[str, float]:
        """What each stage took since the first steps, by sample; they go on side by side."""
        samples = (self._steps - WARM_STEPS) * STEP_SAMPLES
        return {
            f"{prefix}_{stage}_us_per_sample": (seconds - self._began[stage]) * 1e6 / samples
            for stage, seconds in self._seconds.items()
        }

    @property
    def _seconds(self) -> dict[str, float]:
        assert self._learning is not None
        return self._learning.seconds

    def _learned(self, topic: Topic, ends: ExitStack) -> Iterator[Done]:
        app, settings = self.folder.app, self.folder.settings
        remembered = Remembered(len(app.labels), settings.marks)
        kept = Kept(self.folder.folder / "kept", settings.trainer.kept_bytes_max)
        recent = Recent(app, settings.judge.scored_rows_max, settings.trainer.step_rows)
        validating = ends.enter_context(
            Validating(app, settings.validation, told=lambda scores: None, learned_before_ms=None)
        )
        reached = beginning_of(topic)
        feed = _feed(self.folder, topic, reached, remembered, kept)
        ends.callback(feed.close)

        def pushed(done: Done) -> None:
            assert done.learned is not None
            validating.add(done.columns, done.learned)
            recent.add(done.step.pieces, done.step.reached.watermark_ms)

        self._learning = Learning(
            self.folder, feed, self._learner, self.rows, remembered, kept=kept, tally=Tally(), learned=pushed
        )
        run = self._learning.run(threading.Event())
        ends.callback(run.close)
        return (done for done in run if done is not None)


def _learner(folder: AppFolder) -> Learner:
    return Learner(folder.app, DeepFm(hidden=_HIDDEN, dense_scale="none"), folder.settings.trainer)


def _feed(folder: AppFolder, topic: Topic, reached: Reached, remembered: Remembered, kept: Kept) -> Feed:
    settings = folder.settings.trainer
    horizon_ms = round((folder.app.groups[0].window_s + settings.restart_slack_s) * 1e3)
    stepping = Stepping(remembered, settings.step_rows, SkippedRows([]), horizon_ms)
    return Feed(folder, topic, reached, stepping, until=Until(ends_of(topic, "end")), keep_aside=kept.add)


class _Ready:
    """The dense part alone: a learner of its own, on inputs that lie ready.

    Args:
        place: Of the topic that inputs are made from.
        steps: Which inputs.
        ends: Closes what it takes to make them.
    """

    def __init__(self, place: Path, steps: Sequence[StepSamples], ends: ExitStack) -> None:
        beside = StreamLearner(place, 0, ends)
        write_samples(beside.folder, steps)
        topic = ends.enter_context(beside.folder.open_topic("samples"))
        folder = beside.folder
        kept = Kept(place / "kept", 0)
        feed = _feed(folder, topic, beginning_of(topic), Remembered(1, folder.settings.marks), kept)
        ends.callback(feed.close)
        columns = [columns_of(step) for step in feed.steps() if step is not None and len(step)]
        self._inputs: list[Packed] = [beside.rows.pack(one) for one in columns]
        self._learner = _learner(folder)

    def window(self, steps: int) -> tuple[float, float]:
        """Seconds, of the wall and of processors, that so many steps take."""
        began, cpu = time.perf_counter(), time.process_time()
        for number in range(steps):
            self._learner.learn(self._inputs[number % len(self._inputs)])
        return time.perf_counter() - began, time.process_time() - cpu


def _dense(order: Order) -> dict[str, float]:
    """The trainer and its dense part alone in turn, window by window of one process."""
    steps = Workload(order.keys_count, order.seed).steps(
        WARM_STEPS + WINDOWS * (order.window_steps + _RESUMED_STEPS) + _RESUMED_STEPS
    )
    with tempfile.TemporaryDirectory(prefix="streamlearn-bench-") as place, ExitStack() as ends:
        ready = _Ready(Path(place, "ready"), steps[:_READY_STEPS], ends)
        ours = StreamLearner(Path(place, "ours"), order.keys_count, ends)
        fed = ours.feed(steps)
        ready.window(WARM_STEPS)
        _window(ours, fed, WARM_STEPS)
        pairs = []
        for _ in range(WINDOWS):
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


def _window(ours: StreamLearner, fed: Iterator[Done], steps: int) -> tuple[float, float]:
    began, cpu = time.perf_counter(), time.process_time()
    taken = sum(1 for done in islice(fed, steps) if ours.step(done) >= 0)
    if taken != steps:
        message = f"{steps} steps were fed and {taken} came"
        raise Wrong(message)
    return time.perf_counter() - began, time.process_time() - cpu


def _trial(prefix: str, *, filled: bool) -> Callable[[Order], dict[str, float]]:
    def measured(order: Order) -> dict[str, float]:
        made: list[StreamLearner] = []
        with tempfile.TemporaryDirectory(prefix="streamlearn-bench-") as place, ExitStack() as ends:

            def make() -> StreamLearner:
                made.append(StreamLearner(Path(place), order.keys_count, ends))
                return made[0]

            figures = learn(make, order, prefix, filled=filled)
            return figures | made[0].stage_figures(prefix)

    return measured


if __name__ == "__main__":
    gc.freeze()  # as `streamlearn train` does
    answer({"learn": _trial("learn", filled=True), "grow": _trial("grow", filled=False), "dense": _dense})
