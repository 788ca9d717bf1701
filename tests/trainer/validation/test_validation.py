"""Progressive validation: first predictions against final labels, held against loops over all rows."""

from __future__ import annotations

import gc
import math
import time
from collections import Counter
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import REGISTRY

from streamlearn.errors import ConfigError
from streamlearn.settings import ValidationSettings
from streamlearn.trainer.validation import ProgressiveValidation, WindowScore
from streamlearn.trainer.validation.label_rows import LabelRows
from streamlearn.trainer.validation.rows import SettledRows, row_type
from tests.campaign import examples
from tests.trainer.validation.predictions import BEGIN_MS, Oracle, Row, app_of, close_to, step

WIDTHS_S = [10, 30]
SETTINGS = ValidationSettings(windows_s=WIDTHS_S, summary_s=30)
CLICK, BOUGHT, BOTH = 1, 2, 3


def validation(found: ValidationSettings = SETTINGS, learned_before_ms: int | None = None) -> ProgressiveValidation:
    return ProgressiveValidation(app_of(), found, learned_before_ms=learned_before_ms)


def whole(scores: list[WindowScore], width_s: int = 10) -> list[WindowScore]:
    return [one for one in scores if not one.segment and one.window_s == width_s]


_LOGIT = st.sampled_from([-2.0, -0.5, 0.0, 0.5, 2.0])
_ROW = st.builds(
    Row,
    identity=st.integers(0, 40),
    time_ms=st.just(0),
    logits=st.tuples(_LOGIT, _LOGIT),
    learn=st.integers(0, 3),
    correct=st.integers(0, 3),
    positive=st.integers(0, 3),
    rate=st.sampled_from([0.25, 1.0]),
    weight=st.sampled_from([0.5, 1.0, 2.0]),
)
_STEP = st.lists(_ROW, min_size=1, max_size=12)
_CLOSE = st.integers(0, 130)


def at_its_time(row: Row) -> Row:
    """An identity is shown once: its time and its page follow from its number."""
    return replace(row, time_ms=BEGIN_MS + row.identity * 1_700)


@settings(max_examples=examples(40))
@given(st.lists(st.one_of(_STEP, _CLOSE), max_size=12))
def test_scores_are_those_of_first_predictions_in_any_order_of_steps_and_watermarks(
    steps: list[list[Row] | int],
) -> None:
    found = validation()
    oracle = Oracle({"click": 20, "bought": 50}, WIDTHS_S)
    for one in [*steps, 200]:
        if isinstance(one, list):
            rows = [at_its_time(row) for row in one]
            found.add(step(rows))
            oracle.add(rows)
            continue
        scores = found.close(BEGIN_MS + one * 1000)
        expected = oracle.close(BEGIN_MS + one * 1000)
        got = {(score.label, score.window_s, score.begin_ms, score.text): score for score in scores}
        assert len(got) == len(scores)
        assert got.keys() == expected.keys()
        # A correction whose prediction never came is known to be missing, and so is what came after its window.
        whole = {key: msgspec.structs.replace(score, is_complete=True) for key, score in got.items()}
        assert all(close_to(whole[key], expected[key]) for key in expected)
        assert [one.end_ms for one in scores] == sorted(one.end_ms for one in scores)
        if not any(found.unscored.values()):
            assert all(score.is_complete for score in scores)
    for label in ("click", "bought"):
        assert found.unscored[label]["late_rows"] == oracle.late_rows.get(label, 0)
        assert found.unscored[label]["late_corrections"] == oracle.late_corrections.get(label, 0)


def test_auc_log_loss_and_calibration_have_their_closed_forms() -> None:
    found = validation()
    rows = [
        Row(1, BEGIN_MS, (math.log(3), 0), learn=CLICK, positive=CLICK),
        Row(2, BEGIN_MS, (0.0, 0), learn=CLICK, rate=0.5),
        Row(3, BEGIN_MS, (math.log(3), 0), learn=CLICK, weight=2.0),
    ]
    found.add(step(rows))
    (score,) = whole(found.close(BEGIN_MS + 30_000))
    # Chances of 3/4, 1/2 and 3/4; both negatives weigh 2.
    assert score.auc == pytest.approx((2 + 2 / 2) / 4)
    assert score.log_loss == pytest.approx((-math.log(3 / 4) - 2 * math.log(1 / 2) - 2 * math.log(1 / 4)) / 5)
    assert score.calibration == pytest.approx(3 / 4 + 1 + 3 / 2)
    assert score.base_entropy == pytest.approx(-0.2 * math.log(0.2) - 0.8 * math.log(0.8))
    assert score.log_loss is not None
    assert score.base_entropy is not None
    assert score.normalised_entropy == pytest.approx(score.log_loss / score.base_entropy)
    assert (score.rows, score.positives, score.weight) == (3, 1.0, 5.0)


def test_a_window_without_a_positive_has_a_log_loss_and_no_auc_and_no_calibration() -> None:
    found = validation()
    found.add(step([Row(1, BEGIN_MS, learn=CLICK), Row(2, BEGIN_MS, learn=CLICK)]))
    (score,) = whole(found.close(BEGIN_MS + 30_000))
    assert (score.auc, score.calibration, score.normalised_entropy) == (None, None, None)
    assert score.log_loss == pytest.approx(math.log(2))


def test_a_window_closes_when_the_watermark_has_passed_its_end_by_the_window_of_the_label() -> None:
    found = validation()
    found.add(step([Row(1, BEGIN_MS + 9_999, learn=BOTH)]))
    assert found.close(BEGIN_MS + 10_000 + 20_000 - 1) == []
    assert [one.label for one in whole(found.close(BEGIN_MS + 10_000 + 20_000))] == ["click"]
    assert found.close(BEGIN_MS + 10_000 + 50_000 - 1)[0].window_s == 30  # of click
    assert [one.label for one in whole(found.close(BEGIN_MS + 10_000 + 50_000))] == ["bought"]
    assert found.close(BEGIN_MS) == []
    assert whole(found.close(1 << 60)) == []
    assert found.held_rows == 2  # what the summary is of


def test_the_first_prediction_stands_when_a_row_is_learned_again() -> None:
    found = validation()
    found.add(step([Row(1, BEGIN_MS, (2.0, 0), learn=CLICK), Row(2, BEGIN_MS, (0.0, 0), learn=CLICK, positive=CLICK)]))
    again = [Row(1, BEGIN_MS, (-2.0, 0), learn=CLICK), Row(2, BEGIN_MS, (9.0, 0), learn=CLICK)]
    found.add(step(again))
    (score,) = whole(found.close(BEGIN_MS + 30_000))
    assert (score.rows, score.positives, score.auc) == (2, 1.0, 0.0)
    assert score.is_complete


def test_windows_that_begin_before_this_process_are_not_complete() -> None:
    found = validation(learned_before_ms=BEGIN_MS + 15_000)
    found.add(step([Row(number, BEGIN_MS + 10_000 * number, learn=CLICK) for number in range(4)]))
    scores = found.close(BEGIN_MS + 100_000)
    assert [one.is_complete for one in whole(scores)] == [False, False, True, True]
    assert [one.is_complete for one in whole(scores, 30)] == [False, True]


def test_a_correction_of_a_prediction_that_is_not_here_makes_its_window_incomplete() -> None:
    found = validation()
    found.add(step([Row(1, BEGIN_MS, learn=CLICK), Row(2, BEGIN_MS, correct=CLICK), Row(3, BEGIN_MS, correct=BOUGHT)]))
    (score,) = whole(found.close(BEGIN_MS + 100_000))
    assert (score.label, score.rows, score.is_complete) == ("click", 1, False)
    assert found.unscored == {"click": {"unmatched_corrections": 1}, "bought": {"unmatched_corrections": 1}}


def test_predictions_that_are_no_numbers_are_counted_and_scored_in_no_window() -> None:
    found = validation()
    rows = [
        Row(1, BEGIN_MS, (math.nan, 0.0), learn=BOTH),
        Row(2, BEGIN_MS + 10_000, (-math.inf, 0.0), learn=BOTH),
        Row(3, BEGIN_MS, (1.0, 0.0), learn=BOTH, positive=BOTH),
    ]
    found.add(step(rows))
    scores = found.close(BEGIN_MS + 100_000)
    assert found.unscored == {"click": {"not_finite": 2}, "bought": {}}
    assert [(one.label, one.rows, one.is_complete) for one in whole(scores)] == [
        ("click", 1, False),
        ("bought", 2, True),
        ("bought", 1, True),
    ]


def test_texts_beyond_the_bound_are_scored_together() -> None:
    found = validation(ValidationSettings(windows_s=[10], segment_texts_max=1))
    found.add(step([Row(number, BEGIN_MS, learn=CLICK) for number in range(6)]))
    scores = found.close(BEGIN_MS + 100_000)
    assert {one.text: one.rows for one in scores if one.segment} == {"home": 2, "(other)": 4}


def test_widths_that_do_not_fit_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match="90 is not a multiple of 60"):
        validation(ValidationSettings(windows_s=[60, 90]))
    with pytest.raises(ConfigError, match="60 is not a multiple of 60"):
        validation(ValidationSettings(windows_s=[60, 60]))


def test_a_summary_is_of_the_newest_closed_windows() -> None:
    found = validation(ValidationSettings(windows_s=[10], summary_s=20))
    assert found.summary() == {}
    for number in range(4):
        late = number >= 2
        rows = [
            Row(2 * number, BEGIN_MS + 10_000 * number, (1.0 if late else -1.0, 0), learn=CLICK, positive=CLICK),
            Row(2 * number + 1, BEGIN_MS + 10_000 * number, (0.0, 0), learn=CLICK),
        ]
        found.add(step(rows))
    found.close(BEGIN_MS + 40_000)  # closes two windows
    assert found.summary()["validation.click.auc"] == 0.0
    found.close(BEGIN_MS + 50_000)
    assert found.summary()["validation.click.auc"] == 0.5
    found.close(1 << 60)
    summary = found.summary()
    assert (summary["auc"], summary["validation.click.auc"], summary["validation.click.rows"]) == (1.0, 1.0, 4.0)
    assert summary["validation.click.kept"] == 1.0
    assert not any(name.startswith("validation.bought") for name in summary)


def test_no_label_makes_a_metric_of_the_summary_that_the_judge_knows() -> None:
    from streamlearn.publisher.figures import NAN, NOT_FINITE, RMS

    found = validation()
    rows = [Row(1, BEGIN_MS, (1.0, 0), learn=BOTH, positive=BOTH), Row(2, BEGIN_MS, learn=BOTH)]
    found.add(step(rows))
    found.close(1 << 60)
    names = found.summary().keys() - {"auc"}
    assert {name.rpartition(".")[2] for name in names} == {
        "auc", "log_loss", "calibration", "rows", "positives", "kept", "until_s",
    }  # fmt: skip
    for name in names:
        assert name.startswith("validation.")
        assert not name.endswith((NAN, NOT_FINITE, RMS))


def test_metrics_say_the_newest_closed_window_and_what_was_lost() -> None:
    found = validation()
    labels = {"label": "click"}

    def value(name: str, **more: str) -> float:
        return REGISTRY.get_sample_value(f"streamlearn_trainer_validation_{name}", labels | more) or 0.0

    before = Counter({name: value(name) for name in ("windows_total",)})
    late = value("unscored_total", reason="late_rows")
    rows = [Row(1, BEGIN_MS, (1.0, 0), learn=CLICK, positive=CLICK), Row(2, BEGIN_MS, learn=CLICK)]
    found.add(step(rows))
    found.close(BEGIN_MS + 30_000)
    assert value("windows_total") == before["windows_total"] + 1
    assert (value("auc_ratio"), value("kept_ratio")) == (1.0, 1.0)
    chances = 1 / (1 + math.exp(-1)) + 1 / 2
    assert value("calibration_ratio") == pytest.approx(chances)
    assert value("log_loss_nats") == pytest.approx((math.log(1 + math.exp(-1)) + math.log(2)) / 2)
    found.add(step([Row(3, BEGIN_MS, learn=CLICK)]))
    assert value("unscored_total", reason="late_rows") == late + 1
    held = REGISTRY.get_sample_value("streamlearn_trainer_validation_held_ratio")
    assert held == found.held_rows / SETTINGS.rows_max > 0


@settings(max_examples=examples(30))
@given(
    st.lists(
        st.tuples(st.integers(0, 60_000), st.integers(0, 25_000)), min_size=1, max_size=40, unique_by=lambda one: one[0]
    ),
    st.integers(700, 5_000),
)
def test_where_the_watermark_keeps_its_promise_nothing_is_late(shown: list[tuple[int, int]], tick_ms: int) -> None:
    """Impressions, each with an action some time later: learned after `wait_s`, corrected when the action is known."""
    wait_ms, window_ms = 1_000, 20_000
    found, oracle = validation(), Oracle({"click": 20, "bought": 50}, WIDTHS_S)
    due: list[tuple[int, Row]] = []
    for number, (at_ms, after_ms) in enumerate(shown):
        row = Row(number, BEGIN_MS + at_ms, (number / 8, 0.0))
        is_early = after_ms <= wait_ms
        due.append((row.time_ms + wait_ms, replace(row, learn=CLICK, positive=CLICK if is_early else 0)))
        if wait_ms < after_ms <= window_ms:
            due.append((row.time_ms + after_ms, replace(row, correct=CLICK)))
    due.sort(key=lambda one: one[0])
    scores: list[WindowScore] = []
    expected: dict[tuple[str, int, int, str], WindowScore] = {}
    watermark_ms = BEGIN_MS
    while watermark_ms < BEGIN_MS + 120_000:
        watermark_ms += tick_ms
        rows = [row for at_ms, row in due if at_ms <= watermark_ms]
        due = [one for one in due if one[0] > watermark_ms]
        if rows:
            found.add(step(rows))
            oracle.add(rows)
        scores += found.close(watermark_ms)
        expected |= oracle.close(watermark_ms)
    assert found.unscored["click"] == {}
    positives = sum(after_ms <= window_ms for _, after_ms in shown)
    assert sum(one.positives for one in whole(scores)) == positives
    got = {(one.label, one.window_s, one.begin_ms, one.text): one for one in scores}
    assert got.keys() == expected.keys()
    assert all(close_to(got[key], expected[key]) for key in expected)
    assert all(one.is_complete for one in scores)


def test_windows_with_labels_that_were_refused_are_not_complete_be_they_closed_or_open() -> None:
    found = validation()
    found.add(step([Row(number, BEGIN_MS + 10_000 * number, learn=BOTH) for number in range(6)]))
    refused = np.array([BEGIN_MS + 10_000]), np.array([CLICK], np.uint32)
    found.refuse(*refused)
    scores = found.close(BEGIN_MS + 45_000)  # closes two windows of clicks
    assert [one.is_complete for one in whole(scores)] == [True, False]
    # The first is closed, and the longer one that holds it is not; of the fourth nothing but this is known.
    found.refuse(np.array([BEGIN_MS, BEGIN_MS + 130_000]), np.array([CLICK, CLICK], np.uint32))
    found.add(step([Row(99, BEGIN_MS + 140_000, learn=BOTH)]))
    scores = found.close(1 << 60)
    long = {(one.label, (one.begin_ms - BEGIN_MS) // 1_000): one.is_complete for one in whole(scores, 30)}
    assert long == {
        ("click", 0): False, ("click", 30): True, ("click", 120): False,
        ("bought", 0): True, ("bought", 30): True, ("bought", 120): True,
    }  # fmt: skip


def test_a_longer_window_is_not_complete_where_rows_came_after_a_shorter_one_was_scored() -> None:
    found = validation()
    found.add(step([Row(1, BEGIN_MS, learn=BOTH), Row(2, BEGIN_MS + 20_000, learn=BOTH)]))
    assert [one.is_complete for one in whole(found.close(BEGIN_MS + 30_000))] == [True]
    found.add(step([Row(3, BEGIN_MS, learn=CLICK), Row(1, BEGIN_MS, correct=CLICK)]))
    scores = whole(found.close(1 << 60), 30)
    assert [(one.label, one.is_complete) for one in scores] == [("click", False), ("bought", True)]


def test_closing_windows_costs_in_proportion_to_their_number() -> None:
    def seconds(count: int) -> float:
        label = LabelRows("click", 0, [1_000, 60_000, 86_400_000], 3_600_000, row_type(0))
        rows = SettledRows(np.zeros(1, row_type(0)), 0, True)
        label.settled = {BEGIN_MS + 1_000 * number: rows for number in range(count)}
        # A collection of garbage, which goes through all that is loaded, would be the most of it.
        gc.disable()
        try:
            begin_s = time.thread_time()
            closed = label.closed(BEGIN_MS + 1_000 * count)
            took_s = time.thread_time() - begin_s
        finally:
            gc.enable()
        assert len(closed[0].counts) == count
        return took_s

    # Four times as many: sixteen times the work where each window looks at all others.
    few_s, many_s = (min(seconds(count) for _ in range(7)) for count in (10_000, 40_000))
    assert many_s < 9 * few_s
