"""Calibrations of labels by the value of a slot: learned beside the model, and a part of each version."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from streamlearn.apps import AppFolder
from streamlearn.errors import UsageError
from streamlearn.features import Calibration, FeatureSpec
from streamlearn.models import DcnV2, DeepFm, Din, Mmoe, PackedSide, export_graphs, load_graphs
from streamlearn.models.logistic import Logistic
from streamlearn.ps import Epoch
from streamlearn.samples import SampleBatch
from streamlearn.trainer.learner import Learner
from streamlearn.trainer.rows import Rows
from streamlearn.trainer.version_scores import score_rows
from streamlearn.versions import Chain, load_tensors
from tests.models.packed import filled, packed, scores_of
from tests.trainer.runs import local_client, run, state_of, store_of
from tests.trainer.stream import learnable_app, learnable_folder, messages_of, write_messages
from tests.trainer.toy import Toy

STRICT = {"order": "strict", "staleness_steps": 0, "step_rows": 64, "rate": 0.01}
CALIBRATIONS = (Calibration("bought", "video_id"), Calibration("click", "user_id"), Calibration("bought", "user_id"))
ROWS = 1_000
TRUTH = {0: (1.0, -2.0), 1: (2.0, 1.0), 2: (0.5, 0.5)}
"""By user, the scale and offset of the length in the logit of a click; the model below is right about user 1."""


class Loud:
    """Says twice the length and one more, whatever it learns."""

    def build(self, features: FeatureSpec, labels: Sequence[str], seed: int) -> Sequence[Any]:
        (self._length,) = (column for column in features.pack.item.flat if column.name == "length")
        self._labels = len(labels)
        return [tf.zeros([1])]

    def user(self, weights: Sequence[Any], inputs: PackedSide) -> PackedSide:
        return PackedSide(None, None)

    def score(self, weights: Sequence[Any], user: PackedSide, user_index: Any, inputs: PackedSide) -> Any:
        length = inputs.flat[:, self._length.at : self._length.at + 1]
        return tf.tile(2.0 * length + 1.0 + 0.0 * weights[0], [1, self._labels])


def calibrated(*calibrations: Calibration, name: str = "learnable") -> Any:
    app = learnable_app(name)
    return replace(app, features=replace(app.features, derived=calibrations))


@pytest.mark.parametrize("model", ["toy", "dcn_v2", "deepfm", "din", "mmoe", "logistic"])
@pytest.mark.parametrize("more", [{}, {"step_rows": 7, "clip_norm": 1.0, "l2": 1e-4}], ids=["", "clipped"])
def test_the_model_learns_as_if_there_were_none(model: str, more: dict[str, Any], tmp_path: Path) -> None:
    states = []
    kinds = {"dcn_v2": DcnV2, "deepfm": DeepFm, "din": Din, "mmoe": Mmoe, "logistic": Logistic, "toy": Toy}
    for number, app in enumerate((learnable_app(), calibrated(*CALIBRATIONS))):
        (tmp_path / str(number)).mkdir()
        folder = learnable_folder(tmp_path / str(number), {"trainer": STRICT | more}, app)
        write_messages(folder, messages_of(app, 4))
        run(folder, model=kinds[model]())
        states.append(state_of(folder))
    plain, beside = states
    if model == "logistic":  # whose sums TensorFlow may order in another way
        for name in plain:
            one, other = (np.frombuffer(state[name], np.float32) for state in states)
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    else:
        assert {name: beside[name] for name in plain} == plain
    rows = np.frombuffer(beside["calibration.rows"], np.float32).reshape(-1, 2)
    assert (np.abs(rows) > 0.01).any(axis=1).mean() > 0.8


def test_a_loud_model_is_brought_to_the_truth_of_each_value(tmp_path: Path) -> None:
    app = calibrated(Calibration("click", "user_id"))
    settings = {"trainer": STRICT, "tables": {"rates": {"calibration": 0.3}}}
    folder = learnable_folder(tmp_path, settings, app)
    batches = [true_batch(batch) for _, batch in messages_of(app, 24, ROWS) if len(batch) == ROWS]
    write_messages(folder, [(number % 2, batch) for number, batch in enumerate(batches)])
    run(folder, model=Loud())
    found, lengths = logits(folder, Loud(), batches[0]), batches[0].item.dense["length"][:, 0]
    users = batches[0].user.slots["user_id"].keys[batches[0].request_index]
    for user, (scale, offset) in TRUTH.items():
        rows = users == user
        assert np.abs(found[rows, 0] - (scale * lengths[rows] + offset)).max() < 0.3, user
        np.testing.assert_allclose(found[rows, 1], 2 * lengths[rows] + 1, rtol=1e-6)


def test_exported_graphs_calibrate_with_the_numbers_of_both_sides(tmp_path: Path) -> None:
    app = calibrated(*CALIBRATIONS)
    model, features, plain = Toy(), app.features, learnable_app().features
    inputs = packed(features)
    at = {
        one.name: (one.at, one.at + one.width) for side in (features.pack.user, features.pack.item) for one in side.flat
    }

    def channels(flat: Any, *names: str) -> Any:
        return np.concatenate([flat[:, slice(*at[name])] for name in names], axis=1)

    user = PackedSide(channels(inputs.user.flat, *(one.name for one in plain.pack.user.flat)), inputs.user.sequence)
    item = PackedSide(channels(inputs.item.flat, *(one.name for one in plain.pack.item.flat)), None)
    weights = filled(model.build(plain, app.label_names, 0))
    expected = scores_of(model, weights, inputs._replace(user=user, item=item))
    of_users = inputs.user.flat[inputs.user_index]
    of_click = channels(of_users, "click_by_user_id")
    of_bought = channels(of_users, "bought_by_user_id") + channels(inputs.item.flat, "bought_by_video_id")
    for label, numbers in enumerate((of_click, of_bought)):
        expected[:, label] = expected[:, label] * (1 + numbers[:, 0]) + numbers[:, 1]
    with pytest.raises(UsageError, match=r"labels are calibrated \(bought_by_video_id\)"):
        export_graphs(model, features, app.label_names, tmp_path / "graphs")
    export_graphs(model, features, app.label_names, tmp_path / "graphs", outputs=app.outputs)
    graphs = load_graphs(tmp_path / "graphs")
    names = [note.name for note in graphs.described.weights]
    found = scores_of(graphs, graphs.weights(dict(zip(names, weights, strict=True))), inputs)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def true_batch(batch: SampleBatch) -> SampleBatch:
    """The same rows of three users only, with clicks that follow the truth."""
    rng = np.random.default_rng(batch.header.watermark_ms)
    lengths = rng.uniform(-1, 1, (ROWS, 1)).astype(np.float32)
    users = replace(batch.user.slots["user_id"], keys=batch.user.slots["user_id"].keys % np.uint64(len(TRUTH)))
    scale, offset = np.array([TRUTH[int(user)] for user in users.keys[batch.request_index]]).T
    chances = 1 / (1 + np.exp(-(scale * lengths[:, 0] + offset)))
    click = replace(
        batch.labels[0],
        value=(rng.random(ROWS) < chances).astype(np.uint8),
        sample_rate=np.ones(ROWS, np.float32),
    )
    return replace(
        batch,
        user=replace(batch.user, slots={**batch.user.slots, "user_id": users}),
        item=replace(batch.item, dense={**batch.item.dense, "length": lengths}),
        labels=(click, *batch.labels[1:]),
    )


def logits(folder: AppFolder, model: Any, batch: SampleBatch) -> Any:
    """The predictions of a batch by the newest version."""
    learner = Learner(folder.app, model, folder.settings.trainer)
    chain = Chain.find(store_of(folder), folder.app.name)
    with local_client(folder) as client:
        client.restore(Epoch(99, 0), chain.ref)
        learner.load(*(load_tensors(chain.store, chain.head, kind) for kind in ("dense", "dense_optimizer")))
        return score_rows(learner, Rows(folder.app, client, 64, folder.settings.tables), batch, 64)
