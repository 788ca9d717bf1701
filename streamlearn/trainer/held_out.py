"""HeldOut: scores a model on the held-out samples of a split. It learns nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from streamlearn.apps import AppFolder
from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.topics import Topic
from streamlearn.trainer.columns import StepColumns, columns_of
from streamlearn.trainer.intake.feed import Until
from streamlearn.trainer.intake.sample_range import SampleRange
from streamlearn.trainer.intake.split import Split
from streamlearn.trainer.learner import Learner
from streamlearn.trainer.rows import Rows
from streamlearn.trainer.validation import Predicted, ProgressiveValidation, WindowScore
from streamlearn.trainer.validation_thread import predicted_of

__all__ = ["HeldOut", "HeldOutScores"]

# One window holds all held-out samples, and closes once all of them are read.
_WINDOW_S = 1 << 40
_CLOSED_MS = 1 << 52


@dataclass(frozen=True)
class HeldOutScores:
    """The scores on held-out samples."""

    scores: tuple[WindowScore, ...]  # for each label the score of all rows, then those of each text of each segment
    open_rows: dict[str, int]  # by label, the rows left out because their label may still become positive


class HeldOut:
    """Scores the held-out samples of a split with the graphs of `learner` and the rows of `rows`."""

    def __init__(
        self,
        folder: AppFolder,
        topic: Topic,
        split: Split,
        learner: Learner,
        rows: Rows,
        *,
        keep_aside: Callable[[str, bytes], None],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._folder, self._topic, self._split, self._learner, self._rows = folder, topic, split, learner, rows
        self._keep_aside, self._clock = keep_aside, clock
        windows_ms = {group.name: group.window_s * 1_000 for group in folder.app.groups}
        # For each label: the labels of impressions before this time are final.
        complete_ms = split.complete_ms or 0
        self._final_ms = [complete_ms - windows_ms[label.group] for label in folder.app.labels]

    def score(self, stop: threading.Event) -> HeldOutScores:
        """Score with the current weights; when `stop` is set, score only what was read by then."""
        app, split = self._folder.app, self._split
        labels = [label.name for label in app.labels]
        result = HeldOutScores((), dict.fromkeys(labels, 0))
        if split.test_ms >= split.end_ms:
            return result
        settings = msgspec.structs.replace(self._folder.settings.validation, windows_s=[_WINDOW_S])
        validation = ProgressiveValidation(app, settings)
        reading = SampleRange(
            self._folder, self._topic, split.held_begin, split.not_held,
            until=Until(split.ends), keep_aside=self._keep_aside, clock=self._clock,
        )  # fmt: skip
        with closing(reading.feed):
            for step in reading.feed.steps():
                if stop.is_set():
                    break
                if step is None:
                    continue
                if len(step):
                    columns = columns_of(step)
                    logits = self._learner.score(self._rows.pack(columns))
                    validation.add(self._final(columns, predicted_of(columns, logits, app), result.open_rows))
                reading.marks.acknowledge(step.number)
                reading.forget(step.reached)
        scores = [
            msgspec.structs.replace(score, begin_ms=split.test_ms, end_ms=split.end_ms)
            for score in validation.close(_CLOSED_MS)
        ]
        return replace(result, scores=tuple(scores))

    def _final(self, columns: StepColumns, predicted: Predicted, open_rows: dict[str, int]) -> Predicted:
        """Mask labels that may still become positive, and count their rows in `open_rows`."""
        final = np.zeros(len(columns), np.uint32)
        for number, name in enumerate(open_rows):
            bit = np.uint32(1 << number)
            is_final = columns.event_time_ms < self._final_ms[number]
            final |= np.where(is_final, bit, np.uint32(0))
            open_rows[name] += int(np.count_nonzero(~is_final & (columns.learn & bit != 0)))
        return replace(predicted, learn=predicted.learn & final, correct=predicted.correct & final)
