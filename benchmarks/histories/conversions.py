"""Conversions: orders that come long after their click, learned in three ways, on a history with known truth.

Half of the orders come after the window of clicks. `naive` learns as orders those that came within it; `late` waits
for a window that holds nearly all; `esmm` waits as well, and learns how often a click is followed by an order
(`Label.follows`). Clicks rise and fall within hours, as no feature tells, and each item lives for a day.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.apps import App
from streamlearn.features import FeatureSpec, Label, LabelGroup, Slot
from streamlearn.models import DcnV2
from streamlearn.ps import Epoch, PsClient, Shelf
from streamlearn.samples import (
    FeatureColumns,
    LabelColumns,
    RequestColumns,
    SampleBatch,
    SampleHeader,
    SlotColumns,
)
from streamlearn.settings.ps import PsSettings
from streamlearn.settings.tables import TableSettings
from streamlearn.settings.trainer import TrainerSettings
from streamlearn.table import declared_tables
from streamlearn.trainer.columns import columns_of
from streamlearn.trainer.intake.message import Reached
from streamlearn.trainer.learner import Learner
from streamlearn.trainer.rows import Rows
from streamlearn.trainer.step import Piece, Step
from streamlearn.versions import open_store

__all__ = ["conversion_figures"]

Floats = npt.NDArray[np.float64]

_SLICES = 4
"""Slices of an hour: rows are learned and predicted slice by slice."""
_SLICE_MS, _USERS, _ITEMS, _CATEGORIES, _DIM = 3_600_000 // _SLICES, 4_000, 300, 20, 4
# Half of the orders come within the window of clicks, and all but 0.4 % within the longer one.
_CLICK_HOURS, _ORDER_HOURS = 1, 8
_ITEM_HOURS = 24
_STEP_ROWS, _SEED = 256, 11
_CLICK, _ORDER = np.uint32(1), np.uint32(2)
_FEATURES = FeatureSpec(
    slots=(
        Slot("user_id", "user", dim=8),
        Slot("item", "item", dim=8),
        Slot("category", "item", dim=8),
    ),
    item_id="item",
)
_GROUPS = (
    LabelGroup("fast", _CLICK_HOURS * 3_600, _CLICK_HOURS * 3_600),
    LabelGroup("slow", _ORDER_HOURS * 3_600, _ORDER_HOURS * 3_600),
)
_LABELS = (Label("click", "click", "fast"), Label("order", "order", "slow"))
_FOLLOWING = (_LABELS[0], Label("order", "order", "slow", follows="click"))


@dataclass(frozen=True, eq=False)
class _Slice:
    """The impressions of a slice.

    Attributes:
        batch: They, with the labels of whoever waits long enough.
        early: uint8[n]: whether an order came within the window of clicks.
        chance: The true probability of an order, at whatever time.
        known: What it was in the newest slice whose clicks are learned before this one is predicted.
    """

    batch: SampleBatch
    early: npt.NDArray[np.uint8]
    chance: Floats
    known: Floats


class _World:
    """Users, and items that live for a day; categories differ in how often a click becomes an order."""

    def __init__(self) -> None:
        self._rng = rng = np.random.default_rng(_SEED)
        self._tastes = rng.normal(size=(_USERS, _DIM)) * 0.7
        self._of_category = rng.normal(-1.0, 0.8, _CATEGORIES)
        self._born = rng.integers(-_ITEM_HOURS, 0, _ITEMS).astype(np.float64)
        self._ids = np.arange(_ITEMS)
        self._kinds = rng.integers(0, _CATEGORIES, _ITEMS)
        self._places = rng.normal(size=(_ITEMS, _DIM)) * 0.7
        self._appeal, self._value = rng.normal(0, 0.7, _ITEMS), rng.normal(0, 0.5, _ITEMS)

    def slice(self, number: int, rows: int) -> _Slice:
        """Return the impressions of the next slice."""
        rng, hour = self._rng, number / _SLICES
        for item in np.flatnonzero(hour - self._born >= _ITEM_HOURS).tolist():
            self._ids[item] = self._ids.max() + 1
            self._born[item], self._kinds[item] = hour, rng.integers(0, _CATEGORIES)
            self._places[item] = rng.normal(size=_DIM) * 0.7
            self._appeal[item], self._value[item] = rng.normal(0, 0.7), rng.normal(0, 0.5)
        user, items = rng.integers(0, _USERS, rows), rng.integers(0, _ITEMS, rows)
        mood, known_mood = (0.8 * np.sin(2 * np.pi * at / 19) for at in (hour, hour - _CLICK_HOURS - 1 / _SLICES))
        liking = (self._tastes[user] * self._places[items]).sum(axis=1)
        click_chance, known_chance = (_sigmoid(-2 + one + liking + self._appeal[items]) for one in (mood, known_mood))
        order_chance = _sigmoid(self._of_category[self._kinds[items]] + self._value[items])
        click = rng.random(rows) < click_chance
        order = click & (rng.random(rows) < order_chance)
        early = order & (rng.exponential(_CLICK_HOURS / np.log(2), rows) <= _CLICK_HOURS)
        slots = {"item": self._ids[items], "category": self._kinds[items]}
        batch = _batch(number, {"user_id": user}, slots, _labels(click, order))
        return _Slice(batch, early.astype(np.uint8), click_chance * order_chance, known_chance * order_chance)


class _Online:
    """A model that learns slices of rows as they become known."""

    def __init__(self, labels: tuple[Label, ...]) -> None:
        app = App("conversions", _FEATURES, _GROUPS, labels)
        self._learner = Learner(app, DcnV2(hidden=(64, 32), rank=16), TrainerSettings(step_rows=_STEP_ROWS))
        tables = declared_tables(app.tables, TableSettings())
        client = PsClient.local(tables, Shelf(open_store("file:///nowhere"), app.name), PsSettings())
        client.restore(Epoch(1), None)
        self._rows = Rows(app, client, _STEP_ROWS)

    def learn(self, batch: SampleBatch, label: np.uint32) -> None:
        """Learn labels of all rows, given as bits."""
        for step in _steps(batch, label):
            columns = columns_of(step)
            scale = self._learner.rate_scale
            done = self._learner.learn(self._rows.pack(columns))
            self._rows.push(columns, done.gradients, int(batch.settle_time_ms[0]), scale)

    def predicted(self, batch: SampleBatch) -> Floats:
        """Return the probabilities of orders."""
        packed = (self._rows.pack(columns_of(step)) for step in _steps(batch, _ORDER))
        logits = np.concatenate([self._learner.score(one)[:, 1] for one in packed])
        return _sigmoid(logits.astype(np.float64))


def conversion_figures(hours: int, rows: int) -> dict[str, float]:
    """Return the figures of some hours with that many rows each, over all slices but the first third.

    The calibration error is how far the orders that a model predicts for a slice are from those to be expected, in
    parts of these: the mean of all slices.
    """
    world = _World()
    models = {"naive": _Online(_LABELS), "late": _Online(_LABELS), "esmm": _Online(_FOLLOWING)}
    seen: list[_Slice] = []
    errors: dict[str, list[float]] = {name: [] for name in (*models, "known")}
    losses: dict[str, list[float]] = {name: [] for name in (*models, "best")}
    for number in range(hours * _SLICES):
        now = world.slice(number, rows // _SLICES)
        if number >= hours * _SLICES // 3:
            predictions = {name: model.predicted(now.batch) for name, model in models.items()}
            for name, chances in (*predictions.items(), ("known", now.known)):
                errors[name].append(abs(chances.sum() / now.chance.sum() - 1))
            for name, chances in (*predictions.items(), ("best", now.chance)):
                losses[name].append(_loss(now.chance, chances))
        # The slice is over: all is known of slices that ended a window ago.
        seen.append(now)
        clicked, ordered = (
            seen[-1 - wait] if len(seen) > wait else None for wait in (_CLICK_HOURS * _SLICES, _ORDER_HOURS * _SLICES)
        )
        _learn(models, clicked, ordered)
    figures = {f"{name}.order_calibration_error": float(np.mean(found)) for name, found in errors.items()}
    best = np.mean(losses["best"])
    figures |= {f"{name}.order_log_loss_over_bayes": float(np.mean(losses[name]) / best - 1) for name in models}
    of_esmm = figures["esmm.order_calibration_error"]
    ratios = {f"esmm_calibration_to_{name}": of_esmm / figures[f"{name}.order_calibration_error"] for name in errors}
    del ratios["esmm_calibration_to_esmm"], ratios["esmm_calibration_to_known"]
    known, naive = (figures[f"{name}.order_calibration_error"] for name in ("known", "naive"))
    return figures | ratios | {"known_calibration_to_naive": known / naive}


def _learn(models: Mapping[str, _Online], clicked: _Slice | None, ordered: _Slice | None) -> None:
    if clicked is not None:
        known = _labels(clicked.batch.labels[0].value, clicked.early)
        models["naive"].learn(replace(clicked.batch, labels=known), _CLICK | _ORDER)
    for name in ("late", "esmm"):
        if clicked is not None:
            models[name].learn(clicked.batch, _CLICK)
        if ordered is not None:
            models[name].learn(ordered.batch, _ORDER)


def _steps(batch: SampleBatch, label: np.uint32) -> list[Step]:
    steps = []
    for begin in range(0, len(batch), _STEP_ROWS):
        rows = np.arange(begin, min(begin + _STEP_ROWS, len(batch)))
        learn = np.full(len(rows), label, np.uint32)
        clicked = batch.labels[0].value[rows].astype(np.uint32)
        piece = Piece(batch, rows, learn, np.zeros_like(learn), clicked | batch.labels[1].value[rows] << np.uint32(1))
        steps.append(Step(1, (piece,), Reached((), ()), len(rows)))
    return steps


def _batch(
    number: int, user: Mapping[str, Any], item: Mapping[str, Any], labels: tuple[LabelColumns, ...]
) -> SampleBatch:
    """Return rows of a request each."""
    rows = len(labels[0].value)
    shown_ms = np.full(rows, (number + 1) * _SLICE_MS, np.int64)
    return SampleBatch(
        header=SampleHeader("f", "w", "truth", 0, 1, 1, int(shown_ms[0])),
        requests=RequestColumns(
            partition=np.zeros(rows, np.int32),
            offset=number * rows + np.arange(rows, dtype=np.int64),
            event_time_ms=shown_ms,
            shown_wall_ms=shown_ms,
            served_version=np.full(rows, -1, np.int64),
        ),
        user=_columns(user),
        request_index=np.arange(rows, dtype=np.int32),
        item_index=np.zeros(rows, np.int32),
        settle_time_ms=shown_ms,
        item=_columns(item),
        labels=labels,
        segments=(),
    )


def _columns(values: Mapping[str, Any]) -> FeatureColumns:
    """Return slots of one value a row, whose keys are their own."""
    names = [slot.name for slot in _FEATURES.slots]
    slots = {name: SlotColumns((names.index(name) << 40) + ids.astype(np.uint64)) for name, ids in values.items()}
    return FeatureColumns(slots, {})


def _labels(click: npt.NDArray[Any], order: npt.NDArray[Any]) -> tuple[LabelColumns, ...]:
    ones, known = np.ones(len(click), np.float32), np.ones(len(click), np.uint8)
    unknown = np.full(len(click), np.nan, np.float32)
    return tuple(
        LabelColumns(label.name, value.astype(np.uint8), known, ones, ones, unknown)
        for label, value in zip(_LABELS, (click, order), strict=True)
    )


def _sigmoid(logits: Floats) -> Floats:
    chances: Floats = 1 / (1 + np.exp(-logits))
    return chances


def _loss(truth: Floats, chances: Floats) -> float:
    """Return the expected log loss of predictions."""
    return float(-(truth * np.log(chances) + (1 - truth) * np.log1p(-chances)).mean())
