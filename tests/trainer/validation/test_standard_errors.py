"""Standard errors of figures, against how much the figures differ between worlds with other users."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streamlearn.samples import SegmentColumns
from streamlearn.settings import ValidationSettings
from streamlearn.trainer.validation import Predicted, ProgressiveValidation, WindowScore
from tests.trainer.validation.predictions import app_of
from tests.trainer.validation.test_numbers import app_of as app_of_numbers

WORLDS, USERS, ROWS = 300, 80, 12
"""How often a world is drawn, its users, and the rows of each."""


def score_of(app: Any, label: int, seed: int, *, is_known: bool = True, users: int = USERS) -> WindowScore:
    """The score of a window whose users differ in what they do and in how wrong the model is about them."""
    rng = np.random.default_rng(seed)
    count = users * ROWS
    of_row = np.repeat(rng.integers(0, 1 << 62, users, dtype=np.uint64), ROWS)
    taste, error = (np.repeat(rng.normal(0, 1.2, users), ROWS) for _ in range(2))
    logits = taste + error + rng.normal(0, 0.5, count)
    positive = rng.random(count) < 1 / (1 + np.exp(-taste + 0.5))
    both = np.repeat(logits[:, None], 2, axis=1).astype(np.float32)
    validation = ProgressiveValidation(app, ValidationSettings(windows_s=[60]))
    validation.add(
        Predicted(
            identity=np.arange(count, dtype=np.uint64),
            event_time_ms=np.zeros(count, np.int64),
            logits=both,
            learn=np.full(count, 1 << label, np.uint32),
            correct=np.zeros(count, np.uint32),
            positive=positive.astype(np.uint32) << np.uint32(label),
            rates=np.full((count, 2), 0.5, np.float32),
            weights=rng.uniform(0.5, 1.5, (count, 2)).astype(np.float32),
            numbers=np.repeat((taste + rng.normal(0, 0.5, count))[:, None], 2, axis=1).astype(np.float32),
            users=of_row if is_known else None,
            segments=tuple(
                SegmentColumns(one.name, ("home",), np.zeros(count, np.int32)) for one in app.features.segments
            ),
        )
    )
    (score,) = (one for one in validation.close(1 << 40) if not one.segment)
    return score


@pytest.mark.parametrize(("app", "label", "figure"), [(app_of(), 0, "auc"), (app_of_numbers(), 1, "mae")])
def test_they_are_how_much_figures_differ_between_worlds(app: Any, label: int, figure: str) -> None:
    scores = [score_of(app, label, seed) for seed in range(WORLDS)]
    differ = float(np.std([getattr(one, figure) for one in scores]))
    errors = np.array([one.standard_error for one in scores], np.float64)
    assert np.sqrt((errors**2).mean()) == pytest.approx(differ, rel=0.15)
    # As if rows were independent, they would seem to differ by far less.
    apart = np.array([score_of(app, label, seed, is_known=False).standard_error for seed in range(20)], np.float64)
    assert apart.mean() < 0.7 * differ


def test_one_user_says_nothing_of_others() -> None:
    assert score_of(app_of(), 0, 1, users=1).standard_error is None
    assert score_of(app_of(), 0, 2, users=2).standard_error is not None
