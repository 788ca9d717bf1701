"""Settings of the learner and of the feed of samples."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from streamlearn.apps import AppFolder
from streamlearn.errors import BadRecord, UsageError
from streamlearn.library.library import Library
from streamlearn.models import model_of
from streamlearn.samples import SampleBatch, SampleCodec
from streamlearn.testing import ManualClock
from streamlearn.topics import TopicSettings, create_topic
from streamlearn.trainer.columns import columns_of
from streamlearn.trainer.device import device_of
from streamlearn.trainer.evaluation import own_tables
from streamlearn.trainer.intake.feed import Feed, beginning_of
from streamlearn.trainer.intake.item_feed import learn_shown
from streamlearn.trainer.intake.message import Reached
from streamlearn.trainer.intake.step_cutter import StepCutter
from streamlearn.trainer.learner import Learner
from streamlearn.trainer.rows import Rows
from streamlearn.trainer.shared_marks import SharedMarks
from streamlearn.trainer.step import Piece, Step
from streamlearn.trainer.towers.tower_steps import TowerSteps, own_steps
from tests.settings.conftest import Load
from tests.settings.probes import heeds, spied
from tests.trainer.stream import messages_of
from tests.trainer.test_learner import Linear, packed, plainly
from tests.trainer.towers.towered import towered_app


def learner_of(folder: AppFolder) -> Learner:
    return Learner(folder.app, Linear(), folder.settings.trainer)


def split(learner: Learner) -> list[Any]:
    return [weight.astype(np.float64) for weight in learner.dense().values()]


@heeds("retrieval.negatives", "retrieval.rate")
def test_the_towers_draw_as_many_items_and_learn_at_the_rate_that_settings_say(learnable: Load) -> None:
    loaded = learnable("retrieval.negatives=7", "retrieval.rate=0.25")
    folder = replace(loaded, app=towered_app())
    columns = columns_of(step_of(messages_of(folder.app, 1)[0][1]))
    with own_tables(folder) as client:
        library = Library(folder.app)
        learn_shown(library, folder.app.features, columns)
        steps = own_steps(folder, client, library)(learner_of(folder), Rows(folder.app, client, len(columns)))
        assert isinstance(steps, TowerSteps)
        packed = steps.rows.pack(columns)
        assert packed is not None
        assert packed.drawn == pytest.approx(1 - (1 - 1 / len(library)) ** 7)
        before = steps.state.learner.dense()["scale"]
        assert steps.state.learner.learn(packed, np.full(len(packed.keys), 0.5, np.float32)) is not None
        # Adam's first step is as large as its rate.
        assert np.abs(steps.state.learner.dense()["scale"] - before) == pytest.approx(0.25, rel=1e-3)


def step_of(batch: SampleBatch) -> Step:
    learn = np.full(len(batch), 3, np.uint32)
    return Step(1, (Piece(batch, np.arange(len(batch)), learn, 0 * learn),), Reached((), ()), len(batch))


@heeds(
    "trainer.optimizer", "trainer.rate", "trainer.l2", "trainer.warmup_steps", "trainer.decay_steps",
    "trainer.row_gradients", "trainer.seed",
)  # fmt: skip
def test_a_step_follows_the_settings_as_its_closed_form_says(learnable: Load) -> None:
    folder = learnable(
        "trainer.device=cpu", "trainer.optimizer=sgd", "trainer.rate=0.5", "trainer.l2=0.25", "trainer.warmup_steps=4",
        "trainer.decay_steps=2", "trainer.row_gradients=mean", "trainer.seed=23",
    )  # fmt: skip
    learner, step = learner_of(folder), packed(5)
    before = split(learner)
    fresh = Linear().build(folder.app.features, folder.app.label_names, 23)
    assert all(np.allclose(mine, weight.numpy()) for mine, weight in zip(before, fresh, strict=True))
    _, _, of_weights, of_sides = plainly(before, step)
    assert learner.rate_scale == 0.25
    learned = learner.learn(step)
    for mine, weight, gradient in zip(split(learner), before, of_weights, strict=True):
        expected = weight - 0.5 * 0.25 * (gradient / step.rows + 0.25 * weight)
        assert np.allclose(mine, expected, atol=1e-5)
    for mine, gradient in zip(learned.gradients, of_sides, strict=True):
        assert np.allclose(mine, gradient / step.rows, atol=1e-5)
    assert learner.rate_scale == pytest.approx(0.5 * 0.5**0.5)


@heeds("trainer.clip_norm", "trainer.optimizer")
def test_gradients_are_clipped_to_the_norm_of_the_setting(learnable: Load) -> None:
    folder = learnable("trainer.device=cpu", "trainer.optimizer=sgd", "trainer.rate=1", "trainer.clip_norm=0.0625")
    learner = learner_of(folder)
    before = learner.weights()
    learner.learn(packed(5))
    assert float(np.linalg.norm(learner.weights() - before)) == pytest.approx(0.0625, rel=1e-4)


@heeds("trainer.xla")
def test_xla_compiles_the_step_if_the_setting_says_so(learnable: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    made = spied(monkeypatch, tf, "function")
    learner_of(learnable("trainer.device=cpu", "trainer.xla=on"))
    assert made[0][1]["jit_compile"] is True


@heeds("trainer.device")
def test_weights_learn_on_the_device_of_the_setting(learnable: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda _: [])
    with pytest.raises(UsageError, match=r"trainer\.device is gpu"):
        learner_of(learnable("trainer.device=gpu"))
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda _: ["one"])
    monkeypatch.setattr(tf.config.experimental, "set_memory_growth", lambda *_: None)
    assert device_of(learnable().settings.trainer) == "/GPU:0"
    assert device_of(learnable("trainer.device=cpu").settings.trainer) == "/CPU:0"


@heeds("trainer.threads")
def test_an_operation_has_the_threads_of_the_setting(learnable: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []
    monkeypatch.setattr(tf.config.threading, "set_intra_op_parallelism_threads", given.append)
    learner_of(learnable("trainer.device=cpu", "trainer.threads=37"))
    assert given == [37]


@heeds("trainer.compute")
def test_a_ready_made_model_computes_in_the_format_of_the_setting(learnable: Load) -> None:
    folder = learnable("trainer.compute=bfloat16")
    model: Any = model_of(replace(folder, app=replace(folder.app, model="deepfm")))
    assert (model.compute, model._tower.compute) == ("bfloat16", "bfloat16")


class Place:
    """A topic of samples with two partitions, and a feed of it on a clock that stands still."""

    def __init__(self, folder: AppFolder) -> None:
        self.clock, self.kept = ManualClock(), list[str]()
        self.topic = create_topic(folder.topic_url("samples"), TopicSettings(partitions=2))
        settings, codec = folder.settings.trainer, SampleCodec(folder.app, folder.settings.samples)
        with self.topic.writer() as writer:
            for _, batch in messages_of(folder.app, 3, rows=10):
                writer.append(0, [codec.encode(batch), b"garbage"])
        marks = SharedMarks(len(folder.app.labels), folder.settings.marks)
        cutter = StepCutter(marks, settings.step_rows, (), 10**9)
        self.feed = Feed(
            folder, self.topic, beginning_of(self.topic), cutter,
            keep_aside=lambda name, _: self.kept.append(name), clock=self.clock,
        )  # fmt: skip


@contextmanager
def fed(folder: AppFolder) -> Iterator[Place]:
    place = Place(folder)
    try:
        yield place
    finally:
        place.feed.close()
        place.topic.close()


@heeds("trainer.order", "trainer.bad_messages_max")
def test_strict_order_waits_for_a_silent_partition(learnable: Load) -> None:
    for order, waits in (("strict", True), ("arrival", False)):
        root = f"topics.root=memory://{order}-{id(learnable)}-"
        with fed(
            learnable(root, f"trainer.order={order}", "trainer.step_rows=8", "trainer.bad_messages_max=9")
        ) as place:
            assert (next(place.feed.steps()) is None) == waits


@heeds("trainer.step_wait_s", "trainer.bad_messages_max")
def test_a_step_waits_as_long_as_the_setting_says_for_more_rows(learnable: Load) -> None:
    with fed(learnable("trainer.step_wait_s=7.5", "trainer.bad_messages_max=9")) as place:
        steps = place.feed.steps()
        while place.kept != ["message-0-1.avro", "message-0-3.avro", "message-0-5.avro"]:
            assert next(steps) is None
        place.clock.sleep(7)
        assert next(steps) is None
        place.clock.sleep(0.5)
        assert next(steps) is not None


@heeds("trainer.bad_messages_max")
def test_as_many_unreadable_messages_are_skipped_as_the_setting_says(learnable: Load) -> None:
    with fed(learnable("trainer.bad_messages_max=2")) as place, pytest.raises(BadRecord, match="offset 5"):
        for _ in place.feed.steps():
            pass
