"""What towers cost a trainer and what they find: trainers with and without them, and a world with known truth."""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import structs

from benchmarks.histories.learning_samples import drawn_batch
from benchmarks.result import Result
from benchmarks.retrieval.logged_week import copied_app, retrieving_week, write_samples
from examples.synthetic.history import SyntheticHistory
from examples.synthetic.options import Options, options_of
from examples.synthetic.world import Shown, World
from streamlearn.apps import AppFolder
from streamlearn.features.retrieval import TOWERS
from streamlearn.library.library import Library
from streamlearn.models import model_of
from streamlearn.publisher.logit_scores import auc_of
from streamlearn.samples import SampleBatch
from streamlearn.trainer import train
from streamlearn.trainer.columns import StepColumns, columns_of
from streamlearn.trainer.evaluation import own_tables
from streamlearn.trainer.intake.feed import Until
from streamlearn.trainer.intake.item_feed import learn_shown
from streamlearn.trainer.intake.message import Reached
from streamlearn.trainer.learner import Learner
from streamlearn.trainer.rows import Rows
from streamlearn.trainer.step import Piece, Step
from streamlearn.trainer.towers.tower_steps import TowerSteps, own_steps
from streamlearn.trainer.trainer_setup import ends_of

__all__ = ["measure"]

Note = Callable[[str], None]
Float64s = npt.NDArray[np.float64]

_SYNTHETIC = Path(__file__).parents[2] / "examples" / "synthetic"
_RETRIEVAL = """
from dataclasses import replace as _replace

from streamlearn.features import Retrieval

retrieval = Retrieval(
    "click",
    user=("user_id", "cohort", "device", "recent_items", "recent_categories", "taste"),
    item=("item_id", "author_id", "category", "length_band"),
)
app = _replace(app, retrieval=retrieval)
"""
_SETTINGS = ("trainer.step_rows=1024", "publisher.publish_interval_s=3600")
# Few items, shown equally often, whose appeal does not change: what is found hangs on the truth alone.
_WORLD = {"users": "5000", "items": "2000", "zipf": "0", "click_rate": "0.2", "new_items": "0", "drift_s": "1e9"}
_SAMPLES, _QUICK_SAMPLES, _HELD_SHARE, _TOP = 2_000_000, 60_000, 0.05, 100
_AT_ONCE, _DRAWS, _SPAN_MS, _ROUNDS = 1_024, 10_000_000, 10_000, 3


def measure(note: Note, result: Result, *, quick: bool) -> None:
    """Measure both."""
    days, samples = (1, 60_000) if quick else (5, 400_000)
    for name, prefix in (("trainer_to_without_kuairand", "KuaiRand"), ("trainer_to_without", "synthetic")):
        ratios = []
        for _ in range(1 if quick else _ROUNDS):
            used_us = {}
            for is_with in (True, False):
                with tempfile.TemporaryDirectory(prefix="streamlearn-bench-") as place:
                    folder, batches = _samples_of(prefix, Path(place), days, samples)
                    used_us[is_with] = _used_us(*((folder, batches) if is_with else _without(folder, batches)))
            note(f"{prefix}: {used_us[True]:.1f} us a sample with towers, {used_us[False]:.1f} without")
            ratios.append(used_us[False] / used_us[True])
        result.ratios[name] = statistics.median(ratios)
    with tempfile.TemporaryDirectory(prefix="streamlearn-bench-") as place:
        folder, week = retrieving_week(Path(place), 1 if quick else 7)
        result.figures["ranking_auc_difference"] = _auc_difference(folder, [week.batch])
    with tempfile.TemporaryDirectory(prefix="streamlearn-bench-") as place:
        note("a world with known truth")
        folder = copied_app(_SYNTHETIC, Path(place), _RETRIEVAL, _SETTINGS)
        result.figures |= _found(folder, _QUICK_SAMPLES if quick else _SAMPLES, note)
    result.ratios["found_to_oracle"] = result.figures["synthetic_hr_100"] / result.figures["synthetic_oracle_hr_100"]


def _samples_of(name: str, place: Path, days: int, samples: int) -> tuple[AppFolder, Iterable[SampleBatch]]:
    if name == "KuaiRand":
        folder, week = retrieving_week(place, days)
        return folder, [week.batch]
    folder = copied_app(_SYNTHETIC, place, _RETRIEVAL, _SETTINGS)
    return folder, (batch for batch, _ in _drawn(folder, options_of({"events": str(samples)})))


def _without(folder: AppFolder, batches: Iterable[SampleBatch]) -> tuple[AppFolder, Iterable[SampleBatch]]:
    """Return the application without retrieval, and its samples."""
    tables = folder.settings.tables
    tables = structs.replace(tables, rates={name: rate for name, rate in tables.rates.items() if name != TOWERS})
    app, settings = replace(folder.app, retrieval=None), structs.replace(folder.settings, tables=tables)
    fingerprint = app.samples_fingerprint
    return replace(folder, app=app, settings=settings), (
        replace(batch, item_ids=None, header=replace(batch.header, feature_fingerprint=fingerprint))
        for batch in batches
    )


def _used_us(folder: AppFolder, batches: Iterable[SampleBatch]) -> float:
    """Return the processor time of a whole trainer for a sample, of all threads, after a quarter of the samples."""
    write_samples(folder, batches)
    seen: list[tuple[int, float]] = []
    train(
        folder,
        threading.Event(),
        until=lambda topic: Until(ends_of(topic, "end")),
        show=lambda trainer: seen.append((trainer.tally.rows, time.process_time())),
    )
    rows, used_s = next(entry for entry in seen if entry[0] >= seen[-1][0] / 4)
    return 1e6 * (seen[-1][1] - used_s) / (seen[-1][0] - rows)


class _Steps:
    """A trainer's steps in this process, with towers if the application retrieves."""

    def __init__(self, folder: AppFolder, ends: ExitStack) -> None:
        app = folder.app
        client = ends.enter_context(own_tables(folder))
        self.library = None if app.retrieval is None else Library(app)
        learner = Learner(app, model_of(folder), folder.settings.trainer)
        rows = Rows(app, client, folder.settings.trainer.step_rows)
        self.steps, self._spec = own_steps(folder, client, self.library)(learner, rows), app.features

    def learn(self, columns: StepColumns) -> npt.NDArray[np.float32]:
        """Learn a step and return the logits that it had before."""
        now_ms, scale = int(columns.event_time_ms[-1]), self.steps.rate_scale
        packed = self.steps.pack(columns, now_ms)
        learned = self.steps.learn(packed)
        self.steps.push(columns, packed, learned, now_ms, scale)
        if self.library is not None:
            learn_shown(self.library, self._spec, columns)
        return learned.logits


def _auc_difference(folder: AppFolder, batches: Sequence[SampleBatch]) -> float:
    """Return the AUC of the first label with towers, less that without, of predictions before each step."""
    auc, step_rows = {}, folder.settings.trainer.step_rows
    for name, side in (("with", folder), ("without", _without(folder, ())[0])):
        with ExitStack() as ends:
            steps, logits, labels = _Steps(side, ends), list[Any](), list[Any]()
            for columns in _columns(batches, step_rows):
                logits.append(steps.learn(columns)[:, 0].astype(np.float64))
                labels.append(columns.positive & 1)
        positive = np.concatenate(labels) != 0
        auc[name] = auc_of(np.concatenate(logits), positive, np.ones(len(positive)))
    return auc["with"] - auc["without"]


def _columns(batches: Sequence[SampleBatch], step_rows: int) -> Iterator[StepColumns]:
    """Yield steps; the last samples of a batch that do not fill one are left out."""
    for batch in batches:
        every = np.uint32((1 << len(batch.labels)) - 1)
        for begin in range(0, len(batch) - step_rows + 1, step_rows):
            rows = np.arange(begin, begin + step_rows)
            learn = np.full(step_rows, every)
            yield columns_of(Step(1, (Piece(batch, rows, learn, np.zeros_like(learn)),), Reached((), ()), step_rows))


def _drawn(folder: AppFolder, options: Options) -> Iterator[tuple[SampleBatch, Any]]:
    """Yield the samples of a history, and their impressions."""
    chance = np.random.default_rng(7)
    for block, truth in SyntheticHistory(options).blocks_with_truth(_SPAN_MS):
        if block.impressions_rows:
            yield drawn_batch(folder.app, block, truth, chance), block.impressions


def _found(folder: AppFolder, samples: int, note: Note) -> dict[str, float]:
    """Return how often the last positives are found by the towers, by an oracle, and by what is shown most."""
    options = options_of({**_WORLD, "events": str(2 * samples)})
    ranks: dict[str, list[Float64s]] = {"": [], "_oracle": [], "_popular": []}
    oracle, learned, held = _Oracle(options), 0, 0
    with ExitStack() as ends:
        side = _Steps(folder, ends)
        for batch, shown in _drawn(folder, options):
            if learned < (1 - _HELD_SHARE) * samples:
                for columns in _columns([batch], folder.settings.trainer.step_rows):
                    side.learn(columns)
                learned += len(batch)
                continue
            if held > _HELD_SHARE * samples:
                break
            held += len(batch)
            positive = np.flatnonzero(batch.labels[0].value)
            for some in np.array_split(positive, 1 + len(positive) // _AT_ONCE):
                ranks["_oracle"].append(oracle.ranks(batch, shown, some))
                ranks["_popular"].append(oracle.popular(shown, some))
                ranks[""].append(_tower_ranks(side, batch, some))
    found = {name: np.concatenate(of) for name, of in ranks.items()}
    note(f"{len(found['']):,} positives after {learned:,} samples")
    return {f"synthetic{name}_hr_{_TOP}": float(np.mean(of < _TOP)) for name, of in found.items()}


def _tower_ranks(side: _Steps, batch: SampleBatch, rows: npt.NDArray[np.int64]) -> Float64s:
    """Return how many items the towers rank before each positive."""
    steps, library = side.steps, side.library
    assert isinstance(steps, TowerSteps)
    assert library is not None
    every = np.full(len(rows), np.uint32((1 << len(batch.labels)) - 1))
    step = Step(1, (Piece(batch, rows, every, np.zeros_like(every)),), Reached((), ()), len(rows))
    positives = steps.rows.positives(columns_of(step), np.arange(len(rows)))
    packed = steps.rows.pack_users(positives.users, positives.requests, at="newest")
    users = steps.state.learner.users(*packed)[positives.user_index]
    view = library.view()
    vectors = steps.state.learner.items(steps.rows.pack_items(view.items().features, len(view.keys)))
    own = positives.keys
    at = np.minimum(np.searchsorted(view.keys, own), len(view.keys) - 1)
    logits = users @ vectors.T
    before: Float64s = np.count_nonzero(logits > logits[np.arange(len(rows)), at][:, None], axis=1).astype(np.float64)
    before[view.keys[at] != own] = len(view.keys)
    return before


class _Oracle:
    """Ranks items by the true chance that one is shown and then clicked."""

    def __init__(self, options: Options) -> None:
        self._world, self._items = World(options), options.items
        drawn = self._world.draw_places(np.random.default_rng(8), _DRAWS)
        self._shown = np.log(np.bincount(drawn, minlength=options.items) + 1.0)

    def ranks(self, batch: SampleBatch, shown: Any, rows: npt.NDArray[np.int64]) -> Float64s:
        """Return how many items are before each positive."""
        request = batch.request_index[rows]
        users, times = shown["user.user_id"][request], shown["event_time_ms"][request]
        ends, recent = shown["user.recent_categories[]"], shown["user.recent_categories"]
        categories, none = self._world.items["category"], np.zeros(self._items, np.int64)
        before = []
        for user, time_ms, at, own in zip(users, times, request, shown["items.item_id"][rows], strict=True):
            counts = np.bincount(recent[ends[at] : ends[at + 1]], minlength=int(categories.max()) + 1)
            everyone = np.full(self._items, user)
            told = Shown(everyone, np.arange(self._items), none, counts[categories], np.full(self._items, time_ms))
            score = self._shown - np.logaddexp(0, -self._world.click_logit(told).astype(np.float64))
            before.append(np.count_nonzero(score > score[own]))
        return np.array(before, np.float64)

    def popular(self, shown: Any, rows: npt.NDArray[np.int64]) -> Float64s:
        """Return how many items are shown more often than each positive."""
        own = self._shown[shown["items.item_id"][rows]]
        before: Float64s = np.count_nonzero(self._shown > own[:, None], axis=1).astype(np.float64)
        return before
