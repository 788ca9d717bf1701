"""The benchmarks' worlds with a known truth: rows are those of the truth, and models learn something of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.histories import categorical, news, numbers
from examples.ratings.history import history


def test_ratings_are_in_the_order_in_which_they_are_given_and_those_of_the_history() -> None:
    world = history({"requests": "300"})
    rows = numbers._ratings(world)
    request, place = world.rated_in_order()
    times = world._rated_ms[request, place]
    assert (np.diff(times) >= 0).all()
    assert len(times) == world.is_rated.sum()
    assert np.array_equal(rows["film_id"], world.film_id[request, place])
    assert set(rows["stars"].tolist()) <= {1.0, 2.0, 3.0, 4.0, 5.0}


def test_figures_of_numbers_are_there_without_river_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbers, "_river", lambda rows, note: None)
    monkeypatch.setattr(numbers, "_SMALL_STEPS", 50)
    figures = numbers.number_figures(60_000, 2_000, print)
    assert "ratings_mae_to_river" not in figures
    assert 0 < figures["number_mae_over_truth"] < 1
    assert figures["ratings.mae_of_truth"] < figures["ratings.mae"] < 1
    assert figures["small_steps_rows_per_s"] > 0


def test_a_model_of_categories_is_better_than_chance_and_never_better_than_the_truth() -> None:
    learned, asked = categorical._world(40_000)
    found: dict[int, Any] = dict(categorical._logits("deepfm", learned, asked))
    assert asked.auc(asked.truth) > 0.75
    assert 0.55 < asked.auc(found[1]) < asked.auc(asked.truth)
    assert found.keys() == {1, 6}


def test_the_way_from_the_news_to_the_table_has_its_seconds_and_an_auc_of_each_interval(
    monkeypatch: pytest.MonkeyPatch, prism: Path
) -> None:
    monkeypatch.setattr(news, "prism_path", lambda: prism)
    notes: list[str] = []
    figures = news.news_figures(("--option", "requests=2_000"), notes.append)
    assert list(figures) == ["evaluate_table_s", *(f"news.auc_{every}" for every in ("1m", "1h", "1d", "never"))]
    assert figures["evaluate_table_s"] > 1
    assert [note.split()[1] for note in notes] == ["replay", "topics", "ingest", "evaluate"]
