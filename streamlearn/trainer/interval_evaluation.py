"""IntervalEvaluation: what versions at shorter or longer intervals would have been worth, on an application's history.

A fresh model learns the samples once, in the order in which they became known. Each row held out is predicted, for each
interval, by what had been learned when the last version before its impression would have been published; later it is
learned like all others. It writes no version.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from operator import attrgetter, methodcaller
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.apps import AppFolder
from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import UsageError
from streamlearn.models import Model, model_of
from streamlearn.ps import PsClient
from streamlearn.publisher.logit_scores import logits_of
from streamlearn.topics import Topic
from streamlearn.trainer.columns import StepColumns, columns_of
from streamlearn.trainer.evaluation import kept_aside, own_tables
from streamlearn.trainer.expiry_schedule import ExpirySchedule
from streamlearn.trainer.intake.feed import Until
from streamlearn.trainer.intake.message import Reached
from streamlearn.trainer.intake.sample_range import SampleRange
from streamlearn.trainer.intake.split import Split, SplitRequest, split_of
from streamlearn.trainer.learner import Learner
from streamlearn.trainer.rows import Rows
from streamlearn.trainer.step import Piece, Step
from streamlearn.trainer.trainer_setup import ends_of, samples_of
from streamlearn.trainer.validation.interval_scores import IntervalScore, interval_scores
from streamlearn.trainer.validation.open_rows import DueRows
from streamlearn.trainer.validation.rows import Rows as ScoredRows
from streamlearn.trainer.validation.rows import corrections_of, row_type
from streamlearn.trainer.validation.runs import run_of
from streamlearn.trainer.validation_thread import CurveFit
from streamlearn.versions.format.manifest import TimeSkip

__all__ = ["IntervalEvaluation", "cut", "evaluate_intervals"]

SERVED = "served"
"""In place of an interval: the scores that nodes answered, where samples have them."""
"""Names of slots that say who a user is."""
Float32s = npt.NDArray[np.float32]
Int64s = npt.NDArray[np.int64]


class IntervalEvaluation:
    """A fresh model that learns the samples of a split, and predicts those held out as often as they are asked for.

    `every_ms` has the intervals by their texts; None stands for a version at the begin of the time held out and no
    later one. `client` serves empty tables that nothing else uses.
    """

    def __init__(
        self,
        folder: AppFolder,
        model: Model,
        topic: Topic,
        client: PsClient,
        split: Split,
        *,
        every_ms: Mapping[str, int | None],
        by_segment: bool = False,
        keep_aside: Callable[[str, bytes], None],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        settings = folder.settings
        self._folder, self._topic, self._split, self._every_ms = folder, topic, split, every_ms
        self._by_segment, self._keep_aside, self._clock = by_segment, keep_aside, clock
        self._learner = Learner(folder.app, model, settings.trainer)
        self._curves, self._watermark_ms = CurveFit(folder, self._learner), 0
        self._step_rows = settings.trainer.step_rows
        self._rows = Rows(folder.app, client, self._step_rows, settings.tables)
        self._expiry = ExpirySchedule(client, settings.tables)
        self.learned = 0

    def run(self, stop: threading.Event, show: Callable[[int], None] = lambda rows: None) -> list[IntervalScore]:
        """Learn and predict everything, and return the scores by label and interval; none if `stop` was set.

        `show` is called with the number of rows learned so far.
        """
        held = self._held(stop)
        labels = len(self._folder.app.labels)
        logits = {every: np.zeros((len(held.shown_ms), labels), np.float32) for every in self._every_ms}
        due = _due(self._split, self._every_ms)
        time_ms, every = next(due)
        for step in self._steps(self._split.ignored, stop):
            rest: Step | None = step
            while rest is not None:
                early, rest = cut(rest, time_ms)
                if early is not None:
                    self._learn(early)
                if rest is not None:
                    self._predict(held, time_ms, every, logits)
                    time_ms, every = next(due)
            show(self.learned)
        while not stop.is_set() and time_ms < self._split.end_ms:
            self._predict(held, time_ms, every, logits)
            time_ms, every = next(due)
        return [] if stop.is_set() else self._scores(held, logits)

    def _held(self, stop: threading.Event) -> _Held:
        """Read the rows held out; too many of them raise a UsageError."""
        steps, rows, limit = list[Step](), 0, self._folder.settings.validation.rows_max
        for step in self._steps(self._split.not_held, stop):
            rows += len(step)
            if rows > limit:
                message = f"more rows are held out than validation.rows_max ({limit:,})"
                raise UsageError(message, help="hold out fewer, by --test-from or --hold-out, or raise the limit")
            if len(step):
                steps.append(step)
        return _Held(steps)

    def _steps(self, skips: tuple[TimeSkip, ...], stop: threading.Event) -> Iterator[Step]:
        reading = SampleRange(
            self._folder, self._topic, self._split.begin, skips,
            until=Until(self._split.ends), keep_aside=self._keep_aside, clock=self._clock,
        )  # fmt: skip
        with closing(reading.feed):
            for step in reading.feed.steps():
                if stop.is_set():
                    return
                if step is not None:
                    yield step
                    reading.marks.acknowledge(step.number)
                    reading.forget(step.reached)

    def _learn(self, step: Step) -> None:
        columns = columns_of(step)
        scale = self._learner.rate_scale
        learned = self._learner.learn(self._rows.pack(columns))
        self._curves.see(columns, learned.logits)
        self._watermark_ms = step.reached.watermark_ms or self._watermark_ms
        if learned.is_finite:
            clock_ms = step.reached.clock_ms
            assert clock_ms is not None  # a step with rows has a message
            self._rows.push(columns, learned.gradients, clock_ms, scale)
            self.learned += len(step)
            if self._expiry.is_due(self._learner.steps):
                self._expiry.look(self._learner.steps, step.reached)

    def _predict(self, held: _Held, time_ms: int, every: str, logits: dict[str, Float32s]) -> None:
        """Predict all rows that a version of this moment would answer, until the next of its interval."""
        interval_ms = self._every_ms[every]
        self._curves.fit(self._watermark_ms)
        end_ms = self._split.end_ms if interval_ms is None else time_ms + interval_ms
        for numbers, step in held.between(time_ms, end_ms, self._step_rows):
            logits[every][numbers] = self._learner.score(self._rows.pack(columns_of(step)))

    def _scores(self, held: _Held, logits: Mapping[str, Float32s]) -> list[IntervalScore]:
        app, complete_ms, parts = self._folder.app, self._split.complete_ms or 0, [*map(columns_of, held.steps)]
        if not parts:
            return []

        def joined(column: Callable[[StepColumns], npt.NDArray[Any]]) -> npt.NDArray[Any]:
            return np.concatenate([column(part) for part in parts])

        names = ("identity", "learn", "correct", "positive", "rates", "weights")
        identity, learn, correct, positive, rates, weights = (joined(attrgetter(name)) for name in names)
        numbers = None if parts[0].numbers is None else joined(attrgetter("numbers"))
        served, users = joined(attrgetter("served")), joined(methodcaller("users", app.features.user_slots))
        texts = {name: joined(partial(_texts, at)) for at, name in enumerate(one.name for one in parts[0].segments)}
        windows_ms = {group.name: group.window_s * 1_000 for group in app.groups}
        found = []
        for label, declared in enumerate(app.labels):
            bit, is_final = np.uint32(1 << label), held.shown_ms < complete_ms - windows_ms[declared.group]
            chosen, changed = (np.flatnonzero(is_final & (mask & bit != 0)) for mask in (learn, correct))
            rows = np.zeros(len(chosen), row_type(0, is_number=declared.number is not None))
            rows["identity"], rows["positive"] = identity[chosen], positive[chosen] & bit != 0
            rows["weight"], rows["rate"] = weights[chosen, label], rates[chosen, label]
            rows["served"] = np.nan  # what nodes answered is compared as an interval of its own
            if declared.number is not None and numbers is not None:
                rows["number"] = numbers[chosen, label]
            changes = None if numbers is None else numbers[changed, label]
            corrected = corrections_of(rows.dtype, identity[changed], changes)
            due = DueRows([run_of(rows, 0 * chosen)], [run_of(corrected, 0 * changed)], {}, set())
            once = due.settled().windows.get(0)
            if once is None:
                continue
            first = chosen[np.unique(rows["identity"], return_index=True)[1]]
            scores = {every: of_rows[first, label] for every, of_rows in logits.items()}
            scores[SERVED] = served[first, label] if declared.number is not None else logits_of(served[first, label])
            of_rows = {segment: of_segment[first] for segment, of_segment in texts.items()}
            found += self._of_label(declared.name, once.rows, users[first], scores, of_rows)
        return found

    def _of_label(
        self,
        label: str,
        rows: ScoredRows,
        users: npt.NDArray[np.uint64],
        logits: dict[str, Float32s],
        texts: Mapping[str, npt.NDArray[np.object_]],
    ) -> list[IntervalScore]:
        """Return the scores of all rows, then of those with each text of each segment."""
        served, last = logits.pop(SERVED), [*self._every_ms][-1]
        is_served = ~np.isnan(served)

        def of(which: npt.NDArray[np.bool_], part: tuple[str, str]) -> list[IntervalScore]:
            mine = which & is_served
            by_interval = {every: one[which] for every, one in logits.items()}
            scores = interval_scores(label, rows[which], users[which], by_interval, part)
            if mine.any():  # of the same rows as the last interval, with which they are compared
                both = {SERVED: served[mine], last: logits[last][mine]}
                scores += interval_scores(label, rows[mine], users[mine], both, part)[:1]
            return scores

        scores = of(np.ones(len(rows), np.bool_), ("", ""))
        for segment, of_rows in texts.items() if self._by_segment else ():
            common = Counter(of_rows.tolist()).most_common(self._folder.settings.validation.segment_texts_max)
            for text in sorted(text for text, _ in common):
                scores += of(of_rows == text, (segment, text))
        return scores


class _Held:
    """The rows held out, in memory, by the time at which they were shown."""

    def __init__(self, steps: list[Step]) -> None:
        self.steps = steps
        self._pieces = [piece for step in steps for piece in step.pieces]
        none = [np.zeros(0, np.int64)]
        shown = [piece.batch.shown_ms(piece.rows) for piece in self._pieces]
        self.shown_ms: Int64s = np.concatenate(none + shown)
        self._piece = np.repeat(np.arange(len(self._pieces)), [len(piece) for piece in self._pieces])
        self._row = np.concatenate(none + [piece.rows for piece in self._pieces])
        self._order = np.argsort(self.shown_ms, kind="stable")
        self._sorted_ms = self.shown_ms[self._order]

    def between(self, begin_ms: int, end_ms: int, rows_max: int) -> Iterator[tuple[Int64s, Step]]:
        """Yield the rows shown in a time as steps to predict, with their numbers."""
        begin, end = np.searchsorted(self._sorted_ms, [begin_ms, end_ms]).tolist()
        for at in range(begin, end, rows_max):
            numbers = self._order[at : min(at + rows_max, end)]
            numbers = numbers[np.argsort(self._piece[numbers], kind="stable")]
            pieces = []
            for number in np.unique(self._piece[numbers]):
                rows = self._row[numbers[self._piece[numbers] == number]]
                none = np.zeros(len(rows), np.uint32)
                pieces.append(Piece(self._pieces[number].batch, rows, none, none))
            yield numbers, Step(1, pieces, Reached((), ()), len(numbers))


def evaluate_intervals(
    folder: AppFolder,
    request: SplitRequest,
    every_ms: Mapping[str, int | None],
    stop: threading.Event,
    *,
    until_offset: str = "end",
    by_segment: bool = False,
    show: Callable[[int], None] = lambda rows: None,
    clock: Clock = SYSTEM_CLOCK,
) -> tuple[Split, list[IntervalScore]]:
    """Return how good versions at some intervals would have been, by label, with `by_segment` also by text.

    See `IntervalEvaluation`.
    """
    model, keep_aside = model_of(folder), kept_aside(folder).add
    with ExitStack() as ends:
        topic = ends.enter_context(samples_of(folder))
        split = split_of(folder, topic, request, ends_of(topic, until_offset), keep_aside=keep_aside, clock=clock)
        client = ends.enter_context(own_tables(folder))
        evaluation = IntervalEvaluation(
            folder,
            model,
            topic,
            client,
            split,
            every_ms=every_ms,
            by_segment=by_segment,
            keep_aside=keep_aside,
            clock=clock,
        )
        return split, evaluation.run(stop, show)


def cut(step: Step, before_ms: int) -> tuple[Step | None, Step | None]:
    """Cut a step into the rows that were known before a time, and the others; None for a part without rows."""
    early: list[Piece] = []
    late: list[Piece] = []
    for piece in step.pieces:
        is_early = piece.batch.settle_time_ms[piece.rows] < before_ms
        for part, which in ((early, is_early), (late, ~is_early)):
            if which.any():
                known = None if piece.known is None else piece.known[which]
                part.append(Piece(piece.batch, piece.rows[which], piece.learn[which], piece.correct[which], known))
    first, second = (replace(step, pieces=part) if part else None for part in (early, late))
    return first, second


def _texts(segment: int, columns: StepColumns) -> npt.NDArray[np.object_]:
    return np.array(columns.segments[segment].texts, object)[columns.segments[segment].codes]


def _due(split: Split, every_ms: Mapping[str, int | None]) -> Iterator[tuple[int, str]]:
    """Yield the times at which versions would be published, in order, each with its interval; then a time after all."""
    next_ms = dict.fromkeys(every_ms, split.test_ms)
    while next_ms:
        every = min(next_ms, key=lambda one: next_ms[one])
        time_ms = next_ms[every]
        if time_ms >= split.end_ms:
            break
        yield time_ms, every
        interval_ms = every_ms[every]
        if interval_ms is None:
            del next_ms[every]
        else:
            next_ms[every] = time_ms + interval_ms
    while True:
        yield 1 << 62, ""
