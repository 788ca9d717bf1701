"""ProgressiveValidation: predict before you learn. First predictions wait for their labels, and are scored then.

Rows come by step, as arrays; what is done for one of them alone is done by NumPy.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from streamlearn.apps import App
from streamlearn.errors import ConfigError
from streamlearn.settings import ValidationSettings
from streamlearn.trainer.validation.label_rows import LabelRows
from streamlearn.trainer.validation.meters import ScoreMeters
from streamlearn.trainer.validation.predictions import Predicted
from streamlearn.trainer.validation.rows import HALVINGS_MAX, SettledRows, row_type
from streamlearn.trainer.validation.score import Window, WindowScore, scores_of
from streamlearn.trainer.validation.texts import Texts

__all__ = ["ProgressiveValidation"]

# What is let go of at the bound makes room for a while.
_ROOM_SHARE = 0.125
_SUMMED = ("auc", "log_loss", "calibration", "rows", "positives", "kept")
_LABELS_MAX = 32  # the bits of a mask


@dataclass
class _Lost:
    """What came for a label and is not scored."""

    late_rows: int = 0
    late_corrections: int = 0
    unmatched_corrections: int = 0
    not_finite: int = 0


class ProgressiveValidation:
    """Scores first predictions against final labels, by label, window and segment.

    `add` is called by whoever trains. `close` and `summary` may be called by another thread, one at a time: while they
    score, rows are taken.

    Args:
        app: Whose labels and segments.
        settings: Widths and bounds.
        learned_before_ms: Impressions up to this event time may have been learned by an earlier process, whose
            predictions are gone: windows that hold such are not complete. None: there are none.

    Raises:
        ConfigError: A window's width is no multiple of the one before it.
    """

    def __init__(
        self, app: App, settings: ValidationSettings | None = None, *, learned_before_ms: int | None = None
    ) -> None:
        self._settings = settings or ValidationSettings()
        self._learned_before_ms = learned_before_ms
        widths_ms = [width * 1_000 for width in _checked(self._settings.windows_s)]
        self._texts = Texts([one.name for one in app.features.segments], self._settings.segment_texts_max)
        self._kind = row_type(len(self._texts.names))
        waits = {group.name: group.window_s * 1_000 for group in app.groups}
        self._labels = [
            LabelRows(label.name, waits[label.group], widths_ms, self._settings.summary_s * 1_000, self._kind)
            for label in app.labels
        ]
        self._lost = [_Lost() for _ in self._labels]
        self._shortest_s = self._settings.windows_s[0]
        self._lock, self._closing = threading.Lock(), threading.Lock()
        self._held = 0
        self._meters = ScoreMeters()
        self._meters.held.set_function(lambda: self._held / self._settings.rows_max)

    @property
    def held_rows(self) -> int:
        """Predictions and corrections that are held; at most `rows_max`."""
        return self._held

    @property
    def held_bytes(self) -> int:
        """Bytes of memory they take."""
        with self._lock:
            return sum(label.nbytes for label in self._labels)

    @property
    def late_rows(self) -> dict[str, int]:
        """By label, rows first learned after their window was closed."""
        return self._lost_by("late_rows")

    @property
    def late_corrections(self) -> dict[str, int]:
        """By label, rows that became positive after their window was closed: they were scored as negative."""
        return self._lost_by("late_corrections")

    @property
    def unmatched_corrections(self) -> dict[str, int]:
        """By label, rows that became positive and whose prediction was not here, as after a restart."""
        return self._lost_by("unmatched_corrections")

    @property
    def not_finite(self) -> dict[str, int]:
        """By label, rows whose prediction was NaN or infinite."""
        return self._lost_by("not_finite")

    def add(self, rows: Predicted) -> None:
        """Take what a step predicted and learned. The first prediction of a row stands, whatever comes later.

        At `rows_max` rows are thinned: closed windows while they are more than half of all, else open ones; of each
        a half stays, by a hash of its identity, and stands for both.
        """
        _check(rows, len(self._labels))
        codes = self._texts.codes(rows.segments, len(rows))
        with self._lock:
            for at in range(len(self._labels)):
                self._learn(rows, at, codes)
                self._correct(rows, at)
            if self._held > self._settings.rows_max:
                self._make_room()

    def refuse(self, event_time_ms: npt.NDArray[np.int64], labels: npt.NDArray[np.uint32]) -> None:
        """Note rows that are never learned, by when they were shown: the windows that hold them are not complete.

        Args:
            event_time_ms: int64[N]. When the impressions were shown.
            labels: uint32[N]. The labels that are not learned, a bit each.
        """
        with self._lock:
            for at, label in enumerate(self._labels):
                label.lack(label.windows_of(event_time_ms[labels >> np.uint32(at) & np.uint32(1) != 0]))

    def close(self, watermark_ms: int) -> list[WindowScore]:
        """Score all windows that have closed and were not scored before, oldest first.

        A window closes when `watermark_ms` has passed its end by the label's window: by then all rows of it and all
        corrections are to have been added. A watermark that goes back closes nothing.

        Args:
            watermark_ms: Event time up to which all samples were learned.
        """
        scores: list[WindowScore] = []
        with self._closing:
            for label, lost in zip(self._labels, self._lost, strict=True):
                for window, settled in self._closed(label, lost, watermark_ms):
                    scores += scores_of(window, settled, self._segments(), is_whole=self._is_whole(window))
        scores.sort(key=lambda one: (one.end_ms, one.window_s))
        for one in scores:
            if one.window_s == self._shortest_s and not one.segment:
                self._meters.scored(one)
        return scores

    def summary(self) -> dict[str, float]:
        """The numbers of the newest closed windows, `summary_s` of them, for a version's metrics.

        `validation.LABEL.auc`, likewise `log_loss`, `calibration`, `rows`, `positives` and `kept`, as far as they can
        be said; and `auc`, that of the first label that has one.
        """
        found: dict[str, float] = {}
        with self._closing:
            for label in self._labels:
                with self._lock:
                    newest = label.newest()
                for score in scores_of(*newest, [], is_whole=self._is_whole(newest[0])) if newest else ():
                    values = {name: getattr(score, name) for name in _SUMMED}
                    found |= {
                        f"validation.{label.name}.{name}": float(one) for name, one in values.items() if one is not None
                    }
                    if score.auc is not None:
                        found.setdefault("auc", score.auc)
        return found

    def _closed(self, label: LabelRows, lost: _Lost, watermark_ms: int) -> list[tuple[Window, list[SettledRows]]]:
        if not label.is_due(watermark_ms):
            return []
        with self._lock:
            due = label.due(watermark_ms)
        for one in due.settled():
            self._lose(label, lost, "unmatched_corrections", one.unmatched)
            with self._lock:
                self._held += len(one.rows) - one.held
                label.settle(one.window, one.rows)
        with self._lock:
            closed = label.closed(watermark_ms)
            before = sum(map(len, label.settled.values()))
            label.forget()
            self._held += sum(map(len, label.settled.values())) - before
        return closed

    def _learn(self, rows: Predicted, at: int, codes: npt.NDArray[np.uint8]) -> None:
        label = self._labels[at]
        mine = np.flatnonzero(rows.learn >> np.uint32(at) & np.uint32(1))
        windows = label.windows_of(rows.event_time_ms[mine])
        good = self._takeable(label, self._lost[at], windows, rows.logits[mine, at])
        if not good.all():
            mine, windows = mine[good], windows[good]
        if not len(mine):
            return
        which = mine if len(mine) < len(rows) else slice(None)
        found = np.empty(len(mine), self._kind)
        found["identity"] = rows.identity[which]
        for name, column in (("logit", rows.logits), ("weight", rows.weights), ("rate", rows.rates)):
            found[name] = column[which, at]
        found["positive"] = rows.positive[which] >> np.uint32(at) & np.uint32(1)
        found["codes"] = codes[which]
        self._held += label.open.add(found, windows)

    def _takeable(
        self, label: LabelRows, lost: _Lost, windows: npt.NDArray[np.int64], logits: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.bool_]:
        """Whether rows are of windows that are open, and their logits numbers; others are counted."""
        is_open, is_finite = label.are_open(windows), np.isfinite(logits)
        self._lose(label, lost, "late_rows", len(windows) - int(np.count_nonzero(is_open)))
        label.lack(windows[~is_open])
        if not is_finite.all():
            bad = is_open & ~is_finite
            self._lose(label, lost, "not_finite", int(np.count_nonzero(bad)))
            label.lack(windows[bad])
        return is_open & is_finite

    def _correct(self, rows: Predicted, at: int) -> None:
        label = self._labels[at]
        mine = np.flatnonzero(rows.correct >> np.uint32(at) & np.uint32(1))
        if not len(mine):
            return
        windows = label.windows_of(rows.event_time_ms[mine])
        is_open = label.are_open(windows)
        self._lose(label, self._lost[at], "late_corrections", len(mine) - int(np.count_nonzero(is_open)))
        label.lack(windows[~is_open])
        self._held += label.open.correct(rows.identity[mine[is_open]], windows[is_open])

    def _make_room(self) -> None:
        """Halve what was halved least, until there is room."""
        most = int(self._settings.rows_max * (1 - _ROOM_SHARE))
        while self._held > most and (self._halve_closed(is_most=True) or self._halve_open() or self._halve_closed()):
            pass  # what is left is being settled now

    def _halve_closed(self, *, is_most: bool = False) -> bool:
        """Halve closed windows, if there are any; with `is_most` only while they are more than half of all."""
        settled = [one for label in self._labels for one in label.settled.values()]
        thinned = [one for one in settled if len(one) and one.halvings < HALVINGS_MAX]
        before = sum(map(len, thinned))
        if not thinned or (is_most and before * 2 <= self._held):
            return False
        least = min(one.halvings for one in thinned)
        for one in thinned:
            if one.halvings == least:
                one.halve()
        self._held += sum(map(len, thinned)) - before
        return True

    def _halve_open(self) -> bool:
        """Halve open windows, if there are any."""
        halvings = [label.open.halvings_least for label in self._labels]
        least = min((one for one in halvings if one is not None), default=None)
        if least is None:
            return False
        for label in self._labels:
            before = len(label.open)
            label.open.halve(least)
            self._held += len(label.open) - before
        return True

    def _is_whole(self, window: Window) -> bool:
        return self._learned_before_ms is None or window.begin_ms > self._learned_before_ms

    def _segments(self) -> list[tuple[str, tuple[str, ...]]]:
        return [(name, self._texts.of(at)) for at, name in enumerate(self._texts.names)]

    def _lose(self, label: LabelRows, lost: _Lost, reason: str, count: int) -> None:
        if count:
            setattr(lost, reason, getattr(lost, reason) + count)
            self._meters.unscored.labels(label.name, reason).inc(count)

    def _lost_by(self, reason: str) -> dict[str, int]:
        return {label.name: getattr(lost, reason) for label, lost in zip(self._labels, self._lost, strict=True)}


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
            assert all(len(one.codes) == count for one in column), name
        else:
            assert column.shape in ((count,), (count, labels)), (name, column.shape)
