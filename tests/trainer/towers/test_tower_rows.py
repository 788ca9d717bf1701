"""TowerRows: which positives of a step the towers learn, among which items, and what is pushed for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamlearn.apps import AppFolder
from streamlearn.features.retrieval import TOWERS
from streamlearn.library.library import Library
from streamlearn.ps import Epoch, PsClient
from streamlearn.trainer.columns import StepColumns, columns_of
from streamlearn.trainer.intake.item_feed import learn_shown
from streamlearn.trainer.intake.message import Reached
from streamlearn.trainer.step import Piece, Step
from streamlearn.trainer.towers import tower_rows
from streamlearn.trainer.towers.tower_rows import TowerRows
from tests.trainer.runs import local_client
from tests.trainer.stream import messages_of
from tests.trainer.towers.towered import towered_folder

CLICK = np.uint32(1)


@pytest.fixture
def folder(tmp_path: Path) -> AppFolder:
    return towered_folder(tmp_path)


@pytest.fixture
def client(folder: AppFolder) -> Iterator[PsClient]:
    with local_client(folder) as client:
        client.restore(Epoch(1), None)
        yield client


def rows_of(
    folder: AppFolder, client: PsClient, settings: Any = None, *, is_padded: bool = False
) -> tuple[TowerRows, Library]:
    items, given = Library(folder.app), {"retrieval": {"negatives": 30}} | (settings or {})
    return TowerRows(towered_folder(folder.folder, given), client, items, is_padded=is_padded), items


def step_of(folder: AppFolder, number: int = 0, *, corrected: int = 0) -> StepColumns:
    """A step of a message; the last rows correct their labels, the others are learned."""
    _, batch = messages_of(folder.app, number + 1)[-1]
    learn, correct = (np.zeros(len(batch), np.uint32) for _ in range(2))
    learn[: len(batch) - corrected], correct[len(batch) - corrected :] = 3, 3
    piece = Piece(batch, np.arange(len(batch)), learn, correct)
    return columns_of(Step(1, (piece,), Reached((), ()), len(batch)))


def test_the_positives_of_the_label_are_learned_corrections_among_them(folder: AppFolder, client: PsClient) -> None:
    rows, items = rows_of(folder, client)
    columns = step_of(folder, corrected=10)
    columns = replace(columns, weights=np.random.default_rng(3).random(columns.weights.shape, np.float32))
    learn_shown(items, folder.app.features, step_of(folder, 1))
    packed = rows.pack(columns)
    assert packed is not None
    positive = np.flatnonzero(columns.positive & CLICK)
    assert 0 < len(positive) < len(columns)
    assert any(row >= len(columns) - 10 for row in positive)
    keys = columns.item.slots["video_id"].keys
    assert packed.keys[packed.item_index].tolist() == keys[positive].tolist()
    users = packed.users.slots["user_id"].keys[packed.user_index]
    assert users.tolist() == columns.user.slots["user_id"].keys[columns.request_index[positive]].tolist()
    assert packed.weight.tolist() == columns.weights[positive, 0].tolist()
    assert packed.event_time_ms.tolist() == columns.event_time_ms[positive].tolist()
    assert packed.requests == len(set(columns.request_index[positive].tolist())) == len(packed.user_flat)


def test_items_are_those_of_positives_and_others_from_the_library_each_once(
    folder: AppFolder, client: PsClient
) -> None:
    rows, items = rows_of(folder, client)
    before, columns = step_of(folder, 1), step_of(folder)
    learn_shown(items, folder.app.features, before)
    learn_shown(items, folder.app.features, columns)  # some of the step's own are drawn, too
    packed = rows.pack(columns)
    assert packed is not None
    keys = columns.item.slots["video_id"].keys
    own = set(keys[columns.positive & CLICK != 0].tolist())
    assert set(packed.keys[: packed.own].tolist()) == own
    others = packed.keys[packed.own :].tolist()
    assert len(others) > 5
    assert len(set(others)) == len(others)
    assert not own & set(others)
    assert packed.drawn == pytest.approx(1 - (1 - 1 / len(items)) ** 30)
    assert len(packed.items.slots["video_id"].keys) == len(packed.keys) == len(packed.item_flat)
    assert packed.items.slots["video_id"].keys.tolist() == packed.keys.tolist()
    known = rows.items.sample(len(items) * 20, 0)[1]
    tags = known.slots["tags"]
    assert tags.offsets is not None
    drawn = packed.items.slots["tags"].take(np.arange(packed.own, len(packed.keys)))
    places = [known.slots["video_id"].keys.tolist().index(key) for key in others]
    assert drawn.keys.tolist() == tags.take(np.array(places)).keys.tolist()


def test_a_step_that_is_learned_again_draws_the_same_items_and_another_one_others(
    folder: AppFolder, client: PsClient
) -> None:
    rows, items = rows_of(folder, client)
    for number in range(6):
        learn_shown(items, folder.app.features, step_of(folder, number))
    first, again, other = rows.pack(step_of(folder)), rows.pack(step_of(folder)), rows.pack(step_of(folder, 1))
    seeded = rows_of(folder, client, {"trainer": {"seed": 1}})[0]
    seeded.items = rows.items
    of_seed = seeded.pack(step_of(folder))
    assert first is not None
    assert again is not None
    assert other is not None
    assert of_seed is not None
    assert first.keys.tolist() == again.keys.tolist()
    assert set(first.keys[first.own :].tolist()) != set(of_seed.keys[of_seed.own :].tolist())
    assert set(first.keys[first.own :].tolist()) != set(other.keys[other.own :].tolist())


def test_of_many_positives_the_towers_learn_a_number_that_is_bounded(
    folder: AppFolder, client: PsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, _ = rows_of(folder, client)
    monkeypatch.setattr(tower_rows, "_POSITIVES_MAX", 5)
    columns = step_of(folder)
    packed = rows.pack(columns)
    assert packed is not None
    positive = np.flatnonzero(columns.positive & CLICK)
    chosen = columns.item.slots["video_id"].keys[positive[np.linspace(0, len(positive) - 1, 5).astype(int)]]
    assert packed.keys[packed.item_index].tolist() == chosen.tolist()


def test_without_positives_there_is_nothing_to_learn(folder: AppFolder, client: PsClient) -> None:
    rows, _ = rows_of(folder, client)
    columns = step_of(folder)
    assert rows.pack(replace(columns, positive=columns.positive & np.uint32(2))) is None
    assert rows.pack(replace(columns, learn=columns.learn & np.uint32(2))) is None


def test_without_a_library_only_the_items_of_positives_compete(folder: AppFolder, client: PsClient) -> None:
    for negatives, known in ((0, 1), (30, 0)):
        rows, items = rows_of(folder, client, {"retrieval": {"negatives": negatives}})
        for number in range(known):
            learn_shown(items, folder.app.features, step_of(folder, number))
        packed = rows.pack(step_of(folder))
        assert packed is not None
        assert (packed.own, packed.drawn) == (len(packed.keys), 0.0)


def test_gradients_reach_the_rows_of_towers_alone(folder: AppFolder, client: PsClient) -> None:
    rows, items = rows_of(folder, client)
    learn_shown(items, folder.app.features, step_of(folder, 1))
    packed = rows.pack(step_of(folder))
    assert packed is not None
    keys = np.unique([*packed.keys, *packed.users.slots["user_id"].keys, *np.arange(500, dtype=np.uint64)])
    before = {table: client.pull(table, keys) for table in client.dims}
    ones = [np.ones_like(array) for array in (packed.user_flat, packed.user_sequence, packed.item_flat)]
    pushed = rows.push(packed, tuple(ones), 1_000, 1.0)
    moved = {table: {*keys[(client.pull(table, keys) != before[table]).any(axis=1)].tolist()} for table in client.dims}
    expected = set(packed.keys.tolist())
    for side, slots in ((packed.users, ("user_id", "history")), (packed.items, ("tags",))):
        expected |= {key for name in slots for key in side.slots[name].keys.tolist()}
    assert moved == {"main": set(), "tags": set(), TOWERS: expected}
    assert pushed == len(expected)


def test_keys_are_admitted_by_the_thresholds_of_their_slots(folder: AppFolder, client: PsClient) -> None:
    counts = {"video_id": 3, "user_id": 2}
    rows, _ = rows_of(folder, client, {"tables": {"admission_window_ms": 60_000, "admission_counts": counts}})
    packed = rows.pack(step_of(folder))
    assert packed is not None
    calls = []
    rows._client = type("Client", (), {"push": lambda *_, **options: calls.append(options)})()
    rows.push(packed, (packed.user_flat, packed.user_sequence, packed.item_flat), 0, 1.0)
    assert {threshold for _, threshold in calls[0]["admit"]} == {1, 2, 3}


def test_padded_steps_have_sizes_of_powers_of_two(folder: AppFolder, client: PsClient) -> None:
    rows, items = rows_of(folder, client, is_padded=True)
    learn_shown(items, folder.app.features, step_of(folder, 1))
    packed = rows.pack(step_of(folder))
    plain = rows_of(folder, client)[0]
    plain.items = rows.items
    whole = plain.pack(step_of(folder))
    assert packed is not None
    assert whole is not None
    for name in ("user_flat", "user_sequence", "item_flat", "user_index", "item_index", "weight"):
        padded, array = getattr(packed, name), getattr(whole, name)
        assert len(padded) == max(32, 1 << (len(array) - 1).bit_length())
        assert np.array_equal(padded[: len(array)], array)
        assert not padded[len(array) :].any()
