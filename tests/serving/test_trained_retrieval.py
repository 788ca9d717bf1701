"""Retrieval from end to end: a node finds what the towers of a trainer's versions say, computed once more in NumPy."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from streamlearn.apps import AppFolder
from streamlearn.features import FeatureSpec, keys_of
from streamlearn.features.retrieval import TOWERS
from streamlearn.library.library import Library
from streamlearn.models import PackedSide
from streamlearn.models.tf_calls import Place
from streamlearn.samples import SlotColumns
from streamlearn.serving.node import Node
from streamlearn.table import TableSet, declared_tables
from streamlearn.testing import wait_until
from streamlearn.topics import create_topic
from streamlearn.trainer import train
from streamlearn.trainer.intake.feed import Until
from streamlearn.trainer.towers.two_tower import TwoTower
from streamlearn.trainer.trainer_setup import ends_of
from streamlearn.versions import Chain, History, PointerLog, compact, load, load_tensors, verify, write_revert
from streamlearn.versions.format.library_files import vectors_in
from streamlearn.versions.pointer.moves import rollback
from tests.library.trained import write_items
from tests.serving.test_retrieve import asked
from tests.trainer.processes import write_app
from tests.trainer.runs import store_of
from tests.trainer.stream import messages_of, write_messages

WAIT_S = 300.0
APP = """
import sys
from dataclasses import replace

sys.path.insert(0, {{root!r}})
from tests.trainer.towers.towered import towered_app

app = replace(towered_app(model={towers!r}), model={{model!r}})
"""
SETTINGS: dict[str, dict[str, Any]] = {
    "trainer": {"order": "strict", "step_rows": 64, "rate": 0.01},
    "publisher": {"publish_interval_s": 3_600},
    "topics": {"time": "event"},
    "serving": {"users_buckets": [1], "candidates_buckets": [4]},
    "front": {"listen": "127.0.0.1:0", "http": "127.0.0.1:0", "deadline_ms": 30_000},
    "replica": {"beat_s": 0.25},
}
WRITTEN = range(9_000, 9_012)  # of the topic of items
REMOVED, ADDED = WRITTEN[:4], [9_500, 9_501]
USERS: tuple[dict[str, Any], ...] = tuple(
    {"user_id": user, "history": [user, 7 * user + 1, 9_001][: user % 4], "age": age}
    for user, age in ((1, 0.5), (2, -3.0), (7, 20.0), (499, 0.0), (123_456, 1.0))
)


class Weighted(TwoTower):
    """As `two_tower`, but an item's vector is multiplied by a matrix, which learns."""

    item_has_weights = True

    def build(self, features: FeatureSpec, seed: int) -> list[Any]:
        """See `Towers`."""
        return [*super().build(features, seed), tf.eye(features.slots[0].dim) + 0.25]

    @property
    def weight_names(self) -> tuple[str, ...]:
        """See `Towers`."""
        return (*super().weight_names, "item")

    def user(self, weights: Sequence[Any], inputs: PackedSide) -> Any:
        """See `Towers`."""
        return super().user(weights[:-1], inputs)

    def item(self, weights: Sequence[Any], inputs: PackedSide) -> Any:
        """See `Towers`."""
        return super().item(weights[:-1], inputs) @ weights[-1]


class Truth:
    """What a version says, read from its files alone."""

    def __init__(self, folder: AppFolder, version: int) -> None:
        self.chain, self.spec = Chain.find(store_of(folder), folder.app.name, version), folder.app.features
        self.library = Library(folder.app)
        self.library.restore(self.chain)
        self.ids = [int(item) for item in self.library.view().ids_of().listed()]
        tensors = vectors_in(self.chain.store, self.chain.links)
        assert tensors is not None
        assert tensors["key"].tolist() == self.library.view().keys.tolist()
        self.scales, self.vectors = tensors["scale"], tensors["row"] * tensors["scale"][:, None]
        self.tables = TableSet(declared_tables(folder.app.tables, folder.settings.tables))
        load(self.chain, self.tables, training=True)
        self.weights = load_tensors(self.chain.store, self.chain.head)

    def rows(self, slot: str, values: Sequence[int]) -> Any:
        keys = keys_of(self.spec.slot(slot), list(values)) if values else np.zeros(0, np.uint64)
        return self.tables[TOWERS].lookup(keys)

    def user(self, user: dict[str, Any]) -> Any:
        """The user's vector, as the page on retrieval describes `two_tower`."""
        weights = {name: self.weights[f"retrieval/{name}"] for name in ("scale", "user_0", "user_0_bias", "user_1")}
        age = np.sign(user["age"]) * np.log1p(abs(user["age"]))
        total = self.rows("user_id", [user["user_id"]])[0] + age * self.weights["retrieval/user_dense"][0]
        if user["history"]:
            total = total + self.rows("history", user["history"]).mean(axis=0)
        total = total + np.maximum(total @ weights["user_0"] + weights["user_0_bias"], 0) @ weights["user_1"]
        return total / np.linalg.norm(total) * np.exp(weights["scale"][0])

    def check_vectors(self) -> None:
        """Vectors of items are those of the item tower by the rows of this version, but for what int8 rounds."""
        items, rows = self.library.view().items(), self.tables[TOWERS].lookup
        matrix = self.weights.get("retrieval/item", np.eye(self.vectors.shape[1], dtype=np.float32))
        tags = items.features.slots["tags"]
        assert tags.offsets is not None
        for at, key in enumerate(items.keys):
            of_item = tags.keys[tags.offsets[at] : tags.offsets[at + 1]]
            total = rows(np.array([key]))[0] + (rows(of_item).mean(axis=0) if len(of_item) else 0)
            expected = total / np.linalg.norm(total) @ matrix
            assert np.allclose(self.vectors[at], expected, atol=0.51 * self.scales[at])

    def check(self, node: Node, user: dict[str, Any], k: int, exclude: Sequence[int] = (), **more: Any) -> list[int]:
        """The node's answer is that of this version: the k best of all items but those excluded, and their scores."""
        status, answer = asked(node, {"user": user, "k": k, "exclude": list(exclude), **more})
        assert (status, answer.get("version")) == (200, self.chain.version), answer
        expected = dict(zip(self.ids, (self.vectors @ self.user(user)).tolist(), strict=True))
        left = sorted((score for item, score in expected.items() if item not in {*exclude}), reverse=True)
        ids, scores = [item["id"] for item in answer["items"]], [item["score"] for item in answer["items"]]
        assert len({*ids}) == len(ids) == min(k, len(left))
        assert not {*ids} & {*exclude}
        assert np.allclose(scores, [expected[item] for item in ids], rtol=1e-4, atol=1e-4)
        assert np.allclose(scores, left[:k], rtol=1e-4, atol=1e-4)
        return ids


def written(folder: AppFolder, begin: int, end: int) -> None:
    """Write some messages, whose users have keys as a node makes them."""
    slot = folder.app.features.slot("user_id")
    found = []
    for partition, batch in messages_of(folder.app, 12)[begin:end]:
        users = dict(batch.user.slots)
        users["user_id"] = SlotColumns(keys_of(slot, users["user_id"].keys.astype(np.int64)))
        found.append((partition, replace(batch, user=replace(batch.user, slots=users))))
    write_messages(folder, found)


def learn(folder: AppFolder) -> int:
    """Train to the end of all topics, as the verb does, and return the newest version."""
    train(folder, threading.Event(), until=lambda topic: Until(ends_of(topic, "end")))
    return Chain.find(store_of(folder), folder.app.name).version


def learned(path: Path, towers: str) -> AppFolder:
    """The application with versions: 1 has learned nothing, 3 removes items and has others, 4 learns on."""
    folder = write_app(path, SETTINGS, model="logistic", text=APP.format(towers=towers))
    (path / "towers.py").write_text("from tests.serving.test_trained_retrieval import Weighted as Weighted\n")
    create_topic(folder.topic_url("items"), folder.topic_settings("items", 2), folder.access).close()
    write_items(folder, [(item, 1, item) for item in WRITTEN])
    written(folder, 0, 6)
    assert learn(folder) == 2
    write_items(folder, [*((item, 9, None) for item in REMOVED), *((item, 9, item) for item in ADDED)])
    written(folder, 6, 9)
    assert learn(folder) == 3
    written(folder, 9, 99)
    assert learn(folder) == 4
    return folder


def same(some: Any, others: Any) -> bool:
    return bool({name: one.tobytes() for name, one in some.items()} == {n: one.tobytes() for n, one in others.items()})


@pytest.mark.parametrize("towers", ["two_tower", "towers:Weighted"])
def test_a_node_finds_what_the_towers_of_each_version_say_and_goes_back_with_all_items(
    tmp_path: Path, towers: str
) -> None:
    folder = learned(tmp_path / "app", towers)
    store, name = store_of(folder), folder.app.name
    truths = {version: Truth(folder, version) for version in (1, 2, 3, 4)}
    assert {*truths[1].ids} == {*WRITTEN}
    assert {*truths[2].ids} > {*WRITTEN}
    assert {*truths[2].ids} - {*truths[3].ids} == {*REMOVED}
    assert {*truths[3].ids} - {*truths[2].ids} >= {*ADDED}
    deltas = [load_tensors(store, truths[version].chain.head, "vectors") for version in (3, 4)]
    assert sorted(deltas[0]["gone"].tolist()) == sorted(keys_of(folder.app.features.slot("video_id"), REMOVED).tolist())
    # Rows of some items changed, and weights are those of all.
    assert 0 < len(deltas[1]["key"]) <= len(truths[4].ids)
    assert (len(deltas[1]["key"]) == len(truths[4].ids)) == (towers == "towers:Weighted")
    for truth in truths.values():
        truth.check_vectors()
    with Node(folder, places=[Place("/CPU:0")]) as node:
        node.wait_ready()
        assert len({tuple(truths[4].check(node, user, 20)) for user in USERS}) == len(USERS)
        for user in USERS:
            best = truths[4].check(node, user, 20)
            truths[4].check(node, user, 20, best[:15])
            assert {*truths[4].check(node, user, 1_000)} == {*truths[4].ids}
            truths[3].check(node, user, 20, version=3)
        known = History(store, name).read()
        PointerLog(store, name).move(partial(rollback, known=known, to=2), by="test")
        body = {"user": USERS[0], "k": 5}
        wait_until(lambda: asked(node, body)[1]["version"] == 2, "the rollback", WAIT_S)
        for user in USERS:
            truths[2].check(node, user, 20, [9_000, 1, 2, 3])
            found = truths[2].check(node, user, 1_000)
            assert {*REMOVED} <= {*found}
            assert not {*ADDED} & {*found}
    whole = {version: vectors_in(store, truth.chain.links) for version, truth in truths.items()}
    assert compact(store, name).is_new
    (base,) = Chain.find(store, name).links
    assert base.manifest.kind == "base"
    assert same(vectors_in(store, (base,)), whole[4])
    back = write_revert(store, name, to=2, run=base.manifest.run)
    assert same(vectors_in(store, Chain.find(store, name).links), whole[2])
    assert back.manifest.retrieval == truths[2].chain.manifest.retrieval
    assert verify(store, name, everything=True).defects == ()
    # The trainer goes on from the revert, and learns what was shown since once more.
    again = Truth(folder, learn(folder))
    again.check_vectors()
    assert again.ids == truths[4].ids
