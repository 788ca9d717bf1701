"""ProgressiveValidation: predict before you learn. First predictions wait for their labels, then they are scored.

Rows arrive as the arrays of a step; all work on single rows is done by NumPy.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.apps import App
from streamlearn.errors import ConfigError
from streamlearn.samples import SegmentColumns
from streamlearn.settings import ValidationSettings
from streamlearn.trainer.validation.curves import curves_of
from streamlearn.trainer.validation.label_rows import LabelRows
from streamlearn.trainer.validation.meters import ScoreMeters
from streamlearn.trainer.validation.prediction_tensors import (
    LabelNote,
    State,
    column_tensors,
    saved_rows,
    state_of,
    state_tensors,
)
from streamlearn.trainer.validation.rows import HALVINGS_MAX, USER_GROUPS, Uint64s, corrections_of, row_type
from streamlearn.trainer.validation.score import ClosedWindows, WindowScore, scores_of
from streamlearn.trainer.validation.texts import Texts
from streamlearn.versions.format.pieces import Tensors

__all__ = ["Predicted", "ProgressiveValidation", "WaitingNote"]

Int64s = npt.NDArray[np.int64]
Uint32s = npt.NDArray[np.uint32]
Float32s = npt.NDArray[np.float32]

# The share of `rows_max` that is freed when it is reached.
_ROOM_SHARE = 0.125
_SUMMED = ("auc", "log_loss", "calibration", "rows", "positives", "kept")
_SUMMED_OF_NUMBERS = ("mae", "rmse", "calibration", "rows", "kept")
_LABELS_MAX = 32  # the bits of a mask


@dataclass(frozen=True, eq=False)
class Predicted:
    """The rows of one step: N rows, L labels in the application's order. Bit l of a mask is label l.

    `ProgressiveValidation.add` keeps none of the arrays.
    """

    identity: Uint64s  # uint64[N]: a hash of (events topic id, partition, offset, item index), equal for repeated rows
    event_time_ms: Int64s  # int64[N]: impression times
    logits: Float32s  # float32[N, L]: predictions from before the step
    learn: Uint32s  # uint32[N]: labels that are learned for the first time
    correct: Uint32s  # uint32[N]: labels that were learned as negative and are positive
    positive: Uint32s  # uint32[N]: the positive labels among `learn`
    rates: Float32s  # float32[N, L]: the share of negatives kept
    weights: Float32s  # float32[N, L]: sample weights
    segments: tuple[SegmentColumns, ...] = ()  # the segments that the application declares
    numbers: Float32s | None = None  # float32[N, L]: the numbers of labels that are; None if none is one
    served: Float32s | None = None  # float32[N, L]: the scores that nodes answered, NaN if none did; None: no node did
    users: Uint64s | None = None  # uint64[N]: who each row was shown to; None: each to another one
    raw: Float32s | None = None  # float32[N, L]: logits before the curves of calibrations; None: `logits`
    values: Uint64s | None = None  # uint64[N, L]: keys of the values by which labels have curves; None: of none

    def __len__(self) -> int:
        return len(self.identity)


@dataclass(frozen=True, eq=False)
class WaitingNote:
    """What no committed version holds at a step boundary; see `ProgressiveValidation.note`."""

    labels: Sequence[LabelNote]
    segments: tuple[tuple[str, tuple[str, ...]], ...]
    is_whole: bool


class ProgressiveValidation:
    """Scores first predictions against final labels, by label, window and segment.

    The training thread calls `add`. Another thread may call `close` and `summary`, one at a time: rows are accepted
    while they score. Impressions up to the event time `learned_before_ms` may have been learned by an earlier process,
    whose predictions are lost: windows that hold such impressions are not complete. None: there are none. With
    `is_versioned`, what came since the newest committed version is kept for `note`.

    Attributes:
        unscored: By label, how many rows and corrections were not scored, by reason. Rows that were first learned after
            their window was closed are `late_rows`. Rows that became positive after that are `late_corrections`: they
            were scored as negative. Those that became positive and have no prediction here, as after a restart, are
            `unmatched_corrections`. Rows whose prediction was NaN or infinite are `not_finite`.
    """

    def __init__(
        self,
        app: App,
        settings: ValidationSettings | None = None,
        *,
        learned_before_ms: int | None = None,
        is_versioned: bool = False,
    ) -> None:
        self._settings = settings or ValidationSettings()
        self._learned_before_ms, self._is_versioned = learned_before_ms, is_versioned
        widths_ms = [width * 1_000 for width in _checked(self._settings.windows_s)]
        self._texts = Texts([segment.name for segment in app.features.segments], self._settings.segment_texts_max)
        segments = len(self._texts.names)
        self._curves = [output.curve for output in app.outputs]
        self._kinds = [
            row_type(segments, is_number=label.number is not None, has_curve=curve is not None)
            for label, curve in zip(app.labels, self._curves, strict=True)
        ]
        waits = {group.name: group.window_s * 1_000 for group in app.groups}
        self._labels = [
            LabelRows(label.name, waits[label.group], widths_ms, self._settings.summary_s * 1_000, kind)
            for label, kind in zip(app.labels, self._kinds, strict=True)
        ]
        self.unscored = {label.name: Counter[str]() for label in app.labels}
        self._shortest_s = self._settings.windows_s[0]
        self._lock, self._closing = threading.Lock(), threading.Lock()
        self._held = 0
        self._is_apart = False  # whether the next version must not need the predictions of earlier ones
        self._meters = ScoreMeters()
        self._meters.held.set_function(lambda: self._held / self._settings.rows_max)

    @property
    def held_rows(self) -> int:
        """The number of held predictions and corrections, at most `rows_max`."""
        return self._held

    def add(self, rows: Predicted) -> None:
        """Take the predictions and labels of a step. Later predictions of the same row are ignored.

        Beyond `rows_max`, rows are thinned: those of closed windows while they are more than half of all, else those
        of open windows. A hash of the identity selects the half that stays, and each row then counts for two. The same
        happens if more than `rows_max` rows are in no committed version.
        """
        _check(rows, len(self._labels))
        codes = self._texts.codes(rows.segments, len(rows))
        with self._lock:
            for at in range(len(self._labels)):
                self._learn(rows, at, codes)
                self._correct(rows, at)
            if self._used > self._settings.rows_max:
                self._make_room()

    def refuse(self, event_time_ms: Int64s, labels: Uint32s) -> None:
        """Note rows that are never learned, which makes their windows incomplete.

        `event_time_ms` is int64[N], the impression times; `labels` is uint32[N], a bit for each label that is not
        learned.
        """
        with self._lock:
            for at, label in enumerate(self._labels):
                label.lack(label.windows_of(event_time_ms[labels >> np.uint32(at) & np.uint32(1) != 0]))

    def load(self, saved: Tensors, *, has_lost: bool = False) -> int | None:
        """Take over what waits in a version, before the first step; returns the watermark up to which it is scored.

        Scores that were made before the version are not made again. With `has_lost`, samples after the version are
        gone, so that `learned_before_ms` stays.
        """
        state = state_of(saved)
        if state.width_ms != self._shortest_s * 1_000:  # windows of other widths cannot be continued
            self._is_apart = True
            return None
        known = {name: (at, texts) for at, (name, texts) in enumerate(state.segments)}
        self._is_apart = tuple(known) != self._texts.names
        codes_of = [
            (known[name][0], self._texts.codes_of(at, known[name][1])) if name in known else None
            for at, name in enumerate(self._texts.names)
        ]
        self._learned_before_ms = self._learned_before_ms if has_lost else state.learned_before_ms
        for label, kind in zip(self._labels, self._kinds, strict=True):
            rows, corrected = saved_rows(saved, label.name, kind, codes_of)
            halved = (saved[f"{label.name}.{name}"].tolist() for name in ("halved", "halvings"))
            label.open.halvings = dict(zip(*halved, strict=True))
            label.open.lacking.update(saved[f"{label.name}.lacking"].tolist())
            self._held += label.add(*rows, is_new=self._is_apart) + label.correct(*corrected, is_new=self._is_apart)
            if state.watermark_ms is not None:
                self._closed(label, state.watermark_ms, is_again=True)
        return state.watermark_ms

    def note(self) -> WaitingNote:
        """Note what came since the newest committed version, at a step boundary. It copies no rows."""
        with self._lock:
            return WaitingNote([label.note() for label in self._labels], self._texts.all, self._is_apart)

    def tensors(self, note: WaitingNote, watermark_ms: int | None) -> dict[str, npt.NDArray[Any]]:
        """Return a note as the tensors of a version, which has the scores of all windows that a watermark closes."""
        state = State(self._shortest_s * 1_000, watermark_ms, self._learned_before_ms, note.segments)
        tensors = state_tensors(state, is_whole=note.is_whole)
        for label, of_label in zip(self._labels, note.labels, strict=True):
            tensors |= column_tensors(of_label, label.first_needed(watermark_ms, of_label.newest_ms))
        return tensors

    def committed(self, note: WaitingNote) -> None:
        """Forget what a committed version holds."""
        with self._lock:
            self._is_apart &= not note.is_whole
            for label, of_label in zip(self._labels, note.labels, strict=True):
                label.journal.drop(of_label.lots)

    def close(self, watermark_ms: int) -> list[WindowScore]:
        """Score the windows that have closed since the last call, oldest first.

        A window closes when `watermark_ms`, up to which all samples were learned, is past its end by the label's
        window: all its rows and corrections must have been added. A watermark that goes back closes nothing.
        """
        with self._closing:
            closed = [windows for label in self._labels for windows in self._closed(label, watermark_ms)]
            closed.sort(key=lambda windows: windows.width_ms)
            scores = [score for windows in closed for score in self._scores(windows, self._texts.all)]
        scores.sort(key=attrgetter("end_ms"))
        width_ms = self._shortest_s * 1_000
        self._meters.scored(
            [score for score in scores if not score.segment and score.end_ms - score.begin_ms == width_ms]
        )
        return scores

    def summary(self) -> dict[str, float]:
        """Return the scores of the newest closed windows, `summary_s` of them, for a version's metrics.

        The names are `validation.LABEL.auc`, likewise `log_loss`, `mae`, `rmse`, `calibration`, `rows`, `positives` and
        `kept`, each if it is defined; `until_s`, the end of the newest one; and `auc` and `mae`, that of the first
        label that has one.
        """
        metrics: dict[str, float] = {}
        with self._closing:
            for label in self._labels:
                with self._lock:
                    newest = label.newest()
                for score in self._scores(newest, ()) if newest else ():
                    for name in _SUMMED if score.mae is None else _SUMMED_OF_NUMBERS:
                        if (value := getattr(score, name)) is not None:
                            metrics[f"validation.{label.name}.{name}"] = float(value)
                    metrics[f"validation.{label.name}.until_s"] = score.end_ms / 1e3
                    for name in ("auc", "mae"):
                        if (value := getattr(score, name)) is not None:
                            metrics.setdefault(name, value)
        return metrics

    def curves(self, left_out: Sequence[tuple[int, int]] = ()) -> dict[str, Float32s]:
        """Fit the curves of isotonic calibrations to what `summary` is of, by the names of their weights.

        Windows of the times in `left_out` do not count. Labels with too few rows are missing.
        """
        fitted = {}
        with self._closing:
            for label, curve in zip(self._labels, self._curves, strict=True):
                if curve is None:
                    continue
                with self._lock:
                    newest = label.newest(left_out)
                if newest is not None and (of_label := curves_of(newest.rows, newest.stand_for)) is not None:
                    fitted[curve.weight_name] = of_label
        return fitted

    def _closed(self, label: LabelRows, watermark_ms: int, *, is_again: bool = False) -> list[ClosedWindows]:
        if not label.is_due(watermark_ms):
            return []
        with self._lock:
            due = label.due(watermark_ms)
        settlement = due.settled()
        self._lose(label, "unmatched_corrections", 0 if is_again else settlement.unmatched)
        with self._lock:
            label.settle(settlement.windows)
            closed = label.closed(watermark_ms)
            self._held -= settlement.dropped + label.forget()
        return closed

    def _learn(self, rows: Predicted, at: int, codes: npt.NDArray[np.uint8]) -> None:
        label = self._labels[at]
        chosen = np.flatnonzero(rows.learn >> np.uint32(at) & np.uint32(1))
        windows = label.windows_of(rows.event_time_ms[chosen])
        good = self._usable(label, windows, rows.logits[chosen, at])
        if not good.all():
            chosen, windows = chosen[good], windows[good]
        if not len(chosen):
            return
        which = chosen if len(chosen) < len(rows) else slice(None)
        records = np.empty(len(chosen), self._kinds[at])
        records["identity"] = rows.identity[which]
        for name, column in (("logit", rows.logits), ("weight", rows.weights), ("rate", rows.rates)):
            records[name] = column[which, at]
        records["positive"] = rows.positive[which] >> np.uint32(at) & np.uint32(1)
        records["codes"] = codes[which]
        records["user"] = (rows.identity if rows.users is None else rows.users)[which] % np.uint64(USER_GROUPS)
        records["served"] = np.nan if rows.served is None else rows.served[which, at]
        if self._curves[at] is not None:
            records["raw"] = (rows.logits if rows.raw is None else rows.raw)[which, at]
            records["value"] = 0 if rows.values is None else rows.values[which, at]
        if rows.numbers is not None and "number" in (records.dtype.names or ()):
            records["number"] = rows.numbers[which, at]
        self._held += label.add(records, windows, is_new=self._is_versioned)

    def _usable(self, label: LabelRows, windows: Int64s, logits: Float32s) -> npt.NDArray[np.bool_]:
        """Return which rows have an open window and a finite logit; count the others."""
        is_open, is_finite = label.are_open(windows), np.isfinite(logits)
        self._lose(label, "late_rows", len(windows) - int(np.count_nonzero(is_open)))
        label.lack(windows[~is_open])
        if not is_finite.all():
            bad = is_open & ~is_finite
            self._lose(label, "not_finite", int(np.count_nonzero(bad)))
            label.lack(windows[bad])
        return is_open & is_finite

    def _correct(self, rows: Predicted, at: int) -> None:
        label = self._labels[at]
        chosen = np.flatnonzero(rows.correct >> np.uint32(at) & np.uint32(1))
        if not len(chosen):
            return
        windows = label.windows_of(rows.event_time_ms[chosen])
        is_open = label.are_open(windows)
        self._lose(label, "late_corrections", len(chosen) - int(np.count_nonzero(is_open)))
        label.lack(windows[~is_open])
        kept = chosen[is_open]
        numbers = None if rows.numbers is None else rows.numbers[kept, at]
        corrected = corrections_of(self._kinds[at], rows.identity[kept], numbers)
        self._held += label.correct(corrected, windows[is_open], is_new=self._is_versioned)

    def _make_room(self) -> None:
        """Halve the windows that were halved least, until there is room."""
        most = int(self._settings.rows_max * (1 - _ROOM_SHARE))
        self._thin()
        while self._used > most and (self._halve_closed(is_most=True) or self._halve_open() or self._halve_closed()):
            self._thin()  # if rows remain, they are being settled

    def _thin(self) -> None:
        for label in self._labels:
            label.thin()

    @property
    def _used(self) -> int:
        """The number of held rows, or of those that no version holds yet, whichever is larger."""
        return max(self._held, sum(len(label.journal) for label in self._labels))

    def _halve_closed(self, *, is_most: bool = False) -> bool:
        """Halve closed windows if there are any; with `is_most` only while they hold more than half of all rows."""
        settled = [window for label in self._labels for window in label.settled.values()]
        thinned = [window for window in settled if len(window) and window.halvings < HALVINGS_MAX]
        before = sum(map(len, thinned))
        if not thinned or (is_most and before * 2 <= self._held):
            return False
        least = min(window.halvings for window in thinned)
        for window in thinned:
            if window.halvings == least:
                window.halve()
        self._held += sum(map(len, thinned)) - before
        return True

    def _halve_open(self) -> bool:
        """Halve open windows if there are any."""
        halvings = [label.open.halvings_least for label in self._labels]
        least = min((count for count in halvings if count is not None), default=None)
        if least is None:
            return False
        for label in self._labels:
            before = len(label.open)
            label.open.halve(least)
            self._held += len(label.open) - before
        return True

    def _scores(self, closed: ClosedWindows, segments: Sequence[tuple[str, Sequence[str]]]) -> list[WindowScore]:
        return scores_of(closed, segments, learned_before_ms=self._learned_before_ms)

    def _lose(self, label: LabelRows, reason: str, count: int) -> None:
        if count:
            self.unscored[label.name][reason] += count
            self._meters.unscored.labels(label.name, reason).inc(count)


def _checked(widths_s: list[int]) -> list[int]:
    for shorter, longer in pairwise(widths_s):
        if longer <= shorter or longer % shorter:
            message = f"windows_s: {longer} is not a multiple of {shorter}"
            raise ConfigError(message, help="give widths shortest first, each a multiple of the one before it")
    return widths_s


def _check(rows: Predicted, labels: int) -> None:
    count = len(rows)
    assert labels <= _LABELS_MAX, labels
    for name, column in vars(rows).items():
        if name == "segments":
            assert all(len(segment.codes) == count for segment in column), name
        elif column is not None:
            assert column.shape in ((count,), (count, labels)), (name, column.shape)
