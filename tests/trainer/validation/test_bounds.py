"""Bounds of progressive validation: what it holds, what it lets go of at its bound, and that nobody is favoured."""

from __future__ import annotations

import threading
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from streamlearn.samples import SegmentColumns
from streamlearn.settings import ValidationSettings
from streamlearn.trainer.validation import Predicted, ProgressiveValidation, WindowScore
from tests.trainer.validation.predictions import BEGIN_MS, TEXTS, app_of, bytes_of

CLICK, BOTH = 1, 3


def stream(begin: int, rows: int, seed: int = 0, *, span_ms: int = 10_000, learn: int = CLICK) -> Predicted:
    """Rows whose identities are counted from one on, with logits that say something of the label."""
    rng = np.random.default_rng(seed + begin)
    logits = rng.normal(size=(rows, 2)).astype(np.float32)
    positive = rng.random(rows) < 1 / (1 + np.exp(-logits[:, 0]))
    return Predicted(
        identity=np.arange(begin, begin + rows, dtype=np.uint64),
        event_time_ms=BEGIN_MS + rng.integers(0, span_ms, rows),
        logits=logits,
        learn=np.full(rows, learn, np.uint32),
        correct=np.zeros(rows, np.uint32),
        positive=(positive * learn).astype(np.uint32),
        rates=np.ones((rows, 2), np.float32),
        weights=np.ones((rows, 2), np.float32),
        segments=(SegmentColumns("page", TEXTS, rng.integers(0, 3, rows).astype(np.int32)),),
    )


def of_width(scores: list[WindowScore], width_s: int) -> list[WindowScore]:
    return [one for one in scores if not one.segment and one.window_s == width_s]


def test_a_pending_prediction_takes_32_bytes_at_most() -> None:
    found = ProgressiveValidation(app_of(), ValidationSettings(windows_s=[60, 3_600]))
    for number in range(40):
        found.add(stream(number * 5_000, 5_000, span_ms=600_000, learn=BOTH))
    assert found.held_rows == 400_000
    assert bytes_of(found) <= 32 * found.held_rows
    found.close(BEGIN_MS + 1_200_000)
    assert found.held_rows == 400_000  # the window of an hour is not over
    assert bytes_of(found) <= 32 * found.held_rows


def test_at_its_bound_it_holds_no_more_and_says_of_how_many_rows_a_score_is() -> None:
    found = ProgressiveValidation(app_of(), ValidationSettings(windows_s=[10], rows_max=10_000))
    most = 0
    for number in range(50):
        found.add(stream(number * 1_000, 1_000))
        most = max(most, found.held_rows)
    assert 4_000 < most <= 10_000
    (score,) = of_width(found.close(BEGIN_MS + 30_000), 10)
    assert score.kept == 1 / 8
    assert not score.is_complete
    assert score.rows < 10_000
    assert score.weight == score.rows * 8 == pytest.approx(50_000, rel=0.05)


def test_what_is_let_go_of_favours_nobody() -> None:
    """The mean over many samples of the same rows is the score of all; corrections go with their rows."""
    rows = 4_000
    one = stream(0, rows)
    first, later = one.positive.copy(), one.positive.copy()
    first[::2] = 0  # half of them are learned as negative, and corrected
    later[1::2] = 0

    def scored(rows_max: int, seed: int) -> WindowScore:
        rng = np.random.default_rng(seed)
        names = rng.integers(0, 1 << 63, rows).astype(np.uint64)
        found = ProgressiveValidation(app_of(), ValidationSettings(windows_s=[10], rows_max=rows_max))
        zeros = np.zeros(rows, np.uint32)
        found.add(Predicted(**{**vars(one), "identity": names, "positive": first}))
        found.add(Predicted(**{**vars(one), "identity": names, "learn": zeros, "positive": zeros, "correct": later}))
        (score,) = of_width(found.close(BEGIN_MS + 30_000), 10)
        assert found.unscored["click"]["unmatched_corrections"] == 0
        return score

    exact = scored(1 << 20, 0)
    samples = [scored(2_000, seed) for seed in range(60)]
    assert exact.kept == 1
    assert all(score.kept <= 1 / 2 for score in samples)
    for name in ("auc", "log_loss", "calibration", "positives", "weight"):
        values = np.array([getattr(score, name) for score in samples])
        error = 5 * values.std() / np.sqrt(len(values))
        assert abs(values.mean() - getattr(exact, name)) < error + 1e-9, name


def test_closed_windows_are_thinned_before_open_ones() -> None:
    found = ProgressiveValidation(app_of(), ValidationSettings(windows_s=[10, 1_000], rows_max=10_000))
    found.add(stream(0, 9_000))
    (score,) = of_width(found.close(BEGIN_MS + 30_000), 10)
    assert score.kept == 1.0
    late = stream(9_000, 4_000)
    found.add(Predicted(**{**vars(late), "event_time_ms": late.event_time_ms + 50_000}))
    scores = found.close(1 << 60)
    assert [one.kept for one in of_width(scores, 10)] == [1.0]  # the open one was whole
    (hour,) = of_width(scores, 1_000)
    assert 0.3 < hour.kept < 0.7
    assert hour.weight == pytest.approx(13_000, rel=0.05)
    assert not hour.is_complete
    whole = stream(0, 9_000)
    expected = float(whole.positive.sum() + late.positive.sum())
    assert hour.positives == pytest.approx(expected, rel=0.1)


def test_rows_of_one_identity_again_and_again_do_not_hold_it_up() -> None:
    found = ProgressiveValidation(app_of(), ValidationSettings(windows_s=[10], rows_max=1_024))
    one = stream(0, 2_000)
    found.add(Predicted(**{**vars(one), "identity": np.zeros(2_000, np.uint64)}))
    assert found.held_rows <= 2_000
    found.close(1 << 60)
    assert found.held_rows <= 1


def test_rows_are_taken_while_another_thread_closes_windows() -> None:
    settings = ValidationSettings(windows_s=[10, 50], rows_max=20_000)
    found, steps = ProgressiveValidation(app_of(), settings), 200
    scores: list[WindowScore] = []
    done = threading.Event()

    def close() -> None:
        at = 0
        while not done.is_set():
            scores.extend(found.close(BEGIN_MS + min(at, 60_000)))
            found.summary()
            at += 500

    closing = threading.Thread(target=close)
    closing.start()
    for number in range(steps):
        found.add(stream(number * 500, 500, span_ms=100_000))
    done.set()
    closing.join(60)
    assert not closing.is_alive()
    scores += found.close(1 << 60)
    windows = [(one.begin_ms, one.end_ms, one.text) for one in scores]
    assert len(windows) == len(set(windows))
    late = found.unscored["click"]["late_rows"]
    estimated = sum(one.weight for one in of_width(scores, 10))
    assert estimated == pytest.approx(steps * 500 - late, rel=0.05)
    assert found.held_rows <= settings.rows_max


@pytest.mark.parametrize("identity", range(8))
def test_a_closed_window_that_was_thinned_to_nothing_has_no_score_and_stops_nothing(identity: int) -> None:
    found = ProgressiveValidation(app_of(20, 20), ValidationSettings(windows_s=[10, 1_000], rows_max=2_000))
    rare = stream(10_000_000 + identity, 1, learn=2, span_ms=1)
    found.add(rare)
    found.add(stream(0, 1_500))
    assert {score.label for score in found.close(BEGIN_MS + 40_000)} == {"click", "bought"}
    late = stream(5_000, 1_200)
    found.add(replace(late, event_time_ms=late.event_time_ms + 50_000))
    kept = {name.split(".")[1]: value for name, value in found.summary().items() if name.endswith(".rows")}
    scores = of_width(found.close(BEGIN_MS + 10_000_000), 1_000)
    rows = {score.label: score.rows for score in scores}
    assert 0 < kept["click"] < 1_500
    assert rows["click"] < 2_000
    assert kept.get("bought", 0) == rows.get("bought", 0) <= 1


def test_closed_windows_do_not_keep_the_memory_of_those_that_closed_with_them() -> None:
    found = ProgressiveValidation(app_of(), ValidationSettings(windows_s=[60, 3_600]))
    for number in range(10):
        found.add(stream(number * 20_000, 20_000, span_ms=10 * 86_400_000))
    found.close(BEGIN_MS + 10 * 86_400_000)
    assert 0 < found.held_rows < 5_000
    assert all(rows.rows.base is None for label in found._labels for rows in label.settled.values())


@pytest.mark.parametrize("width_ms", [1_000_000, 4_000_000], ids=["", "with sums by user"])
def test_a_row_takes_180_bytes_at_most_while_its_window_is_scored(width_ms: int) -> None:
    rows = 200_000
    begin_ms = (BEGIN_MS // width_ms + 1) * width_ms
    found = ProgressiveValidation(app_of(), ValidationSettings(windows_s=[10, width_ms // 1_000]))
    given = stream(0, rows, span_ms=width_ms)
    found.add(replace(given, event_time_ms=given.event_time_ms - BEGIN_MS + begin_ms))
    found.close(begin_ms + width_ms - 10_000)
    tracemalloc.start()
    try:
        scores = found.close(begin_ms + 2 * width_ms)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert max(score.rows for score in scores) == rows
    assert peak_bytes <= 180 * rows
