"""Categories with a known truth, learned by ready-made models with default settings and by Keras as most write it.

The logit of a row is the sum of an effect of each category, and of products of two columns' hidden vectors. Our models
learn the rows in their order, once or six times over; Keras shuffles them for each pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.histories.plain_samples import plain_samples
from benchmarks.learning_loss import Learning
from streamlearn.apps import App, AppFolder
from streamlearn.features import FeatureSpec, Label, LabelGroup, Slot
from streamlearn.publisher.logit_scores import auc_of
from streamlearn.samples import LabelColumns, SampleBatch
from streamlearn.settings import Settings

__all__ = ["categorical_figures"]

_SIZES = (2_000, 1_000, 500, 200, 100, 50, 20, 10)
_USER_COLUMNS, _PAIRS, _VECTOR = 4, ((0, 4), (1, 5), (2, 6), (3, 7)), 3
_OWN, _PAIR, _CONSTANT, _SEED = 0.3, 0.5, -1.5, 9
_PASSES, _MODELS, _BATCH_ROWS = (1, 6), ("dcn_v2", "deepfm"), 8_192
_TEST_SHARE = 0.2


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows of categories, int64[n, columns], with labels and their true logits."""

    categories: npt.NDArray[np.int64]
    positive: npt.NDArray[np.bool_]
    truth: npt.NDArray[np.float64]

    def auc(self, logits: npt.NDArray[np.floating]) -> float:
        return auc_of(logits.astype(np.float64), self.positive, np.ones(len(logits)))


def categorical_figures(rows: int, note: Callable[[str], None]) -> dict[str, float]:
    """Return the AUC of rows that were not learned, by model and passes, for ours and for Keras."""
    from benchmarks.peers.keras_categorical import keras_logits

    learned, asked = _world(rows)
    figures = {"categorical.auc_of_truth": asked.auc(asked.truth)}
    worst = 1.0
    for model in _MODELS:
        given = (learned.categories, learned.positive.astype(np.float32))
        peers = keras_logits(model, _SIZES, given, _PASSES, asked.categories)
        for passes, logits in _logits(model, learned, asked):
            ours, keras = asked.auc(logits), asked.auc(peers[passes])
            name = f"categorical.{model}_{passes}_passes"
            figures |= {f"{name}_auc": ours, f"{name}_keras_auc": keras}
            worst = min(worst, ours - keras)
            note(f"{name}: {ours:.4f}, Keras {keras:.4f}")
    return figures | {"categorical_auc_to_keras": worst}


def _world(rows: int) -> tuple[_Rows, _Rows]:
    """Return rows to learn, and as a share of them rows to predict."""
    rng, count = np.random.default_rng(_SEED), int(rows * (1 + _TEST_SHARE))
    # Some categories are far more frequent than others.
    categories = np.stack([(size * rng.random(count) ** 2).astype(np.int64) for size in _SIZES], axis=1)
    truth = np.full(count, _CONSTANT)
    hidden = []
    for column, size in enumerate(_SIZES):
        truth += _OWN * rng.normal(size=size)[categories[:, column]]
        hidden.append(rng.normal(size=(size, _VECTOR))[categories[:, column]])
    for one, other in _PAIRS:
        truth += _PAIR * (hidden[one] * hidden[other]).sum(axis=1) / np.sqrt(_VECTOR)
    positive = rng.random(count) < 1 / (1 + np.exp(-truth))
    parts = (slice(0, rows), slice(rows, None))
    first, last = (_Rows(categories[part], positive[part], truth[part]) for part in parts)
    return first, last


def _logits(model: str, learned: _Rows, asked: _Rows) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
    """Yield the predictions of our model after one pass and after six."""
    slots = tuple(Slot(f"column_{at}", "user" if at < _USER_COLUMNS else "item") for at in range(len(_SIZES)))
    app = App(
        "categories",
        FeatureSpec(slots=slots, item_id=slots[-1].name),
        (LabelGroup("fast", 60, 60),),
        (Label("click", "click", "fast"),),
        model=model,
    )
    learning = Learning(AppFolder(app, Path("/nowhere"), Settings()))
    for passes in range(1, max(_PASSES) + 1):
        for batch in _batches(app, learned):
            learning.learn(batch)
        if passes in _PASSES:
            yield passes, np.concatenate([learning.predict(batch)[:, 0] for batch in _batches(app, asked)])


def _batches(app: App, rows: _Rows) -> Iterator[SampleBatch]:
    """Yield rows as samples of a request each."""
    for begin in range(0, len(rows.positive), _BATCH_ROWS):
        part = slice(begin, begin + _BATCH_ROWS)
        categories, value = rows.categories[part], rows.positive[part].astype(np.uint8)
        ones, unscored = np.ones(len(value), np.float32), np.full(len(value), np.nan, np.float32)
        label = LabelColumns("click", value, np.ones(len(value), np.uint8), ones, ones, unscored)
        values = {slot.name: categories[:, at] for at, slot in enumerate(app.features.slots)}
        yield plain_samples(app, values, (label,), begin)
