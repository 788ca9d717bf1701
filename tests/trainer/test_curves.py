"""Isotonic calibrations: fitted by a trainer to what became of its first predictions, and a part of each version."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from streamlearn.apps import AppFolder
from streamlearn.clock import SYSTEM_CLOCK
from streamlearn.features import Calibration
from streamlearn.models import export_graphs, load_graphs
from streamlearn.models.protocol import PackedSide
from streamlearn.ps import Epoch
from streamlearn.publisher.logit_scores import chances_of
from streamlearn.samples import SampleBatch
from streamlearn.trainer.columns import columns_of
from streamlearn.trainer.evaluation import Evaluation
from streamlearn.trainer.intake.message import Reached
from streamlearn.trainer.intake.split import SplitRequest, split_of
from streamlearn.trainer.interval_evaluation import IntervalEvaluation
from streamlearn.trainer.rows import Rows
from streamlearn.trainer.step import Piece, Step
from streamlearn.trainer.trainer_setup import ends_of
from streamlearn.versions import Chain, PointerLog, Request, Requests, load_tensors
from streamlearn.versions.format.manifest import TimeSkip
from tests.trainer.runs import local_client, run, state_of, store_of
from tests.trainer.stream import STEP_MS, T_MS, learnable_app, learnable_folder, messages_of, write_messages
from tests.trainer.test_calibration import Loud, logits
from tests.trainer.test_evaluation import complete

CURVE = Calibration("click", "user_id", method="isotonic")
WEIGHT = "dense.calibration.click_by_user_id"
ROWS, MESSAGES = 400, 260  # a second each: windows of a minute close a minute after their end
USERS = np.array([1, 2, 3], np.uint64) << np.uint64(40)
KEPT = (1.0, 0.3, 0.6)
"""By user, the share of the clicks that the model expects which come."""
RARE, NEVER = USERS[:1] + np.uint64(1 << 30), USERS[:1] + np.uint64(1 << 31)
STRICT = {"order": "strict", "staleness_steps": 0, "step_rows": 512}


def curved_app() -> Any:
    app = learnable_app()
    return replace(app, features=replace(app.features, derived=(CURVE,)))


def thinned(batch: SampleBatch) -> SampleBatch:
    """The same rows of few users, one of them rare, with clicks as often as the model says or less."""
    rng = np.random.default_rng(batch.header.watermark_ms)
    of = rng.choice(3, len(batch.requests), p=[0.5, 0.3, 0.2])
    keys = np.where(rng.random(len(of)) < 0.002, RARE, USERS[of])
    lengths = rng.uniform(-1, 1, (len(batch), 1)).astype(np.float32)
    chances = chances_of(2.0 * lengths[:, 0].astype(np.float64) + 1) * np.array(KEPT)[of][batch.request_index]
    click = replace(
        batch.labels[0],
        value=(rng.random(len(batch)) < chances).astype(np.uint8),
        sample_rate=np.ones(len(batch), np.float32),
    )
    slots = {**batch.user.slots, "user_id": replace(batch.user.slots["user_id"], keys=keys)}
    return replace(
        batch,
        user=replace(batch.user, slots=slots),
        item=replace(batch.item, dense={**batch.item.dense, "length": lengths}),
        labels=(click, *batch.labels[1:]),
    )


def messages(app: Any, count: int = MESSAGES) -> list[tuple[int, SampleBatch]]:
    found = [batch for _, batch in messages_of(app, count, ROWS) if len(batch) == ROWS]
    return [(number % 2, thinned(batch)) for number, batch in enumerate(found)]


def trained(place: Path, app: Any, **more: Any) -> AppFolder:
    place.mkdir(exist_ok=True)
    folder = learnable_folder(place, {"trainer": STRICT}, app)
    write_messages(folder, messages(app))
    run(folder, model=Loud(), **more)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> AppFolder:
    return trained(tmp_path_factory.mktemp("curved"), curved_app())


def with_users(batch: SampleBatch, key: Any) -> SampleBatch:
    users = batch.user.slots["user_id"]
    one = replace(users, keys=np.full_like(users.keys, key))
    return replace(batch, user=replace(batch.user, slots={**batch.user.slots, "user_id": one}))


def answered(folder: AppFolder, key: Any) -> Any:
    """The lengths of rows and the clicks that the newest version expects of them, were they a user's."""
    batch = with_users(messages(folder.app, 1)[0][1], key)
    return batch.item.dense["length"][:, 0], logits(folder, Loud(), batch)[:, 0]


def test_each_user_is_within_three_percent_of_the_truth(folder: AppFolder) -> None:
    for user, kept in zip(USERS, KEPT, strict=True):
        lengths, found = answered(folder, user)
        expected = chances_of(2 * lengths + 1) * kept
        assert chances_of(found).sum() / expected.sum() == pytest.approx(1, abs=0.03), user
        assert np.abs(chances_of(found) - expected).max() < 0.06


def test_rare_and_unknown_users_have_the_curve_of_all(folder: AppFolder) -> None:
    lengths, rare = answered(folder, RARE[0])
    _, never = answered(folder, NEVER[0])
    np.testing.assert_array_equal(rare, never)
    kept = np.dot([0.5, 0.3, 0.2], KEPT)
    assert chances_of(never).sum() / (chances_of(2 * lengths + 1) * kept).sum() == pytest.approx(1, abs=0.03)


def test_no_order_within_a_user_changes(folder: AppFolder) -> None:
    for user in (*USERS, *NEVER):
        lengths, found = answered(folder, user)
        assert (np.diff(found[np.argsort(lengths)]) > 0).all()


def test_the_model_learns_as_if_there_were_none_and_the_first_version_changes_nothing(
    folder: AppFolder, tmp_path: Path
) -> None:
    plain, beside = state_of(trained(tmp_path / "plain", learnable_app())), state_of(folder)
    assert {name: beside[name] for name in plain} == plain
    assert [*beside.keys() - plain.keys()] == [WEIGHT]
    assert not np.frombuffer(state_of(folder, 1)[WEIGHT], np.float32).any()


def test_graphs_of_a_version_answer_what_the_judge_sees(folder: AppFolder, tmp_path: Path) -> None:
    app, batch = folder.app, messages(folder.app, 1)[0][1]
    export_graphs(Loud(), app.features, app.label_names, tmp_path / "graphs", outputs=app.outputs)
    graphs = load_graphs(tmp_path / "graphs")
    assert [note.name for note in graphs.described.weights] == ["weight_0", WEIGHT.removeprefix("dense.")]
    for version, is_curved in ((1, False), (None, True)):
        chain = Chain.find(store_of(folder), app.name, version)
        weights = graphs.weights(load_tensors(chain.store, chain.head, "dense"))
        none = np.zeros(len(batch), np.uint32)
        step = Step(1, (Piece(batch, np.arange(len(batch)), none, none),), Reached((), ()), len(batch))
        with local_client(folder) as client:
            client.restore(Epoch(99, 0), chain.ref)
            inputs = Rows(app, client, len(batch)).pack(columns_of(step), at="newest")

        @tf.function(jit_compile=True)  # type: ignore[untyped-decorator]
        def node(*given: Any) -> Any:
            user = graphs.user(given[:2], PackedSide(given[2], given[3]))
            return graphs.score(given[:2], user, given[4], PackedSide(given[5], None))

        sides = (inputs.user_flat, inputs.user_sequence, inputs.user_index, inputs.item_flat)
        found = node(*weights, *sides).numpy()[: len(batch)]
        judged = logits(folder, Loud(), batch) if is_curved else found
        np.testing.assert_array_equal(found, judged)
        raw = 2 * batch.item.dense["length"][:, 0] + 1
        assert np.allclose(found[:, 0], raw, atol=1e-6) is not is_curved
        np.testing.assert_allclose(found[:, 1], raw, atol=1e-6)


def test_a_trainer_that_starts_again_fits_the_same_curves(folder: AppFolder) -> None:
    before = state_of(folder)[WEIGHT]
    batch = messages(folder.app, MESSAGES + 1)[-1]
    write_messages(folder, [batch])
    run(folder, model=Loud())
    np.testing.assert_array_equal(np.frombuffer(state_of(folder)[WEIGHT], "f4"), np.frombuffer(before, "f4"))


def test_the_judge_passes_the_first_curves(folder: AppFolder) -> None:
    store, name = store_of(folder), folder.app.name
    assert PointerLog(store, name).newest().active == Chain.find(store, name).ref


def test_rows_that_a_rewind_skips_make_no_curve(tmp_path: Path) -> None:
    app = curved_app()
    every = messages(app, MESSAGES + 205)
    poisoned = [
        (at, replace(batch, labels=(replace(batch.labels[0], value=np.ones(len(batch), np.uint8)), *batch.labels[1:])))
        for at, batch in every[MESSAGES:-5]
    ]
    folder = learnable_folder(tmp_path, {"trainer": STRICT}, app)
    shares: list[float] = []
    good: Any = None
    for part in (every[:MESSAGES], poisoned, every[-5:]):
        write_messages(folder, part)
        if len(shares) == 2:
            skip = TimeSkip(begin_ms=T_MS + MESSAGES * STEP_MS, end_ms=T_MS + (MESSAGES + 200) * STEP_MS)
            Requests(store_of(folder), app.name, clock=SYSTEM_CLOCK).ask(Request(to=good, skips=(skip,)))
        report = run(folder, model=Loud())
        lengths, found = answered(folder, USERS[1])
        shares.append(chances_of(found).sum() / (chances_of(2 * lengths + 1) * KEPT[1]).sum())
        good = Chain.find(store_of(folder), app.name).ref if len(shares) == 1 else good
    assert report.rewinds == 1
    assert shares[1] > 1.5
    assert (shares[0], shares[2]) == pytest.approx((1, 1), abs=0.03)


def test_held_out_rows_are_scored_with_a_curve_of_what_was_learned(tmp_path: Path) -> None:
    app = curved_app()
    folder = learnable_folder(tmp_path, {"trainer": STRICT}, app)
    write_messages(folder, complete(messages(app)))
    asked = SplitRequest(test_ms=T_MS + 220 * STEP_MS)
    keep_aside: Any = lambda name, data: None  # noqa: E731
    with folder.open_topic("samples") as topic, local_client(folder) as client:
        client.restore(Epoch(1), None)
        split = split_of(folder, topic, asked, ends_of(topic, "end"), keep_aside=keep_aside)
        (once,) = Evaluation(folder, Loud(), topic, client, split).passes(1, threading.Event())
        click = next(score for score in once.held_out.scores if (score.label, score.segment) == ("click", ""))
        assert click.calibration == pytest.approx(1, abs=0.03)
    with folder.open_topic("samples") as topic, local_client(folder) as client:
        client.restore(Epoch(1), None)
        more: dict[str, Any] = {"every_ms": {"never": None, "20s": 20_000}, "keep_aside": keep_aside}
        found = IntervalEvaluation(folder, Loud(), topic, client, split, **more).run(threading.Event())
    clicks = [score.calibration for score in found if score.label == "click" and not score.segment]
    assert clicks == [pytest.approx(1, abs=0.04)] * 2
