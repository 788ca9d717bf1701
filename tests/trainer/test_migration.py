"""Migration: a changed application begins with what the one that it replaces has learned."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from streamlearn.apps import App, AppFolder
from streamlearn.errors import UsageError
from streamlearn.features import Calibration, Cross, Dense, Label, LabelGroup, Number, Product, Slot
from streamlearn.features.combination import CURVE_SHAPE
from streamlearn.models import DcnV2, DeepFm, model_of
from streamlearn.ps import Epoch
from streamlearn.samples import FeatureColumns, SampleBatch, SlotColumns
from streamlearn.trainer import TrainReport, migration
from streamlearn.trainer.learner import Learner
from streamlearn.trainer.migration import Migration
from streamlearn.trainer.rows import Rows
from streamlearn.trainer.trainer import Trainer
from streamlearn.trainer.version_scores import score_rows
from streamlearn.versions import Chain, load_tensors
from streamlearn.versions.format.manifest import Manifest, Origin
from tests.trainer.runs import known_of, local_client, state_of, store_of, until_end
from tests.trainer.stream import learnable_app, learnable_folder, messages_of, write_messages

GRAPH = "0" * 64
MESSAGES = 12


def run(folder: AppFolder) -> TrainReport:
    """Learn all there is, with the application's own model."""
    with folder.open_topic("samples") as topic, local_client(folder) as client:
        trainer = Trainer(folder, model_of(folder), topic, client, store_of(folder))
        return trainer.run(threading.Event(), until=until_end(topic))


def learned_app(folder: Path, app: App) -> AppFolder:
    learned = learnable_folder(folder, {"trainer": {"step_rows": 64}}, app)
    write_messages(learned, messages_of(app, MESSAGES))
    run(learned)
    return learned


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> AppFolder:
    return learned_app(tmp_path_factory.mktemp("old"), learnable_app())


def migration_of(old: AppFolder, new: AppFolder, *, is_relearning: bool = False) -> Migration:
    source = Chain.find(store_of(old), old.app.name)
    return Migration(old, new, store_of(new), source, is_relearning=is_relearning)


def migrated(
    old: AppFolder, app: App, *, is_relearning: bool = False, messages: Iterable[Any] = (), settings: Any = None
) -> AppFolder:
    """The folder of an application that has begun with what another learned, with samples of its own."""
    new = AppFolder(app, old.folder, settings or old.settings)
    write_messages(new, list(messages))
    with new.open_topic("samples") as topic:
        migration_of(old, new, is_relearning=is_relearning).write(topic, GRAPH, "test")
    return new


def changed(name: str, app: App, **fields: Any) -> App:
    names = ("slots", "dense", "item_id", "derived")
    features = {field: fields.pop(field) for field in names if field in fields}
    return replace(app, name=name, serves=app.served_name, features=replace(app.features, **features), **fields)


def manifest_of(folder: AppFolder) -> Manifest:
    return Chain.find(store_of(folder), folder.app.name).manifest


def scores(folder: AppFolder, batch: SampleBatch) -> npt.NDArray[np.float32]:
    """The logits of samples by the newest version."""
    learner = Learner(folder.app, model_of(folder), folder.settings.trainer)
    chain = Chain.find(store_of(folder), folder.app.name)
    load_dense = partial(load_tensors, chain.store, chain.head)
    with local_client(folder) as client:
        client.restore(Epoch(99, 0), chain.ref)
        learner.load(load_dense("dense"), load_dense("dense_optimizer"))
        labels = tuple(batch.labels[0] for _ in folder.app.labels)  # their values do not matter
        rows = Rows(folder.app, client, 64, folder.settings.tables)
        return score_rows(learner, rows, replace(batch, labels=labels), 64)


def sample() -> SampleBatch:
    return messages_of(learnable_app(), MESSAGES + 1)[-1][1]


def same_rows(old: AppFolder, new: AppFolder, tables: Iterable[str] = ("main", "tags")) -> bool:
    learned, begun = state_of(old), state_of(new)
    names = [f"{table}.{part}" for table in tables for part in ("keys", "rows", "state")]
    return all(begun[name] == learned[name] for name in names)


@pytest.mark.parametrize("model", ["dcn_v2", "din", "deepfm", "mmoe", "ple"])
def test_an_added_slot_and_an_added_dense_column_change_no_score_and_no_row(model: str, tmp_path: Path) -> None:
    old = learned_app(tmp_path, replace(learnable_app(), model=model))
    # The pairs of deepfm have no weight for a single slot, so its rows themselves begin at zero.
    initial_range = 0.0 if model == "deepfm" else 0.05
    added = Slot("mood", "item", table="mood", dim=8, default=0, initial_range=initial_range)
    dense = (*old.app.features.dense, Dense("heat", "item", default=0.0))
    new = migrated(old, changed("wider", old.app, slots=(*old.app.features.slots, added), dense=dense))
    assert same_rows(old, new)
    batch = sample()
    slots = dict(batch.item.slots) | {"mood": SlotColumns(np.arange(len(batch), dtype=np.uint64))}
    columns = dict(batch.item.dense) | {"heat": np.full((len(batch), 1), 7, np.float32)}
    before, after = scores(old, batch), scores(new, replace(batch, item=FeatureColumns(slots, columns)))
    assert np.abs(after - before).max() <= 1e-6
    assert before.std() > 0.01


@pytest.mark.parametrize("optimizer", ["adam", "adagrad"])
@pytest.mark.parametrize("kind", [DcnV2, DeepFm])
def test_what_was_learned_before_models_had_pairs_is_kept(kind: Any, optimizer: str, tmp_path: Path) -> None:
    app = replace(learnable_app(), model={DcnV2: "dcn_v2", DeepFm: "deepfm"}[kind])
    old = learnable_folder(tmp_path, {"trainer": {"step_rows": 64, "optimizer": optimizer}}, app)
    write_messages(old, messages_of(app, MESSAGES))
    with old.open_topic("samples") as topic, local_client(old) as client:
        trainer = Trainer(old, kind(pairs=False), topic, client, store_of(old))
        trainer.run(threading.Event(), until=until_end(topic))
    new = migrated(old, changed("again", app))
    assert same_rows(old, new)
    assert np.abs(scores(new, sample()) - scores(old, sample())).max() <= 1e-6
    head = Chain.find(store_of(new), "again").head
    dense, state = (load_tensors(store_of(new), head, part) for part in ("dense", "dense_optimizer"))
    assert not dense["mlp_0_pairs_both"].any()
    assert len(state["slot0"]) == sum(weight.size for weight in dense.values())


def test_pairs_are_not_dropped_in_silence(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text("from streamlearn.models import DcnV2\nmodel = DcnV2(pairs=False)\n")
    old = learned_app(tmp_path, replace(learnable_app(), model="dcn_v2"))
    new = replace(old, app=changed("plain", old.app, model="plain:model"))
    found = migration_of(old, new)
    assert [(part.kind, part.name) for part in found.lost] == [
        ("weight", "mlp_0_pairs_user"),
        ("weight", "mlp_0_pairs_both"),
    ]
    with pytest.raises(UsageError, match=r"2 parts of 'plain' .* weight 'mlp_0_pairs_user': the model has no such"):
        found.check()
    migration_of(old, new, is_relearning=True).check()
    # Pairs with a slot that is gone are gone with it.
    fewer = [slot for slot in old.app.features.slots if slot.name != "history"]
    assert not migration_of(old, replace(old, app=changed("fewer", old.app, slots=tuple(fewer)))).lost


@pytest.mark.parametrize("model", ["dcn_v2", "deepfm", "mmoe"])
def test_columns_that_are_made_from_others_change_no_score_when_they_are_added(model: str, tmp_path: Path) -> None:
    old = learned_app(tmp_path, replace(learnable_app(), model=model))
    initial_range = 0.0 if model == "deepfm" else 0.05
    derived = (
        Cross("user_id", "video_id", table="pairs", dim=8, initial_range=initial_range),
        Product("age", "length"),
    )
    app = changed("derived", old.app, derived=derived)
    new = migrated(old, app)
    assert same_rows(old, new)
    before, after = scores(old, sample()), scores(new, sample())
    assert np.abs(after - before).max() <= 1e-6
    again = AppFolder(replace(app, name="again"), old.folder, old.settings)
    outcomes = {(part.kind, part.name): part.outcome for part in migration_of(old, again).parts}
    assert outcomes["cross", "user_id_x_video_id"] == "new"
    fewer = AppFolder(changed("fewer", app, derived=()), new.folder, new.settings)
    parts = {(part.kind, part.name): part.outcome for part in migration_of(new, fewer).parts}
    assert parts["cross", "user_id_x_video_id"] == "gone"
    assert "lost" not in parts.values()


def test_a_calibration_changes_no_score_when_it_is_added_and_loses_nothing(tmp_path: Path) -> None:
    old = learned_app(tmp_path, learnable_app())
    app = changed("calibrated", old.app, derived=(Calibration("bought", "user_id"),))
    new = migrated(old, app)
    assert same_rows(old, new)
    np.testing.assert_array_equal(scores(new, sample()), scores(old, sample()))
    again = AppFolder(replace(app, name="again"), old.folder, old.settings)
    outcomes = {(part.kind, part.name): part.outcome for part in migration_of(old, again).parts}
    assert outcomes.pop(("calibration", "bought_by_user_id")) == "new"
    assert {*outcomes.values()} == {"kept"}


def test_curves_begin_as_zeros_and_are_taken_over_by_a_later_application(tmp_path: Path) -> None:
    curve = Calibration("bought", "user_id", method="isotonic")
    old = learned_app(tmp_path, learnable_app())
    new = migrated(old, changed("curved", old.app, derived=(curve,)))
    np.testing.assert_array_equal(scores(new, sample()), scores(old, sample()))
    fresh = AppFolder(replace(new.app, name="fresh"), new.folder, new.settings)
    dense = {curve.weight_name: np.ones(CURVE_SHAPE, np.float32)}
    step = migration_of(new, fresh)
    initial = step._weights()[0][curve.weight_name]
    assert not initial.any()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(migration, "load_tensors", lambda *of: load_tensors(*of) | (dense if of[2] == "dense" else {}))
        assert step._weights()[0][curve.weight_name].all()


@pytest.mark.parametrize(
    "other",
    [
        Calibration("click", "user_id", name="own"),
        Calibration("bought", "video_id", name="own"),
        Cross("user_id", "video_id", name="own", table="calibration", dim=2, initial_range=0.0),
    ],
)
def test_a_derived_column_of_something_else_does_not_take_over_what_was_learned_under_its_name(
    other: Calibration | Cross, tmp_path: Path
) -> None:
    features = replace(learnable_app().features, derived=(Calibration("bought", "user_id", name="own"),))
    old = learned_app(tmp_path, replace(learnable_app(), features=features))
    new = AppFolder(changed("other", old.app, derived=(other,)), old.folder, old.settings)
    (part,) = (part for part in migration_of(old, new).parts if part.name == "own")
    assert (part.outcome, part.why) == ("lost", "it is made of other columns, or of another label")


def test_a_removed_slot_leaves_the_rows_of_others_as_they_were(old: AppFolder) -> None:
    slots = tuple(slot for slot in old.app.features.slots if slot.name != "user_id")
    new = AppFolder(changed("without", old.app, slots=slots), old.folder, old.settings)
    outcomes = {(part.kind, part.name): part.outcome for part in migration_of(old, new).parts}
    assert outcomes["slot", "user_id"] == "gone"
    assert outcomes["weight", "mlp_0_item"] == outcomes["weight", "mlp_0_user"] == "kept"
    assert same_rows(old, migrated(old, new.app))


def test_renamed_features_and_labels_keep_everything(old: AppFolder) -> None:
    names = {"user_id": "member_id", "video_id": "clip_id"}
    slots = [
        replace(slot, name=names[slot.name], was=slot.name) if slot.name in names else slot
        for slot in old.app.features.slots
    ]
    dense = [replace(old.app.features.dense[0], name="years", was="age"), old.app.features.dense[1]]
    labels = tuple(replace(label, name=f"{label.name}_2", was=label.name) for label in old.app.labels)
    slots[1] = replace(slots[1], keys_of="video_id")  # the name under which these keys were learned
    app = changed("renamed", old.app, slots=slots, dense=dense, item_id="clip_id", labels=labels)
    new = migrated(old, app)
    assert same_rows(old, new)
    assert {
        part.outcome
        for part in migration_of(old, AppFolder(replace(app, name="again"), old.folder, old.settings)).parts
    } == {"kept"}
    before, batch = scores(old, sample()), sample()
    user = {names.get(name, name): column for name, column in batch.user.slots.items()}
    item = {names.get(name, name): column for name, column in batch.item.slots.items()}
    ages = {"years": batch.user.dense["age"]}
    again = replace(batch, user=FeatureColumns(user, ages), item=FeatureColumns(item, batch.item.dense))
    np.testing.assert_allclose(scores(new, again), before, atol=1e-6)


@pytest.mark.parametrize("model", ["dcn_v2", "mmoe"])
def test_labels_keep_their_weights_and_marks_wherever_they_stand(model: str, tmp_path: Path) -> None:
    old = learned_app(tmp_path, replace(learnable_app(), model=model))
    click, bought = old.app.labels
    shared = Label("share", "share", "fast")
    messages = messages_of(old.app, MESSAGES)
    new = migrated(old, changed("labels", old.app, labels=(bought, shared, click)))
    before, after = scores(old, sample()), scores(new, sample())
    np.testing.assert_allclose(after[:, [2, 0]], before, atol=1e-6)
    assert after[:, 1].std() > 1e-4, "layers of a new label begin at initial values, or it would never learn"
    fewer = migrated(old, changed("fewer", old.app, labels=(bought,), groups=old.app.groups[1:]))
    np.testing.assert_allclose(scores(fewer, sample())[:, 0], before[:, 1], atol=1e-6)
    known = known_of(old, messages)
    assert known
    of_new = [
        (partition, replace(batch, labels=(batch.labels[1], replace(batch.labels[0], name="share"), batch.labels[0])))
        for partition, batch in messages
    ]
    moved = known_of(new, of_new)
    assert {key: value for key, value in moved.items() if key[3] != "share"} == known


def test_what_was_learned_is_not_learned_again_and_what_follows_is(old: AppFolder) -> None:
    groups = (LabelGroup("fast", wait_s=20, window_s=60), old.app.groups[1])
    app = changed("slower", old.app, groups=groups)
    new = migrated(old, app, messages=messages_of(app, MESSAGES))
    begun, origin = state_of(new), manifest_of(new).origin
    report = run(new)
    assert report.tally.rows == 0
    assert report.tally.counts["dropped"] > 300
    assert state_of(new) == begun
    write_messages(new, messages_of(app, MESSAGES + 2)[len(messages_of(app, MESSAGES)) :])
    assert run(new).tally.rows > 20
    assert isinstance(origin, Origin)
    assert (origin.model, origin.version.version) == ("learnable", Chain.find(store_of(old), "learnable").version)
    assert manifest_of(new).origin == origin
    assert manifest_of(new).version > 1


def test_a_change_that_loses_something_learned_needs_to_learn_the_samples_again(old: AppFolder) -> None:
    slots = tuple(replace(slot, dim=6) if slot.table == "tags" else slot for slot in old.app.features.slots)
    app = changed("longer", old.app, slots=slots)
    with pytest.raises(UsageError, match="slot 'tags': the dim of its table was 4 and is 6") as refused:
        migrated(old, app)
    assert "--relearn" in refused.value.help
    new = migrated(old, app, is_relearning=True, messages=messages_of(app, MESSAGES))
    assert same_rows(old, new, ["main"])
    assert state_of(new)["tags.keys"] == b""
    report = run(new)
    assert report.tally.rows > 300
    # What the origin has learned is not scored: those figures would be too good.
    assert not [name for name in report.summary if name.endswith("auc")]
    logistic = AppFolder(changed("other", old.app, model="din"), old.folder, old.settings)
    reasons = {part.why for part in migration_of(old, logistic).lost}
    assert reasons == {"the model was dcn_v2 and is din"}


def test_only_a_label_that_begins_to_follow_another_loses_what_it_learned(old: AppFolder) -> None:
    click, bought = old.app.labels
    app = changed("following", old.app, labels=(click, replace(bought, follows="click")))
    with pytest.raises(UsageError, match=r"label 'bought': it followed none and follows click") as refused:
        migrated(old, app)
    assert "--relearn" in refused.value.help
    new = migrated(old, app, is_relearning=True, messages=messages_of(app, MESSAGES))
    np.testing.assert_allclose(scores(new, sample())[:, 0], scores(old, sample())[:, 0], atol=1e-6)
    again = AppFolder(replace(app, name="again"), old.folder, old.settings)
    outcomes = {(part.kind, part.name): part.outcome for part in migration_of(old, again).parts}
    assert (outcomes["label", "click"], outcomes["label", "bought"]) == ("kept", "lost")
    assert run(new).tally.rows > 300
    number = replace(bought, number=Number(missing=0))
    (lost,) = migration_of(
        old, AppFolder(changed("sums", old.app, labels=(click, number)), old.folder, old.settings)
    ).lost
    assert lost.why == "it was positive or negative and is a number around 0 over 1"
    weights = replace(bought, loss_weight=3.0)
    heavy = migration_of(old, AppFolder(changed("heavy", old.app, labels=(click, weights)), old.folder, old.settings))
    assert not heavy.lost


def test_both_applications_answer_the_same_callers_from_the_same_places(old: AppFolder) -> None:
    fields: Any
    for fields, said in (
        ({"name": "learnable"}, "both applications have the name 'learnable'"),
        ({"name": "other", "serves": ""}, r"serves of 'other' is 'other'; 'learnable' has 'learnable'"),
    ):
        app = replace(changed("other", old.app), **fields)
        with pytest.raises(UsageError, match=said):
            migration_of(old, AppFolder(app, old.folder, old.settings))
    elsewhere = AppFolder(changed("other", old.app), old.folder / "elsewhere", old.settings)
    with pytest.raises(UsageError, match=r"versions\.store of 'other' is") as refused:
        migration_of(old, elsewhere)
    assert f'store = "{old.store_url}"' in refused.value.help
    assert f'url = "{old.registry_url}"' in refused.value.help
    once = migrated(old, changed("once", old.app))
    with pytest.raises(UsageError, match="'once' has versions"):
        migration_of(old, once)
    edited = AppFolder(replace(old.app, labels=old.app.labels[:1], groups=old.app.groups[:1]), old.folder, old.settings)
    with pytest.raises(UsageError, match="has the labels click, bought; this application has click"):
        migration_of(edited, AppFolder(changed("other", old.app), old.folder, old.settings))
