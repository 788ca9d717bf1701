"""Runs, held against a list of each window's rows; and scores, against those of steps of a single window each."""

from __future__ import annotations

from collections import defaultdict
from functools import partial

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlearn.samples import SegmentColumns
from streamlearn.settings import ValidationSettings
from streamlearn.trainer.validation import Predicted, ProgressiveValidation, WindowScore
from streamlearn.trainer.validation.runs import Run, Runs, merged, run_of
from tests.campaign import examples
from tests.trainer.validation.predictions import BEGIN_MS, TEXTS, app_of, bytes_of

KIND = np.dtype(np.uint64)
_STEP = st.lists(st.integers(0, 9), max_size=6)
# What is done: rows of these windows come, all windows before one are taken, or every n-th row goes.
_DONE = st.one_of(_STEP, st.integers(0, 12), st.tuples(st.integers(2, 4)))


def by_window(run: Run) -> dict[int, list[int]]:
    return {window: run.of(window).tolist() for window in run.windows.tolist()}


def is_no_multiple(of: np.uint64, run: Run) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = run.rows % of != 0
    return found


@settings(max_examples=examples(60))
@given(st.lists(_DONE, max_size=60), st.sampled_from([0, -(1 << 40), 1 << 40]), st.sampled_from([1, 1 << 20]))
def test_each_window_has_its_rows_in_the_order_they_came(
    done: list[list[int] | int | tuple[int]], first: int, apart: int
) -> None:
    runs, expected = Runs(KIND), defaultdict(list)
    number = 0
    for one in done:
        if isinstance(one, list):
            windows = [first + window * apart for window in one]
            rows = range(number, number + len(windows))
            number += len(windows)
            runs.append(run_of(np.array(rows, KIND), np.array(windows, np.int64)))
            for window, row in zip(windows, rows, strict=True):
                expected[window].append(row)
        elif isinstance(one, int):
            before = first + one * apart
            found = by_window(merged(runs.take(before)))
            assert found == {window: expected.pop(window) for window in sorted(expected) if window < before}
        else:
            runs.keep(partial(is_no_multiple, np.uint64(one[0])))
            left = {window: [row for row in rows if row % one[0]] for window, rows in expected.items()}
            expected = defaultdict(list, {window: rows for window, rows in left.items() if rows})
        assert len(runs) == sum(map(len, expected.values()))
        assert runs.windows == expected.keys()
    assert by_window(merged(runs.take(1 << 60))) == dict(expected)


@pytest.mark.parametrize("rows", [1, 64])
def test_many_steps_make_few_runs(rows: int) -> None:
    runs = Runs(KIND)
    for number in range(3_000):
        runs.append(run_of(np.full(rows, number, KIND), np.arange(number, number + rows)))
    # Sixteen alike make one: at most fifteen of each of a few kinds are left, whatever a step has.
    assert len(runs._runs) <= 15 * 4
    assert len(runs) == 3_000 * rows


def test_rows_of_closed_windows_leave_memory() -> None:
    runs, windows, each = Runs(KIND), 100, 1_000
    for _ in range(40):
        runs.append(run_of(np.zeros(windows * each // 40, KIND), np.arange(windows * each // 40) % windows))
    for window in range(windows):
        runs.take(window)
        assert bytes_of(runs) <= 8 * len(runs) / 0.75 + 16 * windows * 40
    runs.take(windows)
    assert (len(runs), bytes_of(runs)) == (0, 0)


def predicted(rng: np.random.Generator, rows: int) -> Predicted:
    """Rows of a few hundred windows; some come again, some are corrected, some are no numbers."""
    identity = rng.integers(0, 5_000, rows).astype(np.uint64)
    logits = rng.normal(size=(rows, 2)).astype(np.float32)
    logits[rng.random(logits.shape) < 0.01] = np.nan
    is_corrected = (rng.random(rows) < 0.2).astype(np.uint32)
    return Predicted(
        identity=identity,
        event_time_ms=BEGIN_MS + identity.astype(np.int64) * 601,
        logits=logits,
        learn=rng.integers(0, 4, rows).astype(np.uint32),
        correct=rng.integers(0, 4, rows).astype(np.uint32) * is_corrected,
        positive=rng.integers(0, 4, rows).astype(np.uint32),
        rates=np.where(rng.random((rows, 2)) < 0.5, 0.5, 1.0).astype(np.float32),
        weights=rng.random((rows, 2)).astype(np.float32),
        segments=(SegmentColumns("page", TEXTS, rng.integers(0, 3, rows).astype(np.int32)),),
    )


def by_windows(step: Predicted) -> list[Predicted]:
    """The same rows as steps of one window each."""
    begins = step.event_time_ms // 10_000
    columns = {name: column for name, column in vars(step).items() if isinstance(column, np.ndarray)}
    segment = step.segments[0]
    return [
        Predicted(
            **{name: column[begins == begin] for name, column in columns.items()},
            segments=(SegmentColumns(segment.name, segment.texts, segment.codes[begins == begin]),),
        )
        for begin in np.unique(begins)
    ]


def test_scores_are_the_same_to_the_bit_whether_a_step_is_of_one_window_or_of_hundreds() -> None:
    rng = np.random.default_rng(5)
    chosen = ValidationSettings(windows_s=[10, 60, 600], summary_s=60)
    whole, split = (ProgressiveValidation(app_of(), chosen) for _ in range(2))
    scores: list[WindowScore] = []
    for number in range(22):
        step = predicted(rng, 1_000)
        whole.add(step)
        for part in by_windows(step):
            split.add(part)
        if number % 7 == 0:
            found = whole.close(BEGIN_MS + number * 60_000)
            assert found == split.close(BEGIN_MS + number * 60_000)
            assert whole.summary() == split.summary()
            scores += found
        assert whole.held_rows == split.held_rows
    scores += (found := whole.close(1 << 60))
    assert found == split.close(1 << 60)
    assert len({one.begin_ms for one in scores if one.window_s == 10}) > 200
    assert any(one.segment for one in scores)
    for name in ("late_rows", "late_corrections", "unmatched_corrections", "not_finite"):
        assert all(counts[name] for counts in whole.unscored.values()), name
    assert whole.unscored == split.unscored
