"""Migration with towers: they are taken over if they are declared alike, and begin afresh otherwise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamlearn.apps import App, AppFolder
from streamlearn.features import Slot
from streamlearn.models import model_of
from streamlearn.trainer.migration import Migration
from streamlearn.trainer.towers.tower_state import TowerState
from streamlearn.versions import Chain, load_tensors
from tests.trainer.runs import state_of, store_of
from tests.trainer.stream import learnable_app, messages_of, write_messages
from tests.trainer.towers.towered import TWO, learned, towered_app, towered_folder

GRAPH = "0" * 64


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> AppFolder:
    folder = towered_folder(tmp_path_factory.mktemp("old"))
    write_messages(folder, messages_of(folder.app, 6))
    learned(folder, model=model_of(folder))
    return folder


def migrated(old: AppFolder, app: App) -> tuple[AppFolder, dict[tuple[str, str], tuple[str, str]]]:
    """The folder of an application that has begun with what another learned, and what became of each part."""
    new = AppFolder(app, old.folder, old.settings)
    write_messages(new, [])
    migration = Migration(old, new, store_of(new), Chain.find(store_of(old), old.app.name))
    with new.open_topic("samples") as topic:
        migration.write(topic, GRAPH, "test")
    return new, {(part.kind, part.name): (part.outcome, part.why) for part in migration.parts}


def tensors_of(folder: AppFolder) -> dict[str, Any]:
    chain = Chain.find(store_of(folder), folder.app.name)
    found = load_tensors(chain.store, chain.head) | load_tensors(chain.store, chain.head, "dense_optimizer")
    return {name: tensor for name, tensor in found.items() if name.startswith("retrieval/")}


def named(name: str, app: App) -> App:
    return replace(app, name=name, serves=learnable_app().name)


def test_towers_that_are_declared_alike_are_taken_over_to_the_byte(old: AppFolder) -> None:
    added = Slot("mood", "item", table="mood", dim=8, default=0)
    features = replace(old.app.features, slots=(*old.app.features.slots, added))
    new, parts = migrated(old, replace(named("wider", old.app), features=features))
    assert parts["retrieval", "click"] == ("kept", "")
    before, after = state_of(old), state_of(new)
    assert all(after[f"towers.{part}"] == before[f"towers.{part}"] != b"" for part in ("keys", "rows", "state"))
    learned_before, begun = tensors_of(old), tensors_of(new)
    assert learned_before.keys() == begun.keys()
    assert all(np.array_equal(tensor, begun[name]) for name, tensor in learned_before.items())
    assert int(begun["retrieval/steps"][0]) > 0


@pytest.mark.parametrize(
    ("name", "fields"), [("of_bought", {"label": "bought"}), ("of_more", {"user": ("user_id",)}), ("small", {"dim": 4})]
)
def test_towers_that_are_declared_otherwise_begin_afresh_and_ranking_goes_on(
    old: AppFolder, name: str, fields: dict[str, Any]
) -> None:
    new, parts = migrated(old, named(name, towered_app(**fields)))
    outcome, why = parts["retrieval", new.app.retrieval.label if new.app.retrieval else ""]
    assert outcome == "new"
    assert "declared otherwise" in why
    before, after = state_of(old), state_of(new)
    assert after["towers.keys"] == b""
    for table in ("main", "tags"):
        assert after[f"{table}.rows"] == before[f"{table}.rows"]
    fresh = TowerState(new)
    expected, begun = fresh.dense() | fresh.optimizer_state(), tensors_of(new)
    assert expected.keys() == begun.keys()
    assert all(np.array_equal(tensor, begun[name]) for name, tensor in expected.items())


def test_retrieval_is_added_and_taken_away_without_a_loss(old: AppFolder, tmp_path: Path) -> None:
    plain, parts = migrated(old, named("plain", learnable_app()))
    assert parts["retrieval", "click"] == ("gone", "")
    assert tensors_of(plain) == {}
    assert "towers.keys" not in state_of(plain)
    again, parts = migrated(plain, named("again", replace(learnable_app(), retrieval=TWO)))
    assert parts["retrieval", "click"][0] == "new"
    for each in (plain, again):
        assert state_of(each)["main.rows"] == state_of(old)["main.rows"]
    write_messages(again, messages_of(again.app, 12))
    learned(again, model=model_of(again))
    assert state_of(again)["towers.keys"]
