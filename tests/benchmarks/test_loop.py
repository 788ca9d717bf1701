"""The benchmark of the loop: rows are matched with the answers that know them, and rates are searched for as said."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.loop import TARGETS, missed
from benchmarks.loops.loop_answers import VersionChange
from benchmarks.loops.loop_fresh import figures_of
from benchmarks.loops.loop_rates import RateMeasurement, Search, sustained
from benchmarks.loops.loop_rows import Learned, LoopRows, known_ms

__all__: list[str] = []


def _rows(partitions: list[int], offsets: list[int], due_ms: list[int]) -> LoopRows:
    due = np.array(due_ms, np.int64)
    return LoopRows(np.array(partitions), np.array(offsets), due - 2_000, due, due + 500)


def test_a_row_is_served_by_the_first_answer_of_a_version_that_passed_its_message() -> None:
    rows = _rows([0, 0, 1, 1], [0, 5, 0, 3], [100, 100, 100, 100])
    versions = [Learned(1, (0, 0), 150), Learned(2, (1, 0), 200), Learned(3, (6, 1), 300), Learned(4, (6, 4), 400)]
    # Version 3 is never answered with: its rows are met in version 4.
    answered = [VersionChange(160.0, 1), VersionChange(260.0, 2), VersionChange(460.0, 4)]
    written, served = known_ms(rows, versions, answered)
    assert written.tolist() == [200, 300, 300, 400]
    assert served.tolist() == [260, 460, 460, 460]


def test_a_version_that_was_gone_back_to_serves_no_row_anew_and_the_next_one_does() -> None:
    rows = _rows([0, 0, 0], [0, 1, 2], [10, 10, 10])
    versions = [Learned(1, (1,), 20), Learned(2, (2,), 30), Learned(3, (3,), 40)]
    answered = [VersionChange(25.0, 1), VersionChange(35.0, 2), VersionChange(37.0, 1), VersionChange(45.0, 3)]
    assert known_ms(rows, versions, answered)[1].tolist() == [25, 35, 45]


def test_rows_that_nothing_learned_are_never_served() -> None:
    rows = _rows([0, 1], [7, 0], [10, 10])
    versions = [Learned(1, (7, 1), 20)]
    written, served = known_ms(rows, versions, [VersionChange(25.0, 1)])
    np.testing.assert_array_equal(written, [np.nan, 20.0])
    np.testing.assert_array_equal(served, [np.nan, 25.0])
    assert np.isnan(known_ms(rows, versions, [])[1]).all()


def test_figures_are_seconds_since_rows_were_due_and_those_never_served_are_counted() -> None:
    rows = _rows([0] * 4, [0, 1, 2, 3], [1_000, 2_000, 3_000, 4_000])
    written = np.array([2_500.0, 3_500.0, 4_500.0, np.nan])
    served = np.array([3_000.0, 4_000.0, 5_000.0, np.nan])
    assert figures_of(rows, written, served) == pytest.approx(
        {
            "rows_never_served": 1,
            "event_to_sample_p50_s": 0.5, "event_to_sample_p99_s": 0.5,
            "event_to_version_p50_s": 1.5, "event_to_version_p99_s": 1.5,
            "event_to_served_p50_s": 2.0, "event_to_served_p99_s": 2.0,
        }
    )  # fmt: skip


def test_rows_are_taken_by_when_they_were_due() -> None:
    rows = _rows([0] * 4, [0, 1, 2, 3], [1_000, 2_000, 3_000, 4_000]).due_between(2_000, 4_000)
    assert (rows.offset.tolist(), rows.due_ms.tolist(), rows.sent_ms.tolist()) == ([1, 2], [2_000, 3_000], [0, 1_000])


def test_a_target_that_is_not_reached_is_said_and_one_without_a_figure_is_not() -> None:
    most = TARGETS["event_to_served_p50_s"]
    assert missed({"event_to_served_p50_s": most}) == []
    (said,) = missed({"event_to_served_p50_s": most + 1})
    assert "event_to_served_p50_s" in said
    assert f"{most:g}" in said


def _held(rate: float, learned_per_s: float, delays_s: list[float]) -> RateMeasurement:
    return RateMeasurement(rate, learned_per_s, delays_s, 20.0)


def test_a_rate_holds_where_nearly_all_is_learned_and_what_is_behind_does_not_grow() -> None:
    steady, growing = [1.0, 1.4] * 10, [1.0 + 0.5 * at for at in range(20)]
    assert _held(1_000, 990, steady).holds
    assert not _held(1_000, 900, steady).holds
    assert not _held(1_000, 990, growing).holds
    assert not _held(1_000, 990, [40.0] * 20).holds
    assert not _held(1_000, 990, []).holds


@pytest.mark.parametrize("capacity", [900.0, 1_000.0, 2_345.0, 7_000.0, 30_000.0])
def test_the_highest_rate_that_holds_is_found_within_a_fine_step(capacity: float) -> None:
    search, tried = Search(1_000.0, most=20_000.0), list[float]()

    def held(rate: float) -> RateMeasurement:
        tried.append(rate)
        return _held(rate, min(rate, capacity), [1.0] * 20)

    best = sustained(search, held)
    assert max(tried) <= search.most
    # A rate beyond what is learned still counts as held within the noise of looking.
    reached = min(capacity / 0.95, search.most)
    if capacity < search.begin * 0.95:
        assert best is None
    else:
        assert best is not None
        assert best.rate <= reached < best.rate * search.fine
        assert best.learned_per_s == min(best.rate, capacity)
