"""What computed columns are worth: KuaiRand with and without them, and a world whose truth they must find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.freshness import FreshModel, scored
from benchmarks.histories.freshness_rows import read_week
from benchmarks.histories.learning_samples import truths
from benchmarks.learning_loss import Learning, Losses
from streamlearn.apps import AppFolder, load_app
from streamlearn.features import Last
from streamlearn.publisher.logit_scores import auc_of

__all__ = ["kuairand_figures", "recent_figures"]

Note = Callable[[str], None]
Float64s = npt.NDArray[np.float64]

_EXAMPLES = Path(__file__).parents[2] / "examples"
_DAYS, _QUICK_DAYS, _LEARNED_DAYS = (4, 6), (2, 2), 1
_DRAWS = 200
_CLICKS = {"recent_items": "item_id", "recent_categories": "category"}
# The truth knows clicks up to a chunk of traffic late. At 10,000 events a second that is 16,384 requests, in which the
# busiest users click more often than a history is long; at 10 it is a minute. The world changes as much by request.
_SLOWLY = {"rate": "10", "drift_s": "7_200_000", "new_items": "0.0001"}


def kuairand_figures(note: Note, *, quick: bool) -> dict[str, float]:
    """Return the AUC of clicks with computed columns over that without, and what a leak would claim.

    The twin that leaks has the same columns, evaluated one window of the labels later. The interval has 95 % of the
    gains of rows that are drawn again, with the rows of a user together.
    """
    folder, days = load_app(_EXAMPLES / "kuairand", []), _QUICK_DAYS if quick else _DAYS
    late_ms = 1_000 * max(group.window_s for group in folder.app.groups)
    chances, positive, users = {}, np.zeros(0, np.bool_), np.zeros(0, np.uint64)
    variants = {"with": (folder, None), "without": (_without(folder), None), "leaking": (folder, -late_ms)}
    for name, (variant, lag_ms) in variants.items():
        week = read_week(variant, lag_ms=lag_ms)
        logits = scored(FreshModel(variant, week), week, days, _LEARNED_DAYS).logits["1min"][:, 0]
        rows = np.flatnonzero(~np.isnan(logits))
        chances[name], positive = logits[rows].astype(np.float64), week.batch.labels[0].value[rows] != 0
        users = week.batch.user.slots["user_id"].keys[week.batch.request_index[rows]]
        note(f"KuaiRand {name}: AUC {auc_of(chances[name], positive, np.ones(len(rows))):.4f}")
    gains = _drawn_gains(chances["with"], chances["without"], positive, users)
    auc = {name: auc_of(of, positive, np.ones(len(positive))) for name, of in chances.items()}
    return {
        "kuairand_auc": auc["with"],
        "kuairand_auc_gain": auc["with"] - auc["without"],
        "kuairand_auc_gain_low": float(np.quantile(gains, 0.025)),
        "kuairand_auc_gain_high": float(np.quantile(gains, 0.975)),
        "kuairand_auc_gain_leaking": auc["leaking"] - auc["without"],
    }


def _without(folder: AppFolder) -> AppFolder:
    features = folder.app.features
    slots = tuple(slot for slot in features.slots if slot.computed is None)
    dense = tuple(column for column in features.dense if column.computed is None)
    return replace(folder, app=replace(folder.app, features=replace(features, slots=slots, dense=dense)))


def _drawn_gains(
    one: Float64s, other: Float64s, positive: npt.NDArray[np.bool_], users: npt.NDArray[np.uint64]
) -> list[float]:
    """Return the gain of one AUC over the other for users that are drawn again and again."""
    rng, (_, number) = np.random.default_rng(1), np.unique(users, return_inverse=True)
    gains = []
    for _ in range(_DRAWS):
        weight = rng.poisson(1.0, int(number.max()) + 1)[number].astype(np.float64)
        gains.append(auc_of(one, positive, weight) - auc_of(other, positive, weight))
    return gains


def recent_figures(note: Note, *, quick: bool) -> dict[str, float]:
    """Return the log loss with `Last(8)` of clicks, relative to that with the history that the truth hangs on."""
    folder, samples = load_app(_EXAMPLES / "synthetic", []), 100_000 if quick else 2_000_000
    slots = tuple(
        replace(slot, computed=Last(_CLICKS[slot.name], "click")) if slot.name in _CLICKS else slot
        for slot in folder.app.features.slots
    )
    computed = replace(folder, app=replace(folder.app, features=replace(folder.app.features, slots=slots)))
    losses = {}
    for name, variant in (("truth", folder), ("last", computed)):
        learning, found = Learning(variant), Losses(len(variant.app.labels))
        for batch, truth in truths(variant.app, samples, _SLOWLY):
            found.add(learning.learn(batch), truth)
        # Of the last half, where the model has learned.
        losses[name] = 1 + float(found.over_best(samples // 2)[0])
        note(f"synthetic with its {name}: log loss {losses[name]:.4f} of the optimum")
    return {"last_loss_to_truth": losses["last"] / losses["truth"], "last_loss_over_bayes": losses["last"] - 1}
