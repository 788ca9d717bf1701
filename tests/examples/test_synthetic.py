"""The synthetic world keeps its promises: repeatable, true to its probabilities, disturbed as asked."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from examples.synthetic.history import SyntheticHistory, Truth, bayes_log_loss
from examples.synthetic.options import options_of
from examples.synthetic.pending_rows import PendingRows
from examples.synthetic.recent import Clicks, Recent
from examples.synthetic.speed import generator_events_per_s
from examples.synthetic.world import RECENT, Shown, World
from streamlearn.apps import load_app
from streamlearn.errors import ConfigError
from streamlearn.events import EventDecoder, EventEncoder, join_rows
from streamlearn.replay import HistoryBlock, load_history

FOLDER = Path(__file__).parents[2] / "examples" / "synthetic"
START_MS = 1_700_000_000_000
WINDOW_MS = 600_000
SMALL = {"users": "2000", "items": "500", "rate": "2000", "events": "60000"}
UNTIDY = {**SMALL, "duplicates": "0.03", "disorder_ms": "3000", "stragglers": "0.01", "straggler_ms": "20000"}
Columns = dict[str, npt.NDArray[Any]]


def _blocks(options: dict[str, str], span_ms: int = 60_000) -> list[tuple[HistoryBlock, Truth]]:
    return list(SyntheticHistory(options_of(options)).blocks_with_truth(span_ms))


def _joined(blocks: list[tuple[HistoryBlock, Truth]]) -> tuple[Columns, Columns, Truth]:
    impressions = join_rows([block.impressions for block, _ in blocks if block.impressions_rows])
    actions = join_rows([block.actions for block, _ in blocks if block.actions_rows])
    truth = Truth(*(np.concatenate(columns) for columns in zip(*(truth for _, truth in blocks), strict=True)))
    return impressions, actions, truth


def _ids(columns: Columns) -> npt.NDArray[np.bytes_]:
    return columns["request_id"].view("S16")


def _item_keys(impressions: Columns) -> npt.NDArray[np.bytes_]:
    """Request and item of every item shown."""
    ids = np.repeat(_ids(impressions), np.diff(impressions["items[]"]))
    return np.char.add(ids, impressions["items.item_id"].astype("S12"))


def _done(impressions: Columns, actions: Columns, action: bytes) -> npt.NDArray[np.bool_]:
    """Whether that was done to each item shown."""
    whole, at = actions["action"].tobytes(), actions["action$"].tolist()
    chosen = np.array([whole[begin:end] == action for begin, end in pairwise(at)])
    keys = np.char.add(_ids(actions), actions["item_id"].astype("S12"))
    found: npt.NDArray[np.bool_] = np.isin(_item_keys(impressions), keys[chosen])
    return found


@pytest.fixture(scope="module")
def tidy() -> tuple[Columns, Columns, Truth]:
    return _joined(_blocks({**SMALL, "events": "150000"}))


def _same(one: Columns, other: Columns) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("options", [SMALL, {**UNTIDY, "poison": "5..10"}], ids=["tidy", "untidy"])
def test_events_are_the_same_again_and_however_they_are_cut(options: dict[str, str]) -> None:
    whole = _joined(_blocks(options, 10**9))
    for span_ms in (777, 60_000):
        blocks = _blocks(options, span_ms)
        impressions, actions, truth = _joined(blocks)
        assert _same(impressions, whole[0])
        assert _same(actions, whole[1])
        assert all(np.array_equal(one, other) for one, other in zip(truth, whole[2], strict=True))
        reached_ms = START_MS
        for block, _ in blocks:
            assert 0 < block.until_ms - reached_ms <= span_ms
            reached_ms = block.until_ms


def test_another_seed_gives_other_events() -> None:
    one, other = (_joined(_blocks({**SMALL, "seed": seed}))[0] for seed in ("1", "2"))
    assert not np.isin(_ids(one), _ids(other)).any()
    assert not np.array_equal(one["user.user_id"][:1000], other["user.user_id"][:1000])


def test_as_many_events_come_as_fast_as_asked(tidy: tuple[Columns, Columns, Truth]) -> None:
    impressions, actions, _ = tidy
    times = impressions["event_time_ms"]
    assert len(times) + len(actions["event_time_ms"]) == pytest.approx(150_000, rel=0.05)
    assert (times[-1] - times[0]) / 1000 == pytest.approx(150_000 / 2000, rel=0.05)
    assert (np.diff(times) >= 0).all()
    counts = np.bincount(np.diff(impressions["items[]"])) / len(times)
    np.testing.assert_allclose(counts, [0, 0.7, 0.2, 0.1], atol=0.01)


def test_no_request_shows_an_item_twice(tidy: tuple[Columns, Columns, Truth]) -> None:
    keys = _item_keys(tidy[0])
    assert len(np.unique(_ids(tidy[0]))) == len(_ids(tidy[0]))
    assert len(np.unique(keys)) == len(keys)


@pytest.mark.parametrize("action", ["click", "long_view"])
def test_what_is_done_agrees_with_the_true_probabilities(tidy: tuple[Columns, Columns, Truth], action: str) -> None:
    impressions, actions, truth = tidy
    done = _done(impressions, actions, action.encode())
    probability = getattr(truth, action).astype(np.float64)
    # Over all, and in each tenth of the items by their probability: within 4 standard deviations.
    for part in (np.arange(len(done)), *np.array_split(np.argsort(probability), 10)):
        expected, variance = probability[part].sum(), (probability[part] * (1 - probability[part])).sum()
        assert abs(done[part].sum() - expected) < 4 * np.sqrt(variance) + 1
    assert probability.std() > 0.03


def test_the_bayes_log_loss_is_what_the_truth_scores_and_others_do_not(
    tidy: tuple[Columns, Columns, Truth],
) -> None:
    impressions, actions, truth = tidy
    clicked = _done(impressions, actions, b"click")

    def log_loss(probability: npt.NDArray[np.floating[Any]]) -> float:
        return float(-np.where(clicked, np.log(probability), np.log1p(-probability)).mean())

    best = bayes_log_loss(truth.click)
    assert log_loss(truth.click.astype(np.float64)) == pytest.approx(best, rel=0.03)
    assert log_loss(np.full(len(clicked), clicked.mean())) > best * 1.1


def test_actions_follow_their_impressions_and_few_are_late(tidy: tuple[Columns, Columns, Truth]) -> None:
    impressions, actions, _ = tidy
    order = np.argsort(_ids(impressions))
    of = order[np.searchsorted(_ids(impressions)[order], _ids(actions))]
    delay_ms = actions["event_time_ms"] - impressions["event_time_ms"][of]
    assert (_ids(impressions)[of] == _ids(actions)).all()
    assert (delay_ms >= 0).all()
    assert (delay_ms <= 2 * WINDOW_MS).all()
    assert (delay_ms > WINDOW_MS).mean() == pytest.approx(0.01, abs=0.004)
    assert 0.02 < (delay_ms > 60_000).mean() < 0.15


def test_every_late_share_can_be_asked_for() -> None:
    for share in ("0", "1"):
        impressions, actions, _ = _joined(_blocks({**SMALL, "events": "5000", "late_share": share}))
        time_of = dict(zip(_ids(impressions).tolist(), impressions["event_time_ms"].tolist(), strict=True))
        shown = np.array([time_of[request] for request in _ids(actions).tolist()])
        assert ((actions["event_time_ms"] - shown > WINDOW_MS) == (share == "1")).all()


def test_duplicates_are_as_many_as_asked_and_equal() -> None:
    impressions, actions, _ = _joined(_blocks(UNTIDY))
    _, counts = np.unique(_ids(impressions), return_counts=True)
    assert set(counts) == {1, 2}
    assert (counts == 2).mean() == pytest.approx(0.03, abs=0.005)
    whole = np.stack(
        [_ids(actions), actions["item_id"].astype("S16"), actions["action$"][1:] - actions["action$"][:-1]]
    )
    _, counts = np.unique(whole, axis=1, return_counts=True)
    assert (counts == 2).mean() == pytest.approx(0.03, abs=0.015)
    order = np.argsort(_ids(impressions), kind="stable")
    twins = order[:-1][_ids(impressions)[order[1:]] == _ids(impressions)[order[:-1]]]
    others = order[1:][_ids(impressions)[order[1:]] == _ids(impressions)[order[:-1]]]
    assert (impressions["event_time_ms"][twins] == impressions["event_time_ms"][others]).all()
    assert (impressions["user.user_id"][twins] == impressions["user.user_id"][others]).all()


def test_disorder_stays_within_its_bound_and_below_no_watermark() -> None:
    options = {**SMALL, "disorder_ms": "3000"}
    watermark_ms = 0
    for block, _ in _blocks(options, 500):
        for columns in (block.impressions, block.actions):
            times = columns.get("event_time_ms", np.zeros(0, np.int64))
            assert (times >= watermark_ms).all()
            assert (times < block.until_ms).all()
        watermark_ms = block.watermark_ms
        assert watermark_ms == block.until_ms - 3000
    times = _joined(_blocks(options))[0]["event_time_ms"]
    assert (np.diff(times) < 0).mean() > 0.3
    assert (np.maximum.accumulate(times) - times).max() <= 3000


def test_stragglers_alone_are_behind_the_watermark() -> None:
    behind = events = 0
    watermark_ms = 0
    for block, _ in _blocks({**UNTIDY, "straggler_ms": "20000"}, 100):
        for columns in (block.impressions, block.actions):
            times = columns.get("event_time_ms", np.zeros(0, np.int64))
            behind += int((times < watermark_ms).sum())
            events += len(times)
            assert (times >= block.until_ms - 3000 - 20_000 - 100).all()
        watermark_ms = block.watermark_ms
    assert behind / events == pytest.approx(0.01, abs=0.003)


@pytest.mark.parametrize(("kind", "wanted"), [("flip", 0.95), ("random", 0.5)])
def test_labels_are_poisoned_within_the_interval_alone(kind: str, wanted: float) -> None:
    options = {**SMALL, "late_share": "0"}
    clean = _joined(_blocks(options))
    impressions, actions, truth = _joined(_blocks({**options, "poison": "10..15", "poison_kind": kind}))
    since_s = np.repeat((impressions["event_time_ms"] - START_MS) / 1000, np.diff(impressions["items[]"]))
    inside = (since_s >= 10) & (since_s < 15)
    assert (truth.poisoned == inside).all()
    assert not clean[2].poisoned.any()
    clicked = _done(impressions, actions, b"click")
    assert clicked[inside].mean() == pytest.approx(wanted, abs=0.03)
    outside = truth.click[~inside].astype(np.float64)
    deviation = np.sqrt((outside * (1 - outside)).sum())
    assert abs(clicked[~inside].sum() - outside.sum()) < 4 * deviation
    before = since_s < 10
    assert (clicked[before] == _done(clean[0], clean[1], b"click")[before]).all()
    assert (truth.click[before] == clean[2].click[before]).all()


def test_recent_items_were_clicked_before_by_that_user(tidy: tuple[Columns, Columns, Truth]) -> None:
    impressions, actions, _ = tidy
    user_of = dict(zip(_ids(impressions).tolist(), impressions["user.user_id"].tolist(), strict=True))
    first_ms: dict[tuple[int, int], int] = {}
    for request, item, time_ms in zip(
        _ids(actions).tolist(), actions["item_id"].tolist(), actions["event_time_ms"].tolist(), strict=True
    ):
        key = (user_of[request], item)
        first_ms[key] = min(time_ms, first_ms.get(key, time_ms))
    counts = np.diff(impressions["user.recent_items[]"])
    users = np.repeat(impressions["user.user_id"], counts).tolist()
    times = np.repeat(impressions["event_time_ms"], counts).tolist()
    assert counts.max() == RECENT
    assert len(users) > 10_000
    for user, item, time_ms in zip(users, impressions["user.recent_items"].tolist(), times, strict=True):
        assert first_ms[user, item] < time_ms


def test_a_ring_of_recent_clicks_gives_the_newest_oldest_first() -> None:
    recent = Recent(3)
    time_ms = np.array([5, 1, 3, 9, *range(20, 32)])
    user = np.array([0, 0, 2, 0, *[1] * 12])
    recent.add(Clicks(time_ms, user, time_ms * 10, time_ms % 4))
    recent.advance(9)
    recent.advance(100)
    items, categories, offsets = recent.sequences(np.array([0, 1, 2, 1]))
    rows = [items[begin:end].tolist() for begin, end in pairwise(offsets.tolist())]
    newest = [10 * time for time in range(24, 32)]
    assert rows == [[10, 50, 90], newest, [30], newest]
    assert (categories == items // 10 % 4).all()


def test_new_items_arrive_and_take_over_popularity() -> None:
    options = {**SMALL, "rate": "20", "new_items": "1", "events": "60000"}
    impressions, _, _ = _joined(_blocks(options, 10**9))
    items, offsets = impressions["items.item_id"], impressions["items[]"]
    hours = (np.repeat(impressions["event_time_ms"], np.diff(offsets)) - START_MS) / 3_600_000
    early, late = items[hours < 0.1], items[hours > 0.75]
    assert early.max() < 500 * 1.2
    assert (late >= 500).mean() > 0.5
    # A chunk later than it could, at most.
    assert (items < 500 * (2 + hours)).all()
    assert (items >= 500 * (hours - 0.1) - 1).all()


def test_the_appeal_of_items_drifts() -> None:
    world = World(options_of({**SMALL, "drift_s": "1000"}))
    place = np.arange(400)
    none = np.zeros(400, np.int64)
    shown = Shown(none, place, none, none, np.full(400, START_MS))
    begin, half, whole = (
        world.click_logit(shown._replace(time_ms=shown.time_ms + since_ms)) for since_ms in (0, 500_000, 1_000_000)
    )
    np.testing.assert_allclose(begin, whole, atol=1e-4)
    assert np.abs(half - begin).mean() > 0.5


def test_truth_is_more_than_a_sum_of_a_user_and_an_item_part() -> None:
    world = World(options_of(SMALL))
    user, place = (grid.reshape(-1) for grid in np.meshgrid(np.arange(200), np.arange(200), indexing="ij"))
    none = np.zeros(len(user), np.int64)
    logit = world.click_logit(Shown(user, place, none, none, none + START_MS)).reshape(200, 200)
    additive = logit.mean(0)[None] + logit.mean(1)[:, None] - logit.mean()
    assert (logit - additive).std() > 0.8


def test_popular_users_and_items_are_few(tidy: tuple[Columns, Columns, Truth]) -> None:
    impressions, _, _ = tidy
    for name in ("user.user_id", "items.item_id"):
        counts = np.sort(np.bincount(impressions[name]))[::-1]
        assert counts[:20].sum() > 0.3 * counts.sum()
        assert (counts > 0).sum() > 400


def test_all_of_it_is_valid_and_reads_back() -> None:
    folder = load_app(FOLDER)
    (block, *_) = SyntheticHistory(options_of({**SMALL, "events": "2000"})).blocks(10**9)
    encoder = EventEncoder(folder.app, folder.settings.events)
    shown_ms = np.zeros(block.impressions_rows, np.int64)
    encoded = encoder.impressions({**block.impressions, "shown_wall_ms": shown_ms}, block.impressions_rows)
    whole = encoded.buffer.tobytes()
    events = EventDecoder(folder.app, folder.settings.events).decode(
        [whole[begin:end] for begin, end in pairwise(encoded.offsets.tolist())]
    )
    assert (len(events.impressions), events.failures) == (block.impressions_rows, ())
    assert all(np.array_equal(events.impressions.columns[name], block.impressions[name]) for name in block.impressions)


def test_memory_does_not_grow_with_events() -> None:
    def peak_bytes(events: int) -> int:
        tracemalloc.start()
        try:
            for _ in SyntheticHistory(options_of({**SMALL, "rate": "200", "events": str(events)})).blocks(60_000):
                pass
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak_bytes(800_000) < 1.2 * peak_bytes(200_000) < 100 << 20


def test_what_waits_is_let_go_once_in_order_and_kept_in_few_runs() -> None:
    rng, waiting = np.random.default_rng(8), PendingRows()
    under_way: list[tuple[int, int]] = []
    number = 0
    for now_ms in range(0, 60_000, 100):
        arrive_ms = now_ms + (rng.pareto(0.7, rng.integers(0, 20)) * 50).astype(np.int64)
        rows = np.arange(number, number + len(arrive_ms))
        number += len(rows)
        under_way += zip(arrive_ms.tolist(), rows.tolist(), strict=True)
        waiting.put({"row": rows}, arrive_ms)
        assert waiting.last_ms == max((arrive for arrive, _ in under_way), default=None)
        parts = waiting.take(now_ms + 100)
        found = [
            pair for columns, part_ms in parts for pair in zip(part_ms.tolist(), columns["row"].tolist(), strict=True)
        ]
        assert all((np.diff(part_ms) >= 0).all() for _, part_ms in parts)
        assert sorted(found) == sorted(pair for pair in under_way if pair[0] < now_ms + 100)
        under_way = [pair for pair in under_way if pair[0] >= now_ms + 100]
        assert len(parts) <= 16
    assert len(under_way) > 100


def test_the_speed_is_measured_over_every_event() -> None:
    found = generator_events_per_s({"events": "20000"})
    assert found["events"] == pytest.approx(20_000, rel=0.1)
    assert found["events_per_s"] == pytest.approx(found["events"] / found["seconds"])
    assert found["generated_events_per_s"] > found["events_per_s"]
    assert 230 < found["impression_bytes"] < 300


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sed": "1"}, "no option 'sed'"),
        ({"events": "many"}, "option events is 'many'"),
        ({"duplicates": "1.5"}, "option duplicates"),
        ({"rate": "nan"}, "option rate"),
        ({"poison": "9..3"}, "option poison"),
        ({"poison": "9"}, "option poison"),
        ({"poison_kind": "cyanide"}, "option poison_kind"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_history(FOLDER, options)
