"""Numbers: labels that are numbers, learned by DeepFM, against the truth and against river.

Minutes watched follow a gamma distribution whose mean is a product of what users and videos add. Ratings are those of
`examples/ratings`, in the order in which they were given; each is predicted, and then learned.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from benchmarks.histories.plain_samples import plain_samples
from benchmarks.learning_loss import Learning
from benchmarks.peers.environment import Environment
from examples.ratings.history import GENRES, RatingsHistory, history
from streamlearn.apps import App, AppFolder, load_app
from streamlearn.errors import ServiceError
from streamlearn.features import FeatureSpec, Label, LabelGroup, Number, Slot
from streamlearn.samples import LabelColumns, SampleBatch
from streamlearn.settings import Settings
from streamlearn.settings.tables import TableSettings
from tools.services.cache import Cache

__all__ = ["number_figures"]

Note = Callable[[str], None]
Floats = npt.NDArray[np.float64]

_RATINGS = Path(__file__).parent.parent.parent / "examples" / "ratings"
_USERS, _VIDEOS, _TASTES, _SHAPE = 2_000, 500, 4, 2.0
_MEAN, _USER, _VIDEO, _TASTE = 4.0, 0.5, 0.5, 0.4
_BATCH_ROWS, _SEED = 8_192, 5
_TABLES = TableSettings(rate=0.1)
_STEP_ROWS, _SMALL_STEPS = 4, 4_000
_WATCHING = App(
    "watching",
    FeatureSpec(slots=(Slot("user_id", "user"), Slot("video_id", "item")), item_id="video_id"),
    (LabelGroup("fast", 60, 60),),
    (Label("minutes", "watch", "fast", number=Number(missing=0, loss="poisson", scale=_MEAN)),),
    model="deepfm",
)


def number_figures(minutes: int, evenings: int, note: Note) -> dict[str, float]:
    """Return the figures of that many minutes watched, and of the ratings of that many evenings."""
    figures = _watched(minutes)
    world, folder = history({"requests": str(evenings)}), load_app(_RATINGS, [])
    rows = _ratings(world)
    figures["ratings.mae"] = _mae(_learned(Learning(folder, np.uint32(1)), folder.app, rows), rows["stars"])
    figures["ratings.mae_of_truth"] = _mae(rows["expected"].clip(1, 5), rows["stars"])
    of_river = _river(rows, note)
    if of_river is not None:
        figures |= {"river.mae": of_river, "ratings_mae_to_river": figures["ratings.mae"] / of_river}
    return figures | {"small_steps_rows_per_s": _small_steps(folder, rows)}


def _watched(count: int) -> dict[str, float]:
    """Return how far first predictions of minutes are off, the last quarter of them."""
    rng = np.random.default_rng(_SEED)
    users, videos = rng.integers(0, _USERS, count), rng.integers(0, _VIDEOS, count)
    tastes, places = rng.normal(size=(_USERS, _TASTES)), rng.normal(size=(_VIDEOS, _TASTES))
    added = _USER * rng.normal(size=_USERS)[users] + _VIDEO * rng.normal(size=_VIDEOS)[videos]
    added += _TASTE * (tastes[users] * places[videos]).sum(axis=1) / np.sqrt(_TASTES)
    mean = _MEAN * np.exp(added - (_USER**2 + _VIDEO**2 + _TASTE**2) / 2)
    minutes = rng.gamma(_SHAPE, mean / _SHAPE)
    rows = {"user_id": users, "video_id": videos, "minutes": minutes}
    folder = AppFolder(_WATCHING, Path("/nowhere"), msgspec.structs.replace(Settings(), tables=_TABLES))
    predicted, last = _learned(Learning(folder), _WATCHING, rows), slice(-count // 4, None)
    of_model, of_truth = (_mae(one[last], minutes[last]) for one in (predicted, mean))
    return {"number_mae_over_truth": of_model / of_truth - 1, "minutes.mae": of_model, "minutes.mae_of_truth": of_truth}


def _ratings(world: RatingsHistory) -> dict[str, npt.NDArray[Any]]:
    """Return all ratings in their order."""
    request, place = world.rated_in_order()
    film = world.film_id[request, place]
    return {
        "user_id": world.user_id[request],
        "film_id": film,
        "genre": np.array(GENRES)[world.genre[film]],
        "stars": world.stars[request, place],
        "expected": world.expected[request, place],
    }


def _learned(learning: Learning, app: App, rows: Mapping[str, npt.NDArray[Any]]) -> Floats:
    """Return the predictions of the first label of all rows, each from before it was learned."""
    return np.concatenate([learning.learn(batch)[:, 0] for batch in _batches(app, rows)]).astype(np.float64)


def _batches(app: App, rows: Mapping[str, npt.NDArray[Any]]) -> Iterator[SampleBatch]:
    """Yield rows of a request each, with the first label as their number; other labels are not settled."""
    first, *others = app.labels
    for begin in range(0, len(rows[first.name]), _BATCH_ROWS):
        part = {name: column[begin : begin + _BATCH_ROWS] for name, column in rows.items()}
        count = len(part[first.name])
        ones, none, known = np.ones(count, np.float32), np.zeros(count, np.uint8), np.ones(count, np.uint8)
        unscored, numbers = np.full(count, np.nan, np.float32), part[first.name].astype(np.float32)
        labels = (
            LabelColumns(first.name, known, known, ones, ones, unscored, numbers),
            *(LabelColumns(label.name, none, none, ones, ones, unscored) for label in others),
        )
        yield plain_samples(app, part, labels, begin)


def _mae(predicted: Floats, actual: Floats) -> float:
    return float(np.abs(predicted - actual).mean())


def _small_steps(folder: AppFolder, rows: Mapping[str, npt.NDArray[Any]]) -> float:
    """Return the rows per second of steps of four rows, compiled."""
    trainer = msgspec.structs.replace(folder.settings.trainer, step_rows=_STEP_ROWS, xla="on")
    settings = msgspec.structs.replace(folder.settings, trainer=trainer)
    learning = Learning(replace(folder, settings=settings), np.uint32(1))
    count = _SMALL_STEPS * _STEP_ROWS
    first, *_ = _batches(folder.app, {name: column[:count] for name, column in rows.items()})
    learning.learn(first)  # compiled, and most rows are there
    batches = [*_batches(folder.app, {name: column[count : 2 * count] for name, column in rows.items()})]
    begun_s = time.perf_counter()
    for batch in batches:
        learning.learn(batch)
    return sum(map(len, batches)) / (time.perf_counter() - begun_s)


def _river(rows: Mapping[str, npt.NDArray[Any]], note: Note) -> float | None:
    """Return the mean absolute error of river's biased matrix factorisation; None if river cannot be had."""
    try:
        python = Environment("river").build(Cache())
    except ServiceError as error:
        note(f"peer river is not available, so its ratio is missing: {error}")
        return None
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "ratings.npz"
        np.savez(file, user_id=rows["user_id"], film_id=rows["film_id"], stars=rows["stars"])
        script = Path(__file__).parent.parent / "peers" / "river_factorisation.py"
        done = subprocess.run([python, script, file], capture_output=True, text=True, check=True, timeout=600)
    return float(json.loads(done.stdout)["mae"])
