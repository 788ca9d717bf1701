"""The page on retrieval: its declaration fits the example, whose towers then find more than popularity does."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.histories.freshness_rows import read_week
from streamlearn.apps import load_app
from streamlearn.library.library import Library
from streamlearn.models import model_of
from streamlearn.trainer.columns import columns_of
from streamlearn.trainer.evaluation import own_tables
from streamlearn.trainer.intake.item_feed import learn_shown
from streamlearn.trainer.intake.message import Reached
from streamlearn.trainer.learner import Learner
from streamlearn.trainer.rows import Rows
from streamlearn.trainer.step import Piece, Step
from streamlearn.trainer.towers.hit_rates import HitRates
from streamlearn.trainer.towers.tower_steps import TowerSteps, own_steps

_ROOT = Path(__file__).parents[3]
_DAYS, _ROWS = 3, 256


def test_towers_that_are_declared_as_the_page_says_beat_popularity_on_the_third_day() -> None:
    (declaration, _) = re.findall(r"^```python\n(.*?)^```", (_ROOT / "docs/retrieval.md").read_text(), re.M | re.S)
    declared: dict[str, Any] = {}
    exec(declaration, declared)
    plain = load_app(_ROOT / "examples/kuairand")
    assert plain.app.retrieval is None
    folder = replace(plain, app=replace(plain.app, retrieval=declared["retrieval"]))
    week = read_week(folder)
    end = int(np.searchsorted(week.shown_ms, week.shown_ms[0] + _DAYS * 86_400_000))
    with own_tables(folder) as client:
        rows = Rows(folder.app, client, _ROWS, folder.settings.tables)
        library = Library(folder.app)
        steps = own_steps(folder, client, library)(Learner(folder.app, model_of(folder), folder.settings.trainer), rows)
        assert isinstance(steps, TowerSteps)
        rates = HitRates(steps)
        steps.before = rates.see
        for begin in range(0, end, _ROWS):
            which = np.arange(begin, min(begin + _ROWS, end))
            learn = np.full(len(which), 3, np.uint32)
            columns = columns_of(Step(1, (Piece(week.batch, which, learn, 0 * learn),), Reached((), ()), len(which)))
            packed = steps.pack(columns, begin)
            steps.push(columns, packed, steps.learn(packed), begin, 1.0)
            learn_shown(library, folder.app.features, columns)
    last = rates.days[-1]
    assert last.positives > 1_000
    assert all(towers > 1.03 * popular for towers, popular in zip(last.towers, last.popularity, strict=True))
