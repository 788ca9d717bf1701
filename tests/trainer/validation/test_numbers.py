"""Labels that are numbers: windows have their errors by final numbers, whichever process learned which row."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlearn.apps import App
from streamlearn.features import FeatureSpec, Label, LabelGroup, Number, Slot
from streamlearn.settings import ValidationSettings
from streamlearn.trainer.validation import Predicted, ProgressiveValidation, WindowScore
from streamlearn.trainer.validation.interval_scores import interval_scores
from streamlearn.trainer.validation.rows import row_type
from streamlearn.versions import open_store
from tests.campaign import examples
from tests.trainer.validation.predictions import BEGIN_MS
from tests.trainer.validation.test_waiting import Life

SETTINGS = ValidationSettings(windows_s=[10, 30], summary_s=30)
STORES = itertools.count()
CLICK, MINUTES = 1, 2


def app_of() -> App:
    features = FeatureSpec(slots=(Slot("user_id", "user"), Slot("video_id", "item")), item_id="video_id")
    groups = (LabelGroup("fast", 5, 20),)
    labels = (Label("click", "click", "fast"), Label("minutes", "watch", "fast", number=Number(missing=0)))
    return App("shown", features, groups, labels)


@dataclass
class Row:
    """A row that is learned or corrected; its window is that of its identity."""

    identity: int
    is_correction: bool
    predicted: float
    number: float


def step(rows: list[Row]) -> Predicted:
    count, corrects = len(rows), np.array([row.is_correction for row in rows], np.uint32)
    pairs = np.array([[0.0, row.predicted] for row in rows], np.float32).reshape(count, 2)
    return Predicted(
        identity=np.array([row.identity for row in rows], np.uint64),
        event_time_ms=BEGIN_MS + np.array([row.identity for row in rows], np.int64) * 1_000,
        logits=pairs,
        learn=(1 - corrects) * np.uint32(MINUTES),
        correct=corrects * np.uint32(MINUTES),
        positive=np.zeros(count, np.uint32),
        rates=np.ones((count, 2), np.float32),
        weights=np.ones((count, 2), np.float32),
        numbers=np.array([[0.0, row.number] for row in rows], np.float32).reshape(count, 2),
    )


@dataclass
class Oracle:
    """The first prediction and the last number of each row."""

    first: dict[int, float] = field(default_factory=dict)
    final: dict[int, float] = field(default_factory=dict)

    def add(self, rows: list[Row]) -> None:
        for row in rows:
            if not row.is_correction and row.identity not in self.first:
                self.first[row.identity], self.final[row.identity] = row.predicted, row.number
        for row in rows:
            if row.is_correction and row.identity in self.first:
                self.final[row.identity] = row.number

    def scores(self) -> dict[int, tuple[float, float, float]]:
        """By window of 10 s: the mean absolute error, the root mean squared error and the sum of numbers."""
        found = {}
        for window in {identity // 10 for identity in self.first}:
            mine = [one for one in self.first if one // 10 == window]
            errors = [self.first[one] - self.final[one] for one in mine]
            mae = sum(map(abs, errors)) / len(mine)
            rmse = math.sqrt(sum(error * error for error in errors) / len(mine))
            found[window] = (mae, rmse, sum(self.final[one] for one in mine))
        return found


ROWS = st.lists(
    st.builds(
        Row,
        identity=st.integers(0, 39),
        is_correction=st.booleans(),
        predicted=st.sampled_from([-1.0, 0.5, 2.0, 7.0]),
        number=st.sampled_from([0.0, 0.5, 3.0, 10.0]),
    ),
    max_size=12,
)


@settings(max_examples=examples(25))
@given(st.lists(st.tuples(ROWS, st.sampled_from(["", "publish", "lose"])), min_size=1, max_size=5), st.booleans())
def test_windows_have_the_errors_of_first_predictions_by_the_last_numbers(
    events: list[tuple[list[Row], str]], is_killed: bool
) -> None:
    life = Life(SETTINGS, app_of(), open_store(f"memory://numbers-{next(STORES)}"))
    oracle = Oracle()
    for rows, then in events:
        # A correction of a row that was never learned has no prediction, and is counted as such.
        known = [row for row in rows if not row.is_correction or row.identity in oracle.first]
        life.validation.add(step(known))
        oracle.add(known)
        if then:
            life.publish(is_lost=then == "lose")
    if is_killed:
        life.publish()
        life.kill()
    scores = [one for one in life.close(BEGIN_MS + 10**6) if one.window_s == 10 and one.label == "minutes"]
    found = {(one.begin_ms - BEGIN_MS) // 10_000: (one.mae, one.rmse, one.positives) for one in scores}
    assert found.keys() == oracle.scores().keys()
    for window, expected in oracle.scores().items():
        assert found[window] == pytest.approx(expected, rel=1e-6)
    assert all(one.auc is None and one.log_loss is None for one in scores)


def test_the_summary_and_the_metrics_of_a_number_are_its_errors() -> None:
    validation = ProgressiveValidation(app_of(), SETTINGS)
    validation.add(step([Row(1, False, 2.0, 4.0), Row(2, False, 7.0, 0.0), Row(2, True, 0.0, 8.0)]))
    scores: list[WindowScore] = validation.close(BEGIN_MS + 10**6)
    assert scores[0].calibration == pytest.approx(9 / 12)
    summary = validation.summary()
    assert summary["validation.minutes.mae"] == summary["mae"] == pytest.approx(1.5)
    assert summary["validation.minutes.rmse"] == pytest.approx(math.sqrt(2.5))
    assert "auc" not in summary
    assert "validation.minutes.positives" not in summary


def test_intervals_are_compared_by_how_much_lower_the_error_is() -> None:
    rng = np.random.default_rng(1)
    rows = np.zeros(4_000, row_type(0, is_number=True))
    rows["identity"], rows["number"], rows["weight"], rows["rate"] = np.arange(4_000), rng.normal(size=4_000), 1, 1
    near, far = (rows["number"] + scale * rng.normal(size=4_000) for scale in (0.5, 1.0))
    users = rng.integers(0, 300, 4_000).astype(np.uint64)
    by_interval = {"1m": near.astype(np.float32), "never": far.astype(np.float32)}
    fresh, never = interval_scores("minutes", rows, users, by_interval)
    assert fresh.mae is not None
    assert never.mae is not None
    assert fresh.gain == pytest.approx(never.mae - fresh.mae)
    assert fresh.gain is not None
    assert fresh.gain_low is not None
    assert 0 < fresh.gain_low < fresh.gain
    assert never.gain == 0.0
