"""Predictions for tests: steps of rows, and what is to be said of them, written out as loops."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from streamlearn.apps import App
from streamlearn.features import FeatureSpec, Label, LabelGroup, Segment, Slot
from streamlearn.samples import SegmentColumns
from streamlearn.trainer.validation import Predicted, WindowScore

__all__ = ["BEGIN_MS", "Oracle", "Row", "app_of", "bytes_of", "close_to", "step"]

BEGIN_MS = 1_700_000_040_000  # a multiple of every width in use here
TEXTS = ("home", "search", "mail")


def app_of(fast_s: int = 20, slow_s: int = 50) -> App:
    """Two labels with windows of their own, one segment."""
    features = FeatureSpec(
        slots=(Slot("user_id", "user"), Slot("video_id", "item")), item_id="video_id", segments=(Segment("page"),)
    )
    groups = (LabelGroup("fast", wait_s=1, window_s=fast_s), LabelGroup("slow", wait_s=1, window_s=slow_s))
    labels = (Label("click", "click", "fast", sample_rate=0.5), Label("bought", "purchase", "slow"))
    return App("shown", features, groups, labels)


def bytes_of(held: object) -> int:
    """The bytes of all arrays that an object of validation holds; a view counts as the whole array that it is of."""
    found: dict[int, npt.NDArray[Any]] = {}
    waiting: list[Any] = [held]
    while waiting:
        part = waiting.pop()
        if isinstance(part, np.ndarray):
            while isinstance(part.base, np.ndarray):
                part = part.base
            found[id(part)] = part
        elif isinstance(part, list | tuple | dict):
            waiting += part.values() if isinstance(part, dict) else part
        elif type(part).__module__.startswith("streamlearn.trainer.validation"):
            waiting += [
                getattr(part, name) for name in (*vars(type(part)).get("__slots__", ()), *getattr(part, "__dict__", ()))
            ]
    return sum(array.nbytes for array in found.values())


@dataclass(frozen=True)
class Row:
    """One row of a step; what an identity is follows from its number."""

    identity: int
    time_ms: int
    logits: tuple[float, float] = (0.0, 0.0)
    learn: int = 0
    correct: int = 0
    positive: int = 0
    rate: float = 1.0
    weight: float = 1.0

    @property
    def text(self) -> str:
        return TEXTS[self.identity % len(TEXTS)]


def step(rows: Sequence[Row]) -> Predicted:
    """Rows as columns."""

    def column(name: str, kind: type) -> npt.NDArray[Any]:
        return np.array([getattr(row, name) for row in rows], kind)

    pairs = {name: np.repeat(column(name, np.float32)[:, None], 2, axis=1) for name in ("rate", "weight")}
    return Predicted(
        identity=column("identity", np.uint64),
        event_time_ms=column("time_ms", np.int64),
        logits=np.array([row.logits for row in rows], np.float32).reshape(len(rows), 2),
        learn=column("learn", np.uint32),
        correct=column("correct", np.uint32),
        positive=column("positive", np.uint32),
        rates=pairs["rate"],
        weights=pairs["weight"],
        segments=(SegmentColumns("page", TEXTS, np.array([row.identity % len(TEXTS) for row in rows], np.int32)),),
    )


@dataclass
class _First:
    row: Row
    logit: float
    is_positive: bool


@dataclass
class Oracle:
    """What validation is to say, by dictionaries and loops over pairs."""

    windows_s: dict[str, int]
    widths_s: Sequence[int]
    watermark_ms: int | None = None
    firsts: dict[tuple[int, int], _First] = field(default_factory=dict)
    corrected: set[tuple[int, int]] = field(default_factory=set)
    told: set[tuple[str, int, int]] = field(default_factory=set)
    late_rows: dict[str, int] = field(default_factory=dict)
    late_corrections: dict[str, int] = field(default_factory=dict)

    def add(self, rows: Iterable[Row]) -> None:
        rows = list(rows)
        for at, label in enumerate(self.windows_s):
            for row in rows:
                if not row.learn >> at & 1:
                    continue
                if self._is_closed(label, row.time_ms):
                    self.late_rows[label] = self.late_rows.get(label, 0) + 1
                    continue
                positive = bool(row.positive >> at & 1)
                first = self.firsts.setdefault((at, row.identity), _First(row, row.logits[at], positive))
                first.is_positive |= positive
            for row in rows:
                if row.correct >> at & 1:
                    if self._is_closed(label, row.time_ms):
                        self.late_corrections[label] = self.late_corrections.get(label, 0) + 1
                    else:
                        self.corrected.add((at, row.identity))

    def close(self, watermark_ms: int) -> dict[tuple[str, int, int, str], WindowScore]:
        self.watermark_ms = max(watermark_ms, self.watermark_ms or 0)
        found = {}
        for at, label in enumerate(self.windows_s):
            for width_s in self.widths_s:
                width = width_s * 1000
                begins = {
                    first.row.time_ms // width * width for (which, _), first in self.firsts.items() if which == at
                }
                for begin in sorted(begins):
                    if self._due(label, width) < begin + width or (label, width, begin) in self.told:
                        continue
                    self.told.add((label, width, begin))
                    for text in ("", *TEXTS):
                        mine = self._rows(at, begin, begin + width, text)
                        if mine:
                            found[label, width_s, begin, text] = _score(label, (begin, begin + width), text, mine)
        return found

    def _rows(self, at: int, begin: int, end: int, text: str) -> list[tuple[float, bool, float, int]]:
        found = []
        for (which, identity), first in self.firsts.items():
            if which != at or not begin <= first.row.time_ms < end or text not in ("", first.row.text):
                continue
            positive = first.is_positive or (at, identity) in self.corrected
            weight = first.row.weight if positive else first.row.weight / first.row.rate
            found.append((first.logit, positive, weight, identity))
        return found

    def _due(self, label: str, width: int) -> int:
        assert self.watermark_ms is not None
        return (self.watermark_ms - self.windows_s[label] * 1000) // width * width

    def _is_closed(self, label: str, time_ms: int) -> bool:
        return self.watermark_ms is not None and time_ms < self._due(label, self.widths_s[0] * 1000)


def _score(label: str, span: tuple[int, int], text: str, rows: list[tuple[float, bool, float, int]]) -> WindowScore:
    positives = [(logit, weight) for logit, positive, weight, _ in rows if positive]
    negatives = [(logit, weight) for logit, positive, weight, _ in rows if not positive]
    won = sum(a * b * ((x > y) + (x == y) / 2) for x, a in positives for y, b in negatives)
    pairs = sum(a * b for _, a in positives for _, b in negatives)
    chances = [1 / (1 + math.exp(-logit)) for logit, _, _, _ in rows]
    losses = [
        -weight * math.log(chance if positive else 1 - chance)
        for chance, (_, positive, weight, _) in zip(chances, rows, strict=True)
    ]
    total, positive = sum(weight for _, _, weight, _ in rows), sum(weight for _, weight in positives)
    expected = sum(chance * weight for chance, (_, _, weight, _) in zip(chances, rows, strict=True))
    share = positive / total
    return WindowScore(
        label=label,
        begin_ms=span[0],
        end_ms=span[1],
        segment="page" if text else "",
        text=text,
        rows=len(rows),
        positives=positive,
        weight=total,
        auc=won / pairs if pairs else None,
        log_loss=sum(losses) / total,
        calibration=expected / positive if positive else None,
        base_entropy=-sum(one * math.log(one) for one in (share, 1 - share) if one),
        kept=1.0,
        is_complete=True,
        standard_error=_error(rows, won / pairs) if pairs else None,
    )


def _error(rows: list[tuple[float, bool, float, int]], auc: float) -> float | None:
    """The root of the sum of what each user adds to the AUC's deviation, squared; here each row has a user."""
    of_users: dict[int, float] = {}
    weights = {kind: sum(weight for _, positive, weight, _ in rows if positive == kind) for kind in (True, False)}
    for logit, positive, weight, user in rows:
        won = sum(
            other_weight * ((logit > other if positive else other > logit) + (logit == other) / 2)
            for other, is_positive, other_weight, _ in rows
            if is_positive != positive
        )
        of_users[user] = weight / weights[positive] * (won / weights[not positive] - auc)
    several = len(of_users)
    return math.sqrt(sum(one * one for one in of_users.values()) * several / (several - 1)) if several > 1 else None


def close_to(found: WindowScore, expected: WindowScore) -> bool:
    """Whether two scores are the same but for rounding."""
    for name, value in msgspec.structs.asdict(expected).items():
        other = getattr(found, name)
        is_close = isinstance(value, float) and isinstance(other, float)
        if not (math.isclose(value, other, rel_tol=1e-9, abs_tol=1e-9) if is_close else value == other):
            return False
    return True
