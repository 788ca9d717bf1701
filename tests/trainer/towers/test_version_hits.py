"""Hit rates of versions: a version says how it finds what users chose, and one with damaged towers is rejected."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from streamlearn.apps import App, AppFolder
from streamlearn.features.retrieval import of_retrieval
from streamlearn.publisher.retrieval_hits import TOP
from streamlearn.samples import SampleBatch, SlotColumns
from streamlearn.table import Packing, TableSet, declared_tables
from streamlearn.trainer.towers.positives import Positives
from streamlearn.trainer.towers.tower_learner import PackedTowers
from streamlearn.trainer.towers.tower_rows import TowerRows
from streamlearn.trainer.towers.tower_state import TowerState
from streamlearn.trainer.towers.tower_steps import TowerMaker
from streamlearn.trainer.towers.version_hits import VersionHits
from streamlearn.trainer.trainer import Trainer
from streamlearn.versions import Chain, Finding, History, Known, load, load_tensors
from streamlearn.versions.format.library_files import vectors_in
from streamlearn.versions.format.verdict import read_verdict
from tests.trainer.runs import run, store_of
from tests.trainer.stream import learnable_app, messages_of, write_messages
from tests.trainer.towers.towered import published, towered_app, towered_folder

SETTINGS: dict[str, dict[str, Any]] = {
    "trainer": {"step_rows": 128},
    "tables": {"rates": {"towers": 0.2}},
    "judge": {"scored_rows_min": 100, "auc_drop_ratio_max": 0.2},
}
MESSAGES, ROWS, EVERY_STEPS, DAMAGE_STEP = 240, 80, 75, 80
# As `two_tower`, but a user's vector is multiplied by a weight, which stays what it is.
SIGNED = """
import tensorflow as tf

from streamlearn.trainer.towers.two_tower import TwoTower


class Signed(TwoTower):
    def build(self, features, seed):
        return [*super().build(features, seed), tf.ones((1,))]

    @property
    def weight_names(self):
        return (*super().weight_names, "sign")

    def user(self, weights, inputs):
        return super().user(weights[:-1], inputs) * tf.stop_gradient(weights[-1])
"""
Findings = dict[str, Finding]


def clustered(app: App, count: int) -> list[tuple[int, SampleBatch]]:
    """Messages in which each of 20 users clicks one item in five of those shown, always of the same fifth of all."""
    found = []
    for partition, batch in messages_of(app, count, ROWS):
        click, bought = batch.labels
        if not bought.settles.all():  # a correction
            continue
        users = batch.user.slots["user_id"].keys % 20
        assert batch.item_ids is not None
        is_positive = users[batch.request_index] % 5 == batch.item_ids.values.astype(np.uint64) % 5
        slots = {**batch.user.slots, "user_id": SlotColumns(users)}
        labels = (replace(click, value=is_positive.astype(np.uint8)), bought)
        found.append((partition, replace(batch, labels=labels, user=replace(batch.user, slots=slots))))
    return found


def cut_often(trainer: Trainer) -> None:
    """Let a version be cut every few steps, and training wait until it is judged."""
    trainer.publisher.settle()
    committed = trainer.publisher.committed
    # Of a few steps that are pushed at once, it sees the last.
    if committed is not None and committed.version <= trainer.tally.steps // EVERY_STEPS + 1:
        trainer.publisher.make_due()


def verdicts(folder: AppFolder) -> Iterator[tuple[Known, Findings]]:
    """All versions, each with the findings of the judge by check."""
    store, history = store_of(folder), History(store_of(folder), folder.app.name)
    for known in history.read():
        verdict = read_verdict(store, history.folder(known.ref))
        assert verdict is not None
        yield known, {finding.check: finding for finding in verdict.findings}


class Damage:
    """Damages the towers of a run from a step on."""

    def __init__(self, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.has_begun, self._kind = False, kind
        made, pack, vectors = TowerMaker.__init__, TowerRows.pack, TowerMaker.vectors

        def init(maker: TowerMaker, *given: Any) -> None:
            made(maker, *given)
            self._maker = maker

        def poisoned(rows: TowerRows, columns: Any) -> PackedTowers | None:
            packed = pack(rows, columns)
            if packed is None or not self.has_begun:
                return packed
            return replace(packed, item_index=(packed.item_index + 7) % len(packed.keys))

        def collapsed(maker: TowerMaker, *given: Any) -> Any:
            return vectors(maker, *given) * np.float32(
                {"zero vectors": 0, "NaN": np.nan}[kind] if self.has_begun else 1
            )

        monkeypatch.setattr(TowerMaker, "__init__", init)
        if kind == "poisoned labels":
            monkeypatch.setattr(TowerRows, "pack", poisoned)
        elif kind in ("zero vectors", "NaN"):
            monkeypatch.setattr(TowerMaker, "vectors", collapsed)

    def on_step(self, done: Any) -> None:
        if done.steps >= DAMAGE_STEP and not self.has_begun:
            self.has_begun = True
            if self._kind == "sign":
                self._maker.weights[-1] = -1.0


def run_of(path: Path, **more: Any) -> AppFolder:
    folder = towered_folder(path, SETTINGS, towered_app(model="model:Signed"))
    (path / "model.py").write_text(SIGNED)
    write_messages(folder, clustered(folder.app, MESSAGES))
    published(folder, show=cut_often, **more)
    return folder


@pytest.mark.parametrize(
    ("kind", "check"),
    [("sign", "retrieval"), ("poisoned labels", "retrieval"), ("zero vectors", "retrieval"), ("NaN", "finite")],
)
def test_a_version_with_damaged_towers_is_rejected_though_its_ranking_is_fine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, check: str
) -> None:
    damage = Damage(kind, monkeypatch)
    folder = run_of(tmp_path, on_step=damage.on_step)
    assert damage.has_begun
    judged = [(known.metrics["steps"] > DAMAGE_STEP, known, findings) for known, findings in verdicts(folder)]
    assert {known.outcome for is_damaged, known, _ in judged if not is_damaged} == {"unscored", "passed"}
    known, findings = next((known, findings) for is_damaged, known, findings in judged if is_damaged)
    assert known.outcome == "rejected"
    assert findings["scores"].is_ok
    assert findings["scores"].is_checked
    assert not findings[check].is_ok
    if check == "retrieval":
        assert findings["norms"].is_ok
        assert findings["finite"].is_ok
        values = findings[check].values
        assert values["retrieval_hit_100"] < 0.7 * values["active.retrieval_hit_100"]
        assert "hit rate fell by" in findings[check].said
    else:
        assert "vectors (" in findings[check].said


def searched(folder: AppFolder, version: int, positives: Positives) -> npt.NDArray[np.bool_]:
    """Which positives a version finds, from its files, by the product of each user with all items."""
    chain, towers = Chain.find(store_of(folder), folder.app.name, version), folder.app.towers
    assert towers is not None
    tables = TableSet(declared_tables(folder.app.tables, folder.settings.tables))
    load(chain, tables)
    packing, learner = Packing(towers.pack.user, tables), TowerState(folder).learner
    users, count = positives.users, positives.requests
    dense = of_retrieval(load_tensors(chain.store, chain.head))
    packed = packing.flat(users, count), packing.sequences(users, count)
    vectors = learner.users(*packed, learner.end_to_end(dense))
    items = vectors_in(chain.store, chain.links)
    assert items is not None
    scores = vectors.astype(np.float64) @ (items["row"] * items["scale"][:, None].astype(np.float64)).T
    at = np.searchsorted(items["key"], positives.keys).clip(max=len(items["key"]) - 1)
    own = scores[positives.user_index, at]
    better = (scores[positives.user_index] > own[:, None]).sum(axis=1)
    found: npt.NDArray[np.bool_] = (better < TOP) & (items["key"][at] == positives.keys)
    return found


def test_nothing_is_rejected_while_the_towers_are_well_and_versions_say_how_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hits, made = VersionHits._hits, list[tuple[int, Positives, npt.NDArray[np.bool_]]]()

    def noted(self: VersionHits, version: int, positives: Positives) -> npt.NDArray[np.bool_]:
        found = hits(self, version, positives)
        made.append((version, positives, found))
        return found

    monkeypatch.setattr(VersionHits, "_hits", noted)
    folder = run_of(tmp_path)
    assert {version for version, _, _ in made} >= {2, 3}
    for version, positives, found in made:
        if version == 1:  # it has no items
            assert not found.any()
        elif len(found):
            # Scores of float32 may differ from those of float64 by a place at the end of the first 100.
            assert (searched(folder, version, positives) != found).mean() < 0.01
    judged = list(verdicts(folder))
    assert {known.outcome for known, _ in judged} == {"unscored", "passed"}
    newest, findings = judged[-1]
    assert findings["retrieval"].is_checked
    assert newest.metrics["library_items"] == 500
    assert 0 < newest.metrics["vectors_changed"] <= 500
    assert 300 < newest.metrics["retrieval_positives"] <= 4_096
    # Of 500 items a fifth are right, and 100 are found: chance finds one in five.
    before, after = (known.metrics["retrieval_hit_100"] for known, _ in judged[-2:])
    assert 0.2 < before < after
    # What the towers have never learned is found as often as what they had not learned yet.
    held_out = findings["retrieval"].values["active.retrieval_hit_100"]
    assert held_out == pytest.approx(after, abs=0.2)
    # All was learned within an hour: popularity has not been counted for long enough.
    assert "retrieval_popular_100" not in newest.metrics


def test_without_retrieval_manifests_and_verdicts_do_not_know_of_it(tmp_path: Path) -> None:
    folder = towered_folder(tmp_path, {"judge": SETTINGS["judge"]}, learnable_app())
    write_messages(folder, messages_of(folder.app, 20))
    run(folder, show=cut_often)
    for known, findings in verdicts(folder):
        assert [*findings] == ["finite", "learned", "norms", "scores"]
        assert not [name for name in known.metrics if "retrieval" in name or "vectors" in name or "library" in name]
