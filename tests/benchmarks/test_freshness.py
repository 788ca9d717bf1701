"""The benchmark of freshness: the week is what its file says, and nothing is predicted by what came later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from pyarrow import csv

from benchmarks.freshness import INTERVALS, figures_of, scored
from benchmarks.histories.freshness_rows import Week, read_week
from streamlearn.apps import load_app

__all__: list[str] = []

_FOLDER = Path(__file__).parents[2] / "examples" / "kuairand"
_MINUTE_MS, _HOUR_MS, _DAY_MS, _ZONE_MS = 60_000, 3_600_000, 86_400_000, 28_800_000


@pytest.fixture(scope="module")
def week() -> Week:
    return read_week(load_app(_FOLDER, []))


class _Told:
    """Predicts of every row how many rows it has learned: what it knew is read off its predictions."""

    def __init__(self) -> None:
        self.learned = 0

    def learn(self, begin: int, end: int) -> None:
        assert begin == self.learned
        self.learned = end

    def predict(self, begin: int, end: int, out: npt.NDArray[np.float32]) -> None:
        out[begin:end] = self.learned


def test_the_week_has_each_row_of_the_file_once_with_its_labels(week: Week) -> None:
    table = csv.read_csv(_FOLDER / "data" / "demo_week1.csv.gz")
    user, time_ms, video, click = (table[name].to_pylist() for name in ("user_id", "time_ms", "video_id", "is_click"))
    clicks: dict[Any, int] = {}
    for *key, is_click in zip(user, time_ms, video, click, strict=True):
        clicks[tuple(key)] = max(clicks.get(tuple(key), 0), is_click)
    assert len(week.batch) == len(clicks)
    assert int(week.batch.labels[0].value.sum()) == sum(clicks.values())
    assert (np.diff(week.shown_ms) >= 0).all()
    assert sorted(key[1] for key in clicks) == week.shown_ms.tolist()
    assert (week.settled_ms == week.shown_ms + 20_000).all()


def test_nothing_is_predicted_by_what_was_known_later(week: Week) -> None:
    days = (2, 2)
    found = scored(_Told(), week, days, 1)
    zero_ms = (int(week.shown_ms[0]) + _ZONE_MS) // _DAY_MS * _DAY_MS - _ZONE_MS
    is_asked = (week.shown_ms >= zero_ms + 2 * _DAY_MS) & (week.shown_ms < zero_ms + 3 * _DAY_MS)
    for name, interval_ms in INTERVALS.items():
        published_ms = week.shown_ms - (week.shown_ms + _ZONE_MS) % interval_ms
        known = np.searchsorted(week.settled_ms, published_ms)
        assert np.array_equal(found.logits[name][is_asked, 0], known[is_asked].astype(np.float32))
        assert np.isnan(found.logits[name][~is_asked]).all()
    frozen = np.searchsorted(week.settled_ms, zero_ms + 2 * _DAY_MS)
    assert (found.logits["frozen"][is_asked] == frozen).all()


def test_figures_are_of_the_days_asked_for_and_of_each_label(week: Week) -> None:
    days = (2, 2)
    found = scored(_Told(), week, days, 1)
    begin, end = np.searchsorted(week.shown_ms, _day(week, 2)), np.searchsorted(week.shown_ms, _day(week, 3))
    for logits in found.logits.values():
        logits[begin:end] = np.stack([one.value[begin:end] for one in week.batch.labels], axis=1)
    figures = figures_of(week, found, days)
    labels = [label.name for label in week.batch.labels]
    gains = {f"{label}_auc_gain": 0.0 for label in labels}
    assert figures == gains | {f"{label}_auc_{name}": 1.0 for label in labels for name in (*INTERVALS, "frozen")}


def _day(week: Week, day: int) -> int:
    return (int(week.shown_ms[0]) + _ZONE_MS) // _DAY_MS * _DAY_MS + day * _DAY_MS - _ZONE_MS
