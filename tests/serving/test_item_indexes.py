"""Indexes of items: those of each version are what its files say, whatever came before, and nothing else is kept."""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlearn.errors import VersionDefect
from streamlearn.serving import item_indexes
from streamlearn.serving.item_indexes import ItemIndexes
from streamlearn.testing import ManualClock
from streamlearn.versions import (
    Chain,
    Committed,
    Cut,
    Store,
    VersionWriter,
    compact,
    load_tensors,
    open_store,
    verify,
    write_revert,
)  # fmt: skip
from streamlearn.versions.upkeep.vector_owners import ownerless_vectors
from tests.campaign import examples
from tests.serving.item_history import DIM, ItemHistory, Vectors, finding_app, nearest

_STORES = count()


def vectors(seed: int, items: list[Any]) -> Vectors:
    """Vectors of items by chance."""
    rng = np.random.default_rng(seed)
    return {item: rng.standard_normal(DIM).astype(np.float32) for item in items}


def history(*, is_text: bool = False) -> tuple[Store, ItemHistory, ItemIndexes]:
    """An empty store, what writes versions to it, and what reads them."""
    store = open_store(f"memory://items-{next(_STORES)}")
    return store, ItemHistory(store, finding_app(is_text=is_text), is_promoted=False), indexes(store, is_text=is_text)


def indexes(store: Store, *, is_text: bool = False) -> ItemIndexes:
    return ItemIndexes(store, finding_app(is_text=is_text).features, dim=DIM)


def check(found: ItemIndexes, version: Committed, made: ItemHistory, seed: int = 0) -> None:
    """What a version finds for some users is what a scan of its truth finds."""
    truth, rng = made.truth[version.manifest.version], np.random.default_rng(seed)
    items = found.of(version.ref)
    assert items is not None
    assert (len(items.blocks), items.as_of_ms) == (len(truth), version.manifest.watermark_ms)
    users, k = rng.standard_normal((3, DIM)).astype(np.float32), int(rng.integers(1, 12))
    excluded = [[item for item in truth if rng.random() < share] for share in (0.0, 0.3, 1.0)]
    keys, scores, ends = items.blocks.search(users, k, [made.keys(exclude) for exclude in excluded])
    names = dict(zip(made.keys([*truth]).tolist(), truth, strict=True))
    begin = 0
    for user, exclude, end in zip(users, excluded, ends.tolist(), strict=True):
        best = [names[key] for key in keys[begin:end].tolist()]
        assert best == nearest(truth, user, k, exclude)
        assert np.allclose(scores[begin:end], [truth[item] @ user for item in best], rtol=1e-5, atol=1e-6)
        begin = end
    assert items.ids.lacks(made.keys([*truth])) is None


@settings(max_examples=examples(12), deadline=None)
@given(
    st.lists(
        st.tuples(st.sets(st.integers(0, 60), max_size=25), st.sets(st.integers(0, 60), max_size=15)),
        min_size=1, max_size=5,
    ),
    st.booleans(), st.integers(0, 3),
)  # fmt: skip
def test_each_version_finds_what_a_scan_of_its_vectors_finds(
    steps: list[tuple[set[int], set[int]]], is_text: bool, seed: int
) -> None:
    store, made, found = history(is_text=is_text)
    name: Any = (lambda item: f"né{item}") if is_text else (lambda item: item)
    versions: list[Committed] = []
    for at, (changed, gone) in enumerate(steps):
        parent, known = made.last, made.truth.get(at, {})
        leaving = [name(item) for item in gone - changed if name(item) in known]
        version = made.cut(at + 1, vectors(seed + at, [*map(name, sorted(changed))]), leaving)
        found.load(version, None if parent is None else parent.ref)
        versions.append(version)
    for version in versions:
        check(found, version, made, seed)
    assert ownerless_vectors(store, versions) == []
    if len(steps) > 1:
        made.last = versions[-2]
        base = made.cut(len(steps), vectors(seed + len(steps) - 1, [*map(name, sorted(steps[-1][0]))]), kind="base")
        fresh = indexes(store, is_text=is_text)
        fresh.load(base, None)
        check(fresh, base, made, seed)


def test_a_compacted_version_and_a_revert_find_what_the_older_version_found() -> None:
    store, made, found = history()
    first = made.cut(1, vectors(1, [*range(90)]))
    second = made.cut(2, vectors(2, [*range(60, 120)]), gone=range(50))
    compact(store, made.app.name, 2)
    base = Chain.find(store, made.app.name, 2)
    assert [link.manifest.kind for link in base.links] == ["base"]
    fresh = indexes(store)
    fresh.load(base.head, None)
    check(fresh, base.head, made)
    found.load(first, None)
    found.load(second, first.ref)
    revert = write_revert(store, made.app.name, to=1, run=2)
    made.truth[revert.manifest.version] = made.truth[1]
    for each in (found, fresh):
        each.load(revert, second.ref if each is found else base.ref)
        items = each.of(revert.ref)
        assert items is not None
        check(each, revert, made)
        assert len(items.ids) == 90
    assert revert.manifest.retrieval == second.manifest.retrieval


def test_a_version_is_read_once_and_gone_when_it_is_retired() -> None:
    _, made, found = history()
    first, second = made.cut(1, vectors(1, [1, 2])), made.cut(2, vectors(2, [2, 3]))
    found.load(first, None)
    items = found.of(first.ref)
    found.load(first, None)
    assert found.of(first.ref) is items
    found.load(second, first.ref)
    found.retire(first.ref)
    assert found.of(first.ref) is None
    check(found, second, made)


def test_a_damaged_version_is_refused_and_leaves_nothing() -> None:
    store, made, found = history()
    first = made.cut(1, vectors(1, [1, 2]))
    (entry,) = first.manifest.of_kind("vectors")
    path = f"{first.folder}/{entry.path}"
    whole = bytes(store.read(path, bytes_max=1 << 20))
    store.remove(path)
    store.create(path, whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(VersionDefect):
        found.load(first, None)
    assert found.of(first.ref) is None
    store.remove(path)
    store.create(path, whole)
    found.load(first, None)
    check(found, first, made)


def test_vectors_need_an_item_and_the_length_of_the_application(monkeypatch: pytest.MonkeyPatch) -> None:
    store, made, found = history()
    library = made.library
    monkeypatch.setattr(made, "library", lambda items, gone: library(items[1:], gone))
    version = made.cut(1, vectors(1, [1, 2]))
    with pytest.raises(VersionDefect, match=f"a vector for key {made.keys([1])[0]}, but no item"):
        found.load(version, None)
    with pytest.raises(VersionDefect, match="its vectors have 8 numbers, not 12"):
        ItemIndexes(store, made.app.features, dim=12).load(version, None)


def test_many_items_are_divided_into_cells_and_again_once_their_vectors_have_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(item_indexes, "_DIVIDED_MIN", 64)
    asked: list[tuple[int, int, int]] = []

    def divides_again(items: int, cells: int, changed: int) -> bool:
        asked.append((items, cells, changed))
        return real(items, cells, changed)

    real = item_indexes.divides_again
    monkeypatch.setattr(item_indexes, "divides_again", divides_again)
    store, made, _ = history()
    found, before = ItemIndexes(store, made.app.features, dim=DIM, probes=3), None
    probes = []
    # 40 items, then 240, all of which change with each version; at last 40 of them are left.
    for number in range(1, 8):
        changed = vectors(number, [*range(40 if number == 1 else 240)])
        version = made.cut(number, {} if number == 7 else changed, gone=range(200) if number == 7 else ())
        found.load(version, before)
        before = version.ref
        items = found.of(version.ref)
        assert items is not None
        check(found, version, made)
        probes.append((items.blocks.cells, items.probes))
    assert probes == [(0, None), *[(16, 3)] * 5, (16, None)]
    # Counted anew after the second version and after the sixth, in which vectors had changed four times.
    assert [changed for _, _, changed in asked] == [40, 280, 240, 480, 720, 960, 0]


def test_vectors_may_begin_after_the_items_that_a_model_began_with(monkeypatch: pytest.MonkeyPatch) -> None:
    store, made, found = history()
    writer = VersionWriter(store, made.head(1, "base"))
    writer.add_rows([])
    writer.add_library(made.library([3, 4], made.keys([])))
    first = made.last = writer.finish(Cut(), clock=ManualClock())
    made.truth[1] = {}
    found.load(first, None)
    # The first version of the trainer has vectors of all items, and no item, since none is new.
    monkeypatch.setattr(made, "library", lambda items, gone: ItemHistory.library(made, [], gone))
    version = made.cut(2, vectors(1, [3, 4]))
    assert len(load_tensors(store, version, "library")["key"]) == 0
    found.load(version, first.ref)
    check(found, version, made)
    assert [defect.path for defect in verify(store, made.app.name).defects if "/graphs/" not in defect.path] == []
