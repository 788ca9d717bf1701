"""ItemVectors: whatever changes and fails, versions have the vectors of all items, and only bytes that differ."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from streamlearn.errors import VersionRefused
from streamlearn.library.items import LibraryView
from streamlearn.library.library import Library
from streamlearn.samples import FeatureColumns
from streamlearn.testing import ManualClock
from streamlearn.trainer.towers import item_vectors
from streamlearn.trainer.towers.item_vectors import ItemVectors, encoded
from streamlearn.versions import Chain, Cut, compact, write_revert
from streamlearn.versions.format.library_files import vectors_in
from tests.campaign import examples
from tests.library.history import MODEL, Writer
from tests.library.place import library_app
from tests.library.statements import Said, updates_of

DIM = 8
NONE = np.zeros(0, np.uint64)
APP = library_app()
Bytes = dict[int, tuple[bytes, float]]  # by key, the numbers of an item's vector and their factor
OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["say", "say", "learn", "weigh", "cut", "cut", "fail", "restart", "compact", "revert"]),
        st.integers(0, 1 << 16),
    ),
    max_size=16,
)


class SmallTower:
    """A vector is the sum of the rows of an item's id and tags, of its dense column, and of the weights."""

    def __init__(self, *, has_weights: bool) -> None:
        self.has_weights, self.weights = has_weights, np.ones(DIM, np.float32)
        self.rows: dict[int, Any] = {}
        self.sealed: dict[int, dict[int, Any]] = {}
        self.counts: list[int] = []

    def vectors(self, items: FeatureColumns, count: int, weights: Any, version: int) -> Any:
        self.counts.append(count)
        return self.made(items, count, weights, version)

    def made(self, items: FeatureColumns, count: int, weights: Any, version: int) -> Any:
        rows, tags = self.sealed[version], items.slots["tags"]
        assert tags.offsets is not None
        found = np.empty((count, DIM), np.float32)
        for at in range(count):
            keys = [items.slots["video_id"].keys[at], *tags.keys[tags.offsets[at] : tags.offsets[at + 1]]]
            found[at] = sum((row(rows, int(key)) for key in keys), np.float32(items.dense["vector"][at, 0]))
        return found * weights if self.has_weights else found


def row(rows: dict[int, Any], key: int) -> Any:
    return rows[key] if key in rows else np.random.default_rng(key).standard_normal(DIM).astype(np.float32)


@dataclass
class Trainer:
    """What a trainer does with vectors: it says, learns, cuts, fails and restarts, and holds all against a dict."""

    tower: SmallTower
    writer: Writer = field(default_factory=lambda: Writer(APP))
    vectors: ItemVectors = field(default_factory=lambda: ItemVectors(DIM))
    learned: set[int] = field(default_factory=set)  # keys of rows since the newest version
    weights: dict[int, Any] = field(default_factory=dict)
    states: dict[int, Bytes] = field(default_factory=dict)
    newest: int = 0

    @property
    def library(self) -> Library:
        return self.writer.library

    @property
    def chain(self) -> Chain:
        return Chain.find(self.writer.store, MODEL)

    def say(self, seed: int) -> None:
        places = np.random.default_rng(seed).integers(0, 1 << 20, 5).tolist()
        said = [
            Said(place % 12, place % 300, None if place // 12 % 4 == 0 else place % 5, place, is_written=True)
            for place in places
        ]
        self.library.apply(updates_of(APP, said))

    def learn(self, seed: int) -> None:
        """Some rows change; some so little that the bytes of vectors may stay."""
        chance = np.random.default_rng(seed)
        keys = self.library.view().keys[:12]
        for key in [*chance.choice(keys, min(2, len(keys)), replace=False).tolist(), 100 * (seed % 5), 77_777]:
            step = np.zeros(DIM, np.float32)
            step[int(chance.integers(DIM))] = chance.choice([0.0, 1e-4, 1.0])
            self.tower.rows[key] = row(self.tower.rows, key) + step
            self.learned.add(key)

    def cut(self, seed: int, *, fails: bool = False) -> Any:
        """Write a version, while the trainer goes on."""
        version, cut = self.newest + 1, self.library.cut()
        view, weights = self.library.view(), self.tower.weights
        noted = self.vectors.note(self.tower, view, cut.upserted)
        self.tower.sealed[version], changed = dict(self.tower.rows), self.learned
        self.learned = set()
        for operation in (self.say, self.learn, self.weigh)[: seed % 4]:
            operation(seed)
        tensors = noted.tensors(version, np.array(sorted(changed), np.uint64))
        was, now = self.states.get(self.newest, {}), self.truth(view, weights, version)
        assert said(tensors) == {key: one for key, one in now.items() if was.get(key) != one}
        assert set(tensors["gone"].tolist()) == {*was} - {*now}
        if fails:
            self.learned |= changed
            return tensors
        writer = self.writer.writer(version)
        writer.add_library(cut.tensors)
        writer.add_vectors(tensors)
        self.writer.last = writer.finish(Cut(), clock=ManualClock())
        cut.committed()
        noted.committed()
        self.newest, self.states[version], self.weights[version] = version, now, weights
        assert len(self.vectors) == len(now)
        self.check_search(now)
        return tensors

    def check_search(self, now: Bytes) -> None:
        """The vectors to be searched are those of the newest version."""
        assert self.vectors.version == self.newest
        blocks, user = self.vectors.blocks(self.newest), np.linspace(-1, 1, DIM, dtype=np.float32)[None]
        keys, scores, _ = blocks.search(user, 1 << 10)
        expected = {key: float(user[0] @ np.frombuffer(row, np.int8)) * scale for key, (row, scale) in now.items()}
        assert dict(zip(keys.tolist(), scores.tolist(), strict=True)) == pytest.approx(expected, rel=1e-4, abs=1e-4)
        assert self.vectors.has(np.array([*now, 12_345], np.uint64)).tolist() == [True] * len(now) + [12_345 in now]

    def weigh(self, seed: int) -> None:
        self.tower.weights = self.tower.weights + np.float32(0.25 * (1 + seed % 3))

    def fail(self, seed: int) -> None:
        self.cut(seed, fails=True)

    def compact(self, seed: int) -> None:
        compact(self.writer.store, MODEL, sorted(self.states)[seed % len(self.states)])

    def restart(self, seed: int) -> None:
        """Go on from the newest version; without a change there is nothing to write, whatever may have changed."""
        self.library.restore(self.chain)
        self.tower.rows, self.learned = dict(self.tower.sealed[self.newest]), set()
        self.tower.weights = self.weights[self.newest].copy()
        self.vectors = ItemVectors(DIM)
        self.vectors.restore(self.chain, self.tower)
        self.check_search(self.states[self.newest])
        del self.tower.counts[:]
        noted = self.vectors.note(self.tower, self.library.view(), NONE)
        assert said(noted.tensors(self.newest, NONE)) == {}
        assert self.tower.counts == []
        noted = self.vectors.note(self.tower, self.library.view(), self.library.view().keys)
        tensors = noted.tensors(self.newest, self.library.view().keys)
        assert (said(tensors), tensors["gone"].tolist()) == ({}, [])
        assert sum(self.tower.counts) == len(self.library)

    def revert(self, seed: int) -> None:
        to = sorted(self.states)[seed % len(self.states)]
        self.writer.last = write_revert(self.writer.store, MODEL, to=to, run=1, clock=ManualClock())
        self.newest += 1
        for of_version in (self.states, self.weights, self.tower.sealed):
            of_version[self.newest] = of_version[to]
        self.restart(seed)

    def truth(self, view: LibraryView, weights: Any, version: int) -> Bytes:
        """The vectors of all items, each made by itself."""
        found: Bytes = {}
        for at, key in enumerate(view.keys.tolist()):
            values, scales = encoded(self.tower.made(view.items(np.array([at])).features, 1, weights, version))
            found[key] = values[0].tobytes(), float(scales[0])
        return found


def said(tensors: Any) -> Bytes:
    rows = zip(tensors["key"].tolist(), tensors["row"], tensors["scale"].tolist(), strict=True)
    return {key: (values.tobytes(), scale) for key, values, scale in rows}


@hypothesis_settings(max_examples=examples(30), derandomize=True, database=None)
@given(has_weights=st.booleans(), at_once=st.sampled_from([1, 3, 1 << 14]), operations=OPERATIONS)
@example(True, 3, [("say", 1), ("cut", 3), ("weigh", 0), ("fail", 0), ("learn", 1), ("cut", 0), ("revert", 1)])
def test_every_version_has_the_vectors_of_all_items_and_writes_those_that_differ(
    has_weights: bool, at_once: int, operations: list[tuple[str, int]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(item_vectors, "_AT_ONCE", at_once)
        trainer = Trainer(SmallTower(has_weights=has_weights))
        trainer.cut(0)
        for operation, seed in [*operations, ("cut", 0), ("restart", 0)]:
            getattr(trainer, operation)(seed)
        for version, state in trainer.states.items():
            chain = Chain.find(trainer.writer.store, MODEL, version)
            whole = vectors_in(chain.store, chain.links)
            assert whole is not None
            assert said(whole) == state
            assert whole["key"].tolist() == sorted(state)


def many(count: int, *, has_weights: bool) -> Trainer:
    """A trainer with a version of so many items."""
    trainer = Trainer(SmallTower(has_weights=has_weights))
    trainer.library.apply(updates_of(APP, [Said(item, 1, item % 5, item, is_written=True) for item in range(count)]))
    assert len(trainer.cut(0)["key"]) == count
    return trainer


def test_new_weights_change_all_vectors_if_the_tower_has_weights_and_none_otherwise() -> None:
    for has_weights, count in ((True, 20), (False, 0)):
        trainer = many(20, has_weights=has_weights)
        del trainer.tower.counts[:]
        assert len(trainer.cut(0)["key"]) == 0
        assert trainer.tower.counts == []
        trainer.weigh(0)
        # A version that fails leaves the work to the next one.
        for fails in (True, False):
            assert len(trainer.cut(0, fails=fails)["key"]) == count
        assert len(trainer.cut(0)["key"]) == 0
        assert sum(trainer.tower.counts) == 2 * count


def test_a_tower_takes_a_bounded_number_of_items_at_once_and_only_those_that_may_have_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(item_vectors, "_AT_ONCE", 6)
    trainer = many(20, has_weights=False)
    assert trainer.tower.counts == [6, 6, 6, 2]
    del trainer.tower.counts[:]
    keys = trainer.library.view().keys
    trainer.learned = {int(keys[2]), int(keys[13]), 77_777}
    trainer.tower.rows |= {int(keys[13]): np.ones(DIM, np.float32)}
    assert trainer.cut(0)["key"].tolist() == [keys[13]]
    assert trainer.tower.counts == [1, 1]
    # A row that many items have changes all of them.
    del trainer.tower.counts[:]
    trainer.learned = {200}
    trainer.tower.rows[200] = np.full(DIM, 3, np.float32)
    view = trainer.library.view()
    tags = view.items().features.slots["tags"]
    assert tags.offsets is not None
    having = [at for at in range(20) if 200 in tags.keys[tags.offsets[at] : tags.offsets[at + 1]]]
    assert trainer.cut(0)["key"].tolist() == view.keys[having].tolist()
    assert len(having) == sum(trainer.tower.counts) == 4


def test_vectors_of_another_width_and_a_model_without_versions_begin_with_none() -> None:
    trainer = many(5, has_weights=False)
    for vectors, chain in ((ItemVectors(DIM + 4), trainer.chain), (trainer.vectors, None)):
        vectors.restore(chain, trainer.tower)
        assert len(vectors) == 0
    trainer.states = {}
    assert len(trainer.cut(0)["key"]) == 5


def test_of_past_versions_those_stay_that_are_compared() -> None:
    trainer = many(8, has_weights=True)
    for _ in range(6):
        trainer.weigh(0)
        trainer.cut(0)
    assert trainer.newest == 7
    for version in (1, 5, 6, 7):  # the first may be the active one
        assert len(trainer.vectors.blocks(version)) == 8
    trainer.vectors.keep(7, 5)
    for version in (1, 6):
        with pytest.raises(VersionRefused, match=f"the vectors of version {version} are no longer in the trainer"):
            trainer.vectors.blocks(version)
    assert len(trainer.vectors.blocks(5)) == 8


def test_a_vector_that_is_not_finite_is_stored_as_zeros_and_counted() -> None:
    trainer = many(8, has_weights=True)
    trainer.tower.weights = np.where(np.arange(DIM) == 3, np.float32(np.nan), np.ones(DIM, np.float32))
    noted = trainer.vectors.note(trainer.tower, trainer.library.view(), NONE)
    trainer.tower.sealed[2] = dict(trainer.tower.rows)
    tensors = noted.tensors(2, NONE)
    assert not tensors["row"].any()
    assert noted.metrics == {"vectors.not_finite": 8.0, "vectors.nan": 8.0, "vectors_changed": 8.0}
