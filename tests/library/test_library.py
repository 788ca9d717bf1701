"""The library in memory: the same items from the same statements, whatever their order; expiry, chance and bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlearn.library import library as library_module
from streamlearn.library.items import ItemUpdates
from streamlearn.library.library import Library
from tests.library.place import T_MS, library_app
from tests.library.statements import (
    SECOND_MS,
    Said,
    content,
    described,
    ids_for,
    keys_for,
    library_of,
    registers,
    statements,
    updates_of,
)  # fmt: skip

APPS = {value: library_app(value) for value in ("int", "str")}
APP = APPS["int"]


def expected(app: Any, said: list[Said]) -> dict[Any, bytes]:
    """What registers say, as `content` has it."""
    seeds = registers(said)
    alone = library_of(app, [Said(item, 0, seed, 0, is_written=True) for item, seed in seeds.items()])
    return content(alone.view())


@given(
    value=st.sampled_from(sorted(APPS)),
    said=statements(),
    chance=st.randoms(use_true_random=False),
    repeated=st.lists(st.integers(0, 1 << 20), max_size=8),
    cuts=st.lists(st.integers(0, 30), max_size=4),
)
def test_any_order_and_repetition_of_statements_makes_the_same_library(
    value: str, said: list[Said], chance: Any, repeated: list[int], cuts: list[int]
) -> None:
    app = APPS[value]
    given = said + [said[at % len(said)] for at in repeated if said]
    chance.shuffle(given)
    library, straight = library_of(app, given, cuts), library_of(app, said)
    assert content(library.view()) == expected(app, said)
    assert len(library) == len(registers(said))
    # Also what decides about later statements.
    some, others = library.cut().tensors, straight.cut().tensors
    assert {name: column.tobytes() for name, column in some.items()} == {
        name: column.tobytes() for name, column in others.items()
    }
    assert library.sample(9, 5).keys.tolist() == straight.sample(9, 5).keys.tolist()


def test_a_removed_item_comes_back_only_by_a_later_statement_of_the_topic() -> None:
    removal = Said(1, 2, None, 0, is_written=True)
    shown, old, equal, later = (
        Said(1, second, 1, 5, is_written=told) for second, told in ((9, False), (1, True), (2, True), (3, True))
    )
    for alone in (shown, old, equal):
        assert content(library_of(APP, [removal, alone]).view()) == {}
    assert set(content(library_of(APP, [later, removal, shown]).view())) == {1}


def test_a_removal_of_an_unknown_item_is_remembered() -> None:
    library = library_of(APP, [Said(4, 3, None, 0, is_written=True)])
    assert (len(library), library.find(keys_for(APP, [4, 5]))[1].tolist()) == (0, [False, False])
    assert len(library.sample(3, 1).keys) == 0
    library.apply(updates_of(APP, [Said(4, 2, 1, 1, is_written=True)]))
    assert len(library) == 0


def test_items_are_found_in_the_order_of_keys_and_unknown_ones_left_out() -> None:
    library = library_of(APP, [Said(item, 1, item, item, is_written=False) for item in range(9)])
    keys = keys_for(APP, [7, 99, 3, 7])
    items, is_there = library.find(keys)
    assert is_there.tolist() == [True, False, True, True]
    assert items.keys.tolist() == keys[is_there].tolist()
    assert items.features.dense["vector"][:, 0].tolist() == [7.0, 3.0, 7.0]
    assert list(items.features.slots) == ["video_id", "tags", "topics"]
    assert items.features.slots["tags"].offsets is not None
    assert items.features.slots["tags"].offsets.tolist() == [0, 1, 1, 2]


@pytest.mark.parametrize("removed", [10, 50])
def test_chance_gives_every_item_its_share_and_no_removed_one(removed: int) -> None:
    said = [Said(item, 1, item, item, is_written=False) for item in range(60)]
    said += [Said(item, 2, None, item, is_written=True) for item in range(removed)]
    library = library_of(APP, said)
    drawn = [library.sample(5, seed) for seed in range(3_000)]
    assert all(len(np.unique(items.keys)) == len(items.keys) <= 5 for items in drawn)
    keys, counts = np.unique(np.concatenate([items.keys for items in drawn]), return_counts=True)
    assert sorted(keys.tolist()) == sorted(keys_for(APP, range(removed, 60)).tolist())
    share = 3_000 * (1 - (1 - 1 / (60 - removed)) ** 5)
    assert 0.75 * share < counts.min() <= counts.max() < 1.25 * share
    assert drawn[7].keys.tolist() == library.sample(5, 7).keys.tolist()


def test_slices_have_every_item_once() -> None:
    library = library_of(APP, [Said(item, 1, item, item, is_written=False) for item in range(10)])
    slices = list(library.slices(4))
    assert [len(items.keys) for items in slices] == [4, 4, 2]
    assert sorted(np.concatenate([items.features.dense["vector"][:, 0] for items in slices])) == list(range(10))


def test_a_view_stays_as_it_was() -> None:
    library = library_of(APP, [Said(item, 1, item, item, is_written=False) for item in range(9)])
    view = library.view()
    before = content(view)
    library.apply(updates_of(APP, [Said(item, 2, item + 1, item, is_written=True) for item in range(5_000)]))
    library.apply(updates_of(APP, [Said(item, 3, None, item, is_written=True) for item in range(4_000)]))
    assert content(view) == before
    assert len(library.view()) == 1_000


def test_items_expire_by_event_time_and_late_statements_with_them() -> None:
    app = library_app(expire_s=600)
    library = library_of(app, [Said(item, 60 * item, item, item, is_written=False) for item in range(5)])
    library.apply(updates_of(app, [Said(1, 30, None, 9, is_written=True)]))
    library.expire(T_MS + 660_000)  # the horizon is a minute after the first item, or a part of a minute before
    assert sorted(content(library.view())) == [2, 3, 4]
    library.apply(updates_of(app, [Said(0, 0, 0, 0, is_written=False), Said(1, 1, 1, 1, is_written=True)]))
    assert sorted(content(library.view())) == [2, 3, 4]
    library.expire(T_MS)  # time does not go back
    library.expire(T_MS + 10_000_000)
    assert (len(library), content(library.view())) == (0, {})
    cut = library.cut()
    assert sorted(cut.tensors["gone"].tolist()) == sorted(keys_for(app, range(5)).tolist())


def test_a_library_without_expiry_keeps_everything() -> None:
    library = library_of(APP, [Said(1, 1, 1, 1, is_written=False)])
    library.expire(1 << 50)
    assert len(library) == 1


def test_a_full_library_refuses_new_items_and_takes_news_of_others(caplog: pytest.LogCaptureFixture) -> None:
    library = Library(APP, items_max=3)
    library.apply(updates_of(APP, [Said(item, 1, item, item, is_written=False) for item in range(5)]))
    assert (len(library), library.refused) == (3, 2)
    assert "the library is full: it has 3 items" in caplog.text
    known = library.view().ids_of().listed()
    library.apply(updates_of(APP, [Said(item, 2, 8, item, is_written=False) for item in range(5)]))
    assert library.view().ids_of().listed() == known
    assert set(library.view().items().features.dense["vector"][:, 0].tolist()) == {8.0}


def test_rows_that_no_item_needs_are_freed() -> None:
    library = Library(APP)
    for second in range(60):
        said = [Said(item, second, second + item, item, is_written=False) for item in range(500)]
        library.apply(updates_of(APP, said))
    assert library._features.rows < 2 * 500 + library_module._SPARE_ROWS + 500
    assert set(library.view().items().features.dense["vector"][:, 0].tolist()) == {
        float(59 + item) for item in range(500)
    }


def test_a_shown_item_that_did_not_change_takes_no_new_features() -> None:
    library = library_of(APP, [Said(1, 1, 4, 1, is_written=False)])
    library.cut().committed()
    library.apply(updates_of(APP, [Said(1, 7, 4, 2, is_written=False)]))
    cut = library.cut()
    assert (library._features.rows, len(cut.upserted), cut.tensors["event_ms"].tolist()) == (2, 0, [T_MS + 7_000])


@given(said=statements(count=30), committed=st.lists(st.booleans(), min_size=3, max_size=3))
def test_cuts_have_what_changed_since_the_newest_committed_version(said: list[Said], committed: list[bool]) -> None:
    library, behind = Library(APP), dict[Any, bytes]()
    for at, is_committed in enumerate(committed):
        library.apply(updates_of(APP, said[10 * at : 10 * at + 10]))
        cut, view = library.cut(), library.view()
        now = content(view)
        keys = {item: int(keys_for(APP, [item])[0]) for item in {*now, *behind}}
        assert {keys[item] for item in now if behind.get(item) != now[item]} <= set(cut.upserted.tolist())
        removed = {*cut.tensors["key"].tolist(), *cut.tensors["gone"].tolist()} - set(cut.upserted.tolist())
        assert {keys[item] for item in behind if item not in now} <= removed
        assert set(cut.upserted.tolist()) <= {keys[item] for item in now}
        if is_committed:
            cut.committed()
            behind = now
            assert not library.has_changes
            assert not library.cut()


def test_ids_and_features_of_every_kind_come_back() -> None:
    for app in APPS.values():
        library = library_of(app, [Said(7, 1, 5, 1, is_written=True)])
        view = library.view()
        assert view.ids_of().listed() == ids_for(app, [7]).listed()
        (tags, topics), given = (view.items().features.slots[name] for name in ("tags", "topics")), described([5])
        assert tags.keys.tolist() == given.slots["tags"].keys.tolist()
        assert topics.weights is not None
        assert given.slots["topics"].weights is not None
        assert topics.weights.tolist() == given.slots["topics"].weights.tolist()
        state = library.state(int(view.keys[0]))
        assert state is not None
        assert (state["written_ms"], state["is_present"]) == (T_MS + SECOND_MS, True)
        assert library.state(1) is None


def test_no_statements_change_nothing() -> None:
    library = Library(APP)
    none = updates_of(APP, [])
    assert isinstance(none, ItemUpdates)
    library.apply(none)
    assert (len(library), len(library.view()), bool(library.cut())) == (0, 0, False)
    assert library.find(np.zeros(0, np.uint64))[1].tolist() == []
