"""The examples along the README's path, by the settings they come with: what they learn stays sane.

`replay --speed 0`, `ingest` and `train`, and then each hour's log loss against one who knows only how many were
positive so far. What the pages of `ratings`, `news` and `shop` teach is true.
"""

from __future__ import annotations

import gc
import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from examples.ratings.history import history
from examples.shop.history import BEGIN_MS, DAYS
from examples.shop.history import history as shop_history
from streamlearn.cli.main import cli
from streamlearn.trainer.validation import ScoreColumns, read_scores

EXAMPLES = Path(__file__).parents[2] / "examples"
HOUR_MS, ROWS_MIN = 3_600_000, 1_000
# The synthetic world is small and shown slowly, so that it has hours.
OPTIONS = {
    "kuairand": {},
    "news": {"requests": "30_000"},
    "ratings": {},
    "shop": {"requests": "30_000"},
    "synthetic": {"events": "60_000", "rate": "5", "users": "1_000", "items": "300"},
}
# Hours of so many rows, of both labels.
HOURS_MIN = {"kuairand": 30, "synthetic": 4}
NEWS_HOURS_MIN = 90
DAY_MS = 24 * HOUR_MS


def samples_of(example: str, path: Path, prism: Path) -> list[str]:
    """Replay and ingest an example; the words that set its places for further commands."""
    given = {
        "topics.root": (path / "topics").as_uri(),
        "versions.store": (path / "store").as_uri(),
        "validation.folder": str(path / "scores"),
        "ingest.prism_location": str(prism),
    }
    sets = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
    options = [word for name, value in OPTIONS[example].items() for word in ("--option", f"{name}={value}")]
    run("replay", example, "--speed", "0", *options, *sets)
    run("topics", example, "--create", "4", *sets)
    run("ingest", example, "--runner", "prism", *sets)
    return sets


def run(verb: str, example: str, *words: str) -> str:
    """Run a command on an example in this process, and return what it prints."""
    done = CliRunner().invoke(cli, [verb, str(EXAMPLES / example), *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output[-4_000:]
    return done.stdout


@pytest.fixture(autouse=True)
def _collected_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process goes on after `train`, and collects what it made."""
    monkeypatch.setattr(gc, "freeze", lambda: None)


def learned(example: str, path: Path, sets: Sequence[str]) -> ScoreColumns:
    """The scores of all windows of samples that were made in a path."""
    run("train", example, "--until-offset", "end", *sets)
    return read_scores(path / "scores")


def days_of(scores: ScoreColumns, label: str) -> ScoreColumns:
    """The scores of a label's days, of all rows."""
    is_day = (scores["end_ms"] - scores["begin_ms"] == DAY_MS) & (scores["segment"] == "")
    return scores.where(is_day & (scores["label"] == label))


def against_running_mean(scores: ScoreColumns, label: str, width_ms: int = HOUR_MS) -> list[tuple[float, float]]:
    """The log loss of each hour of enough rows, and that of always saying the share of positives before it."""
    widths_ms = scores["end_ms"] - scores["begin_ms"]
    hours = scores.where((scores["label"] == label) & (scores["segment"] == "") & (widths_ms == width_ms))
    names = ("begin_ms", "rows", "log_loss_nats", "positives_weight", "all_weight")
    found, positives, weight = [], 0.0, 0.0
    for _, rows, loss, mine, all_of_it in sorted(zip(*(hours[name].tolist() for name in names), strict=True)):
        mean, share = (positives + 0.5) / (weight + 1), mine / all_of_it
        if rows >= ROWS_MIN:
            found.append((loss, -share * math.log(mean) - (1 - share) * math.log(1 - mean)))
        positives, weight = positives + mine, weight + all_of_it
    return found


def test_every_example_is_here() -> None:
    assert set(OPTIONS) == {file.parent.name for file in EXAMPLES.glob("*/app.py")}


@pytest.mark.parametrize("example", sorted(HOURS_MIN))
def test_no_hour_of_an_example_is_predicted_worse_than_by_the_mean_so_far(
    example: str, tmp_path: Path, prism: Path
) -> None:
    check_hours(learned(example, tmp_path, samples_of(example, tmp_path, prism)), HOURS_MIN[example])


def check_hours(scores: ScoreColumns, hours_min: int) -> None:
    hours = [pair for label in ("click", "long_view") for pair in against_running_mean(scores, label)]
    assert len(hours) >= hours_min
    assert not [pair for pair in hours if pair[0] >= pair[1]], hours


def test_stars_are_predicted_better_by_the_day_and_nearly_as_well_as_by_who_knows_the_truth(
    tmp_path: Path, prism: Path
) -> None:
    scores = learned("ratings", tmp_path, samples_of("ratings", tmp_path, prism))
    days = days_of(scores, "stars")
    world = history(OPTIONS["ratings"])
    rated, whole = world.is_rated, world.expected.clip(1, 5)
    truth = float(np.abs(whole[rated] - world.stars[rated]).mean())
    naive = float(np.abs(np.median(world.stars[rated]) - world.stars[rated]).mean())
    maes = days["mae"].tolist()
    assert len(maes) == 30
    assert int(days["rows"].sum()) > 0.95 * rated.sum()  # the last day is not over
    # Of what a model can know more than the median, a quarter is known in the last week; a user has rated 24 films.
    assert np.mean(maes[-7:]) < truth + 0.75 * (naive - truth)
    assert np.mean(maes[-7:]) < np.mean(maes[:7]) - 0.015
    assert all(0.95 < calibration < 1.05 for calibration in days["calibration_ratio"].tolist()[3:])
    # Whether a film is rated can hardly be known: after two days never worse than by the mean so far.
    days_of_rated = against_running_mean(scores, "rated", DAY_MS)
    assert all(found < mean for found, mean in days_of_rated[2:])


def test_where_news_are_shown_versions_a_minute_apart_are_worth_more_than_a_day_apart_and_each_hour_is_learned(
    tmp_path: Path, prism: Path
) -> None:
    sets = samples_of("news", tmp_path, prism)
    check_hours(learned("news", tmp_path, sets), NEWS_HOURS_MIN)
    table = json.loads(run("evaluate", "news", "--every", "1m,1d", "--json", *sets))
    minute, day = (found for found in table["intervals"] if not found["segment"])
    assert (minute["every"], day["every"]) == ("1m", "1d")
    assert minute["gain_low"] > 0.02
    assert 0.6 < day["auc"] < minute["auc"]
    assert 0.95 < minute["calibration"] < 1.05


def test_orders_are_calibrated_though_they_come_late_and_what_is_paid_is_predicted_better_than_by_its_mean_so_far(
    tmp_path: Path, prism: Path
) -> None:
    scores, world = learned("shop", tmp_path, samples_of("shop", tmp_path, prism)), shop_history(OPTIONS["shop"])
    orders, paid = days_of(scores, "order"), days_of(scores, "paid")
    assert len(orders["rows"]) == len(paid["rows"]) == DAYS
    assert orders["positives_weight"].sum() == world.is_ordered.sum()
    # On the first day nothing is known yet.
    for label in ("click", "order"):
        days = against_running_mean(scores, label, DAY_MS)[1:]
        assert all(loss < mean for loss, mean in days), (label, days)
    assert all(0.85 < ratio < 1.15 for ratio in orders["calibration_ratio"].tolist()[2:])
    request, place = np.nonzero(world.is_ordered)
    day, amount, worth = (world.shown_ms[request] - BEGIN_MS) // DAY_MS, world.paid[request, place], world.worth
    errors = paid["mae"].tolist()
    naive = [float(np.abs(amount[day == one] - amount[day < one].mean()).mean()) for one in range(1, DAYS)]
    assert all(error < mean for error, mean in zip(errors[1:], naive, strict=True)), (errors, naive)
    # In the last days it is nearer to who knows the truth.
    truth = float(np.abs(amount - worth[request, place]).mean())
    assert np.mean(errors[-3:]) < (truth + np.mean(naive[-3:])) / 2
