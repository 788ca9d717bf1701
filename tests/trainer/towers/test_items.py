"""Items: those that were shown, each once, as they are drawn, listed and kept in versions."""

from __future__ import annotations

import numpy as np
import pytest

from streamlearn.features import Dense, FeatureSpec, Slot
from streamlearn.samples import FeatureColumns, SlotColumns
from streamlearn.trainer.towers import items
from streamlearn.trainer.towers.items import ShownItems

FEATURES = FeatureSpec(
    slots=(Slot("video", "item"), Slot("tags", "item", multi=True, pooling="weighted")),
    item_id="video",
    dense=(Dense("length", "item", width=2),),
)


def columns(keys: list[int], of: int = 0) -> tuple[np.ndarray, FeatureColumns]:
    """Items with as many tags as their key says, modulo three."""
    ids, counts = np.array(keys, np.uint64), np.array(keys, np.int64) % 3
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    tags = (np.repeat(ids, counts) * np.uint64(10) + np.uint64(of)).astype(np.uint64)
    weights = np.repeat(np.array(keys, np.float32), counts)
    dense = np.stack([np.array(keys), np.array(keys) + of], axis=1).astype(np.float32)
    slots = {"video": SlotColumns(ids), "tags": SlotColumns(tags, offsets, weights)}
    return ids, FeatureColumns(slots, {"length": dense})


def check(keys: np.ndarray, found: FeatureColumns) -> None:
    expected = columns(keys.tolist())[1]
    for name, slot in expected.slots.items():
        for part in ("keys", "offsets", "weights"):
            array = getattr(slot, part)
            assert (array is None) == (getattr(found.slots[name], part) is None)
            assert array is None or np.array_equal(getattr(found.slots[name], part), array)
    assert np.array_equal(found.dense["length"], expected.dense["length"])


def test_each_item_is_held_once_as_it_was_shown_first() -> None:
    shown = ShownItems(FEATURES)
    shown.add(*columns([7, 2, 7, 5]))
    shown.add(*columns([5, 9], of=3))
    assert len(shown) == 4
    (keys, found), (rest, others) = shown.slices(3)
    assert [*keys.tolist(), *rest.tolist()] == [7, 2, 5, 9]
    check(keys, found)
    assert others.dense["length"].tolist() == [[9, 12]]


def test_what_is_drawn_is_uniform_distinct_and_the_same_for_a_seed() -> None:
    shown = ShownItems(FEATURES)
    shown.add(*columns([*range(40)]))
    times = np.zeros(40)
    for seed in range(2_000):
        keys, found = shown.sample(10, seed)
        assert len(keys) == len(set(keys.tolist())) <= 10
        times[keys.astype(np.int64)] += 1
        if seed < 20:
            check(keys, found)
            assert np.array_equal(shown.sample(10, seed)[0], keys)
    # Each is drawn with chance 1 - (1 - 1/40)^10, whatever others are.
    expected = 2_000 * (1 - (1 - 1 / 40) ** 10)
    assert np.abs(times - expected).max() < 5 * np.sqrt(expected)


def test_a_library_without_items_gives_none() -> None:
    shown = ShownItems(FEATURES)
    keys, found = shown.sample(5, 1)
    check(keys, found)
    assert len(keys) == 0
    assert [*shown.slices(4)] == []


def test_it_continues_from_what_a_version_holds() -> None:
    first, second = ShownItems(FEATURES), ShownItems(FEATURES)
    first.add(*columns([3, 4, 8]))
    second.add(*columns([1]))
    second.load(first.tensors())
    assert len(second) == 3
    check(*next(second.slices(9)))
    second.add(*columns([4, 6]))
    assert [keys.tolist() for keys, _ in second.slices(9)] == [[3, 4, 8, 6]]
    second.load({})
    assert len(second) == 0


def test_it_holds_no_more_than_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(items, "ITEMS_MAX", 5)
    shown = ShownItems(FEATURES)
    for begin in range(0, 12, 3):
        shown.add(*columns([*range(begin, begin + 3)]))
    assert [keys.tolist() for keys, _ in shown.slices(9)] == [[0, 1, 2, 3, 4]]
