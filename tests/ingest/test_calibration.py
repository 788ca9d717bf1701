"""Sampled negatives and corrections leave young items calibrated; positives sent ahead of their negatives would not.

Clicks are simulated: everybody clicks at one known rate, after a delay that is now and then longer than the wait. Items
are new, and those younger than the window are looked at. What is learned is one number, by the rule that training has:
the loss is that of sigmoid(z - ln r) with r the share of negatives kept, corrections take back the negative they
correct, and what is predicted is sigmoid(z). Of one number the loss is least in closed form, so that no learner stands
between the samples and what is asserted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest

from streamlearn.features import Label, LabelGroup
from streamlearn.ingest import JoinCore, JoinPlan
from streamlearn.ingest.join.columns import ActionColumns, ImpressionColumns, JoinedRows
from streamlearn.marks import MarkedRows, Marks
from streamlearn.settings.join import JoinSettings

TRUE_RATE, KEPT = 0.08, 0.2
WAIT_S, WINDOW_S, MEAN_DELAY_S = 60, 600, 30
SHOWN = 600_000
# Of the true rate: chance, and of the youngest the clicks that are yet to come.
TOLERANCE = 0.1

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class World:
    """Impressions of one item each, and who clicked when."""

    shown_ms: Int64s
    clicked_ms: Int64s
    who: Int64s

    @classmethod
    def make(cls) -> World:
        """Impressions over three windows, and clicks at the true rate, all of them within the window."""
        rng = np.random.default_rng(11)
        shown_ms = np.sort(rng.integers(0, 3_000 * WINDOW_S, SHOWN))
        who = np.flatnonzero(rng.random(SHOWN) < TRUE_RATE)
        delays_ms = rng.exponential(1_000 * MEAN_DELAY_S, len(who)).astype(np.int64)
        delays_ms = np.minimum(delays_ms, 1_000 * WINDOW_S)
        return cls(shown_ms, shown_ms[who] + delays_ms, who)


def plan() -> JoinPlan:
    groups, labels = (LabelGroup("fast", WAIT_S, WINDOW_S),), (Label("click", "click", "fast", KEPT),)
    return JoinPlan(groups, labels, "topic", JoinSettings())


def _ids(numbers: Int64s) -> tuple[npt.NDArray[np.uint8], Int64s]:
    return numbers.astype(np.int64).view(np.uint8), np.arange(len(numbers) + 1) * 8


def core_of(world: World, until_ms: int) -> JoinCore:
    """A join of all that has happened until a time, which is its watermark."""
    core, shown = JoinCore(plan()), np.flatnonzero(world.shown_ms < until_ms)
    ids, at = _ids(shown)
    n, zeros = len(shown), np.zeros(len(shown), np.int32)
    nothing = np.zeros(n + 1, np.int64)
    core.add_impressions(
        ImpressionColumns(
            ids, at, world.shown_ms[shown], zeros, shown, zeros, shown.astype(np.uint64), np.arange(n + 1),
            np.zeros(0, np.uint8), nothing,
        )
    )  # fmt: skip
    done = np.flatnonzero(world.clicked_ms < until_ms)
    ids, at = _ids(world.who[done])
    zeros = np.zeros(len(done), np.int32)
    core.add_actions(
        ActionColumns(
            ids, at, world.clicked_ms[done], zeros, done, zeros, world.who[done].astype(np.uint64),
            zeros.astype(np.uint8), np.ones(len(done), np.float32), np.full(len(done), np.nan, np.float32),
        )
    )  # fmt: skip
    core.advance(until_ms)
    return core


def predicted(positives: float, negatives: float, share: float) -> float:
    """What is predicted where the loss of sigmoid(z - ln r) over all that was learned is least."""
    # d/dz: p = sigmoid(z - ln r) = positives / (positives + negatives), so e^z = r * positives / negatives.
    odds = share * positives / negatives
    return odds / (1 + odds)


def learned(rows: JoinedRows, offsets: Int64s) -> tuple[int, int]:
    """Positives and negatives of what marks let a trainer learn; a correction takes its negative back."""
    marks, index = Marks(1), rows.request_index
    zeros = np.zeros(len(offsets), np.int32)
    settled = marks.settle(
        1,
        MarkedRows("topic", zeros, offsets, np.zeros(len(offsets), np.int64), index, rows.item_index, rows.settles,
                   rows.labels),
    )  # fmt: skip
    first, corrected = settled.learn == 1, settled.correct == 1
    positives = int((first & (rows.labels == 1)).sum()) + int(corrected.sum())
    return positives, int((first & (rows.labels == 0)).sum()) - int(corrected.sum())


def test_what_is_shown_longer_ago_than_a_window_is_calibrated() -> None:
    world = World.make()
    taken = core_of(world, 1 << 50).take(10_000_000)
    positives, negatives = learned(taken.rows, taken.requests.offset)
    assert positives == len(world.who)
    # Of negatives about the share is kept; and of late positives only some had a negative that was kept.
    assert negatives == pytest.approx(KEPT * (SHOWN - len(world.who)), rel=0.02)
    assert predicted(positives, negatives, KEPT) == pytest.approx(TRUE_RATE, rel=TOLERANCE / 4)
    # Without the rate in the loss it would be far off.
    assert predicted(positives, negatives, 1.0) > 3 * TRUE_RATE


def test_items_younger_than_the_window_are_calibrated_and_would_not_be_with_positives_sent_ahead() -> None:
    world, now_ms = World.make(), 2_000 * WINDOW_S
    taken = core_of(world, now_ms).take(10_000_000)
    shown_ms = taken.requests.event_time_ms
    for age_s, too_high in ((2 * WAIT_S, 1.4), (5 * WAIT_S, 1.1)):
        # Items that were first shown so long ago, and never before.
        young = shown_ms[taken.rows.request_index] >= now_ms - 1_000 * age_s
        rows = JoinedRows(**{name: column[young] for name, column in vars(taken.rows).items()})
        positives, negatives = learned(rows, taken.requests.offset)
        assert (rows.labels[rows.settle_time_ms > shown_ms[rows.request_index] + 1_000 * WAIT_S] == 1).sum() > 50
        assert predicted(positives, negatives, KEPT) == pytest.approx(TRUE_RATE, rel=TOLERANCE)
        # Clicks at once, and their negatives after the wait: the youngest bring clicks alone.
        clicks = (world.shown_ms[world.who] >= now_ms - 1_000 * age_s) & (world.clicked_ms < now_ms)
        assert predicted(int(clicks.sum()), negatives, KEPT) > too_high * TRUE_RATE


def test_of_items_younger_than_the_wait_nothing_is_said_and_positives_ahead_would_say_that_everybody_clicks() -> None:
    world, now_ms = World.make(), 2_000 * WINDOW_S
    taken = core_of(world, now_ms).take(10_000_000)
    assert taken.requests.event_time_ms.max() < now_ms - 1_000 * WAIT_S
    clicks = (world.shown_ms[world.who] >= now_ms - 1_000 * WAIT_S) & (world.clicked_ms < now_ms)
    assert clicks.sum() > 500


def test_the_negatives_that_are_kept_are_the_same_whatever_was_read_first() -> None:
    world, now_ms = World.make(), 2_000 * WINDOW_S
    whole, half = (core_of(world, until_ms).take(10_000_000) for until_ms in (1 << 50, now_ms))
    kept = [one.requests.offset[one.rows.request_index[one.rows.labels == 0]] for one in (whole, half)]
    settled = world.shown_ms < now_ms - 1_000 * WAIT_S
    assert np.array_equal(np.sort(kept[0][settled[kept[0]]]), np.sort(kept[1]))
