"""Served AUC: days are cut at midnight, and versions are compared on the same requests."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.loops.loop_served import midnights_of, served_figures
from tools.demo.board import Rows

_HOUR_MS = 3_600_000


def test_midnights_are_those_of_china_within_the_stretch() -> None:
    nights = midnights_of(16 * _HOUR_MS, 64 * _HOUR_MS)
    assert nights == [16 * _HOUR_MS, 40 * _HOUR_MS]
    assert midnights_of(16 * _HOUR_MS + 1, 40 * _HOUR_MS) == []


def test_versions_are_compared_on_requests_that_all_were_asked_about() -> None:
    done = np.array([[True], [False], [True], [False]])
    served = np.array([[2.0], [1.0], [2.0], [1.0]], np.float32)
    kept = np.array([[[2.0], [1.0]], [[1.0], [2.0]], [[np.nan], [2.0]], [[0.0], [1.0]]], np.float32)
    rows = Rows(np.arange(4), np.full(4, 3), served, kept, done)
    found = served_figures(rows)
    assert found["served_rows"] == 3
    assert found["served_auc"] == 1.0
    assert found["served_auc_frozen"] == 1.0
    assert found["served_auc_daily"] == pytest.approx(0.25)
