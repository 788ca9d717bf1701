"""ValidationThread: scores first predictions in a thread beside training. It does not compute scores itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from streamlearn.apps import App, AppFolder
from streamlearn.clock import SYSTEM_CLOCK
from streamlearn.models.label_outputs import curve_rows, curved
from streamlearn.settings import ValidationSettings
from streamlearn.table.derivation import key_numbers
from streamlearn.trainer.columns import StepColumns
from streamlearn.trainer.learner import Learned, Learner
from streamlearn.trainer.validation import Predicted, ProgressiveValidation, WindowScore
from streamlearn.versions.format.manifest import Skip, TimeSkip
from streamlearn.versions.format.pieces import Tensors

__all__ = ["CurveFit", "NotedPredictions", "ValidationThread", "predicted_of"]

_LOOK_S = 0.25
# After a summary the scoring thread waits this many times as long as it took. While training catches up, windows close
# much faster than versions are published.
_SUMMARY_REST = 9.0
_EVER_MS = 1 << 62
Float32s = npt.NDArray[np.float32]


class ValidationThread:
    """Takes the predictions of steps and scores windows as they close.

    `on_scores` runs in the scoring thread, or in one that waits for scores. `saved` is what waits in the version that
    training continues from; `has_lost` says whether samples after it are gone. Without `saved`, the predictions of
    impressions up to `learned_before_ms` are lost. `skips` are as for `leave_out`. `refuse` takes rows that are never
    learned; see `ProgressiveValidation`.

    Attributes:
        curves: The newest curves of isotonic calibrations, by the names of their weights.
    """

    def __init__(
        self,
        app: App,
        settings: ValidationSettings,
        *,
        on_scores: Callable[[Sequence[WindowScore]], None],
        learned_before_ms: int | None,
        saved: Tensors | None = None,
        has_lost: bool = False,
        skips: Sequence[Skip] = (),
    ) -> None:
        self._validation = ProgressiveValidation(app, settings, learned_before_ms=learned_before_ms, is_versioned=True)
        self._on_scores, self.refuse, self._app = on_scores, self._validation.refuse, app
        self.curves, self._left_out = dict[str, Float32s](), list[tuple[int, int]]()
        self._watermark_ms = None if saved is None else self._validation.load(saved, has_lost=has_lost)
        self._summary = self._validation.summary()
        self._is_summary_old, self._summary_due_s = bool(app.features.curves and self._summary), 0.0
        self._error: BaseException | None = None
        self._has_ended, self._closing = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._run, name="streamlearn-trainer-validation", daemon=True)
        self.leave_out(skips)

    def __enter__(self) -> ValidationThread:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Score the windows that have closed, and raise the error of the scoring thread if nothing else failed."""
        self._has_ended.set()
        self._thread.join()
        if kind is None and self._error is not None:
            raise self._error

    def add(self, columns: StepColumns, learned: Learned, curves: Mapping[str, Float32s] | None = None) -> None:
        """Take a step's predictions and watermark; raises the error of the scoring thread if there is one.

        `curves` are those of isotonic calibrations in the newest version, which nodes answer with.
        """
        if self._error is not None:
            raise self._error
        self._validation.add(predicted_of(columns, learned.logits, self._app, curves))
        self._watermark_ms = columns.step.reached.watermark_ms

    def leave_out(self, skips: Sequence[Skip]) -> None:
        """Fit no curves to rows that are learned no more; of skipped offsets no time is known, and all rows go."""
        now_ms = _EVER_MS if self._watermark_ms is None else self._watermark_ms
        times = [(skip.begin_ms, skip.end_ms) if isinstance(skip, TimeSkip) else (-_EVER_MS, now_ms) for skip in skips]
        with self._closing:
            if times != self._left_out:
                self.curves, self._left_out, self._is_summary_old = {}, times, True

    def catch_up(self) -> None:
        """Score all windows that have closed, and sum them up, before this returns."""
        self.score_up_to(self._watermark_ms)
        self._sum_up()

    def note(self) -> NotedPredictions:
        """Note what no committed version holds, at a step boundary."""
        return NotedPredictions(self, self._validation, self._watermark_ms)

    def score_up_to(self, watermark_ms: int | None) -> None:
        """Score all windows that a watermark closes; raises the error of the scoring thread if there is one."""
        if self._error is not None:
            raise self._error
        if watermark_ms is not None:
            self._close(watermark_ms)

    @property
    def summary(self) -> dict[str, float]:
        """The scores of the newest closed windows, by name; some may be missing until `catch_up`."""
        return dict(self._summary)

    def _run(self) -> None:
        closed_ms: int | None = None
        while True:
            has_ended = self._has_ended.wait(_LOOK_S)
            watermark_ms = self._watermark_ms
            try:
                if watermark_ms is not None and watermark_ms != closed_ms:
                    closed_ms = watermark_ms
                    self._close(watermark_ms)
                if has_ended or SYSTEM_CLOCK.monotonic_s() >= self._summary_due_s:
                    self._sum_up()
            # `add` raises it in the training thread at the next step.
            except BaseException as error:
                self._error = error
                return
            if has_ended:
                return

    def _close(self, watermark_ms: int) -> None:
        # `catch_up` has to wait for windows that the scoring thread is closing.
        with self._closing:
            scores = self._validation.close(watermark_ms)
            if scores:
                self._is_summary_old = True
                self._on_scores(scores)

    def _sum_up(self) -> None:
        with self._closing:
            if not self._is_summary_old:
                return
            begin_s = SYSTEM_CLOCK.monotonic_s()
            self._summary, self._is_summary_old = self._validation.summary(), False
            self.curves = self.curves | self._validation.curves(self._left_out)
            end_s = SYSTEM_CLOCK.monotonic_s()
            self._summary_due_s = end_s + _SUMMARY_REST * (end_s - begin_s)


class NotedPredictions:
    """The predictions of a cut; see `CutState.predictions`."""

    def __init__(self, thread: ValidationThread, validation: ProgressiveValidation, watermark_ms: int | None) -> None:
        self._thread, self._validation, self._watermark_ms = thread, validation, watermark_ms
        self._note = validation.note()

    def tensors(self) -> Tensors:
        """Return the files' tensors; the scores of windows that closed before the cut are handed over first."""
        self._thread.score_up_to(self._watermark_ms)
        return self._validation.tensors(self._note, self._watermark_ms)

    def committed(self) -> None:
        """Forget what the version holds."""
        self._validation.committed(self._note)


class CurveFit:
    """Fits the curves of a learner that publishes nothing, to its own first predictions."""

    def __init__(self, folder: AppFolder, learner: Learner) -> None:
        self._app, self._learner = folder.app, learner
        self._validation = ProgressiveValidation(folder.app, folder.settings.validation) if learner.curves else None

    def see(self, columns: StepColumns, logits: Float32s) -> None:
        """Take the logits of a step, from before it was learned."""
        if self._validation is not None:
            self._validation.add(predicted_of(columns, logits, self._app))

    def fit(self, watermark_ms: int | None) -> None:
        """Give the learner the curves of all rows whose labels are final at a watermark."""
        if self._validation is not None and watermark_ms is not None:
            self._validation.close(watermark_ms)
            self._learner.curves = self._learner.curves | self._validation.curves()


def predicted_of(
    columns: StepColumns, logits: Float32s, app: App, curves: Mapping[str, Float32s] | None = None
) -> Predicted:
    """Return a step and its logits in the form that validation takes; `curves` are those they still have to pass."""
    names = Predicted.__dataclass_fields__.keys() - {"logits", "users", "raw", "values"}
    shared = {name: getattr(columns, name) for name in names}
    users = columns.users(app.features.user_slots)
    if not app.features.curves:
        return Predicted(logits=logits, users=users, **shared)
    raw, logits, values = logits, logits.copy(), np.zeros(logits.shape, np.uint64)
    for curve in app.features.curves:
        at = app.label_names.index(curve.label)
        values[:, at] = columns.keys(curve.by)
        if curves is not None:
            with tf.device("CPU"):
                of_label = tf.constant(curves[curve.weight_name])
                logits[:, at] = curved(raw[:, at], curve_rows(key_numbers(values[:, at]), of_label), of_label)
    return Predicted(logits=logits, users=users, raw=raw, values=values, **shared)
