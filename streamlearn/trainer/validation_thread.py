"""Validating: first predictions scored beside training, in a thread of its own. What a score is, others know."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from streamlearn.apps import App
from streamlearn.settings import ValidationSettings
from streamlearn.trainer.columns import StepColumns
from streamlearn.trainer.learner import Learned
from streamlearn.trainer.validation import Predicted, ProgressiveValidation, WindowScore

__all__ = ["Validating", "predicted_of"]

_LOOK_S = 0.25


class Validating:
    """Takes what steps predicted; scores windows as they close.

    Args:
        app: Whose labels.
        settings: Widths and bounds.
        told: Told of scores, by the thread that scores.
        learned_before_ms: Up to when impressions may have been learned by an earlier life.

    Attributes:
        refuse: Takes rows that are never learned; see `ProgressiveValidation`.
    """

    def __init__(
        self,
        app: App,
        settings: ValidationSettings,
        *,
        told: Callable[[Sequence[WindowScore]], None],
        learned_before_ms: int | None,
    ) -> None:
        self._validation = ProgressiveValidation(app, settings, learned_before_ms=learned_before_ms)
        self._told, self.refuse = told, self._validation.refuse
        self._watermark_ms: int | None = None
        self._summary: dict[str, float] = {}
        self._error: BaseException | None = None
        self._has_ended, self._closing = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._run, name="streamlearn-trainer-validation", daemon=True)

    def __enter__(self) -> Validating:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Score what has closed by now, and end.

        Raises:
            StreamlearnError: What went wrong in the thread that scores, where nothing else did.
        """
        self._has_ended.set()
        self._thread.join()
        if kind is None and self._error is not None:
            raise self._error

    def add(self, columns: StepColumns, learned: Learned) -> None:
        """A step that was learned: what it predicted, and up to when samples are complete.

        Raises:
            StreamlearnError: What went wrong in the thread that scores.
        """
        if self._error is not None:
            raise self._error
        self._validation.add(predicted_of(columns, learned.logits))
        self._watermark_ms = columns.step.reached.watermark_ms

    def catch_up(self) -> None:
        """Score all that has closed by now, before this returns."""
        if self._watermark_ms is not None:
            self._close(self._watermark_ms)

    @property
    def summary(self) -> dict[str, float]:
        """The numbers of the newest closed windows, by name."""
        return dict(self._summary)

    def _run(self) -> None:
        closed_ms: int | None = None
        while True:
            has_ended = self._has_ended.wait(_LOOK_S)
            watermark_ms = self._watermark_ms
            if watermark_ms is not None and watermark_ms != closed_ms:
                closed_ms = watermark_ms
                try:
                    self._close(watermark_ms)
                # The thread that trains is told at its next step.
                except BaseException as error:
                    self._error = error
                    return
            if has_ended:
                return

    def _close(self, watermark_ms: int) -> None:
        # Who catches up waits for the summary of windows that the other thread closes at that moment.
        with self._closing:
            scores = self._validation.close(watermark_ms)
            if scores:
                self._summary = self._validation.summary()
                self._told(scores)


def predicted_of(columns: StepColumns, logits: npt.NDArray[np.float32]) -> Predicted:
    """A step with what was predicted of it, as validation takes it."""
    return Predicted(
        identity=columns.identity,
        event_time_ms=columns.event_time_ms,
        logits=logits,
        learn=columns.learn,
        correct=columns.correct,
        positive=columns.positive,
        rates=columns.rates,
        weights=columns.weights,
        segments=columns.segments,
    )
