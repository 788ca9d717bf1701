"""TowerLearner: a step against one by NumPy, and its weights and optimizer as versions hold them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from streamlearn.errors import SpecError, UsageError
from streamlearn.features import Dense, FeatureSpec, Slot
from streamlearn.models import PackedSide
from streamlearn.samples import FeatureColumns
from streamlearn.settings.trainer import TrainerSettings
from streamlearn.trainer.towers.tower_learner import PackedTowers, TowerLearner
from streamlearn.trainer.towers.two_tower import TwoTower

DIM = 4
FEATURES = FeatureSpec(
    slots=(
        Slot("user", "user", dim=DIM),
        Slot("history", "user", dim=DIM, multi=True, pooling="sequence", length=3, keys_of="video"),
        Slot("video", "item", dim=DIM),
        Slot("tags", "item", dim=DIM, multi=True, pooling="mean"),
    ),
    item_id="video",
    dense=(Dense("age", "user"),),
)
NONE = FeatureColumns({}, {})


class Plain:
    """Vectors are the first channels of the flat matrix, a user's times a weight."""

    def build(self, features: FeatureSpec, seed: int) -> Sequence[Any]:
        return [tf.fill((DIM,), 1.0 + seed)]

    def user(self, weights: Sequence[Any], inputs: PackedSide) -> Any:
        return inputs.flat[:, :DIM] * weights[0]

    def item(self, weights: Sequence[Any], inputs: PackedSide) -> Any:
        return inputs.flat[:, :DIM]


def packed(users: int = 3, items: int = 5, positives: int = 4, *, drawn: float = 0.25, seed: int = 1) -> PackedTowers:
    rng = np.random.default_rng(seed)
    user, item = FEATURES.pack.user, FEATURES.pack.item
    sequence = rng.normal(size=(users, user.sequence_length, user.sequence_width)).astype(np.float32)
    sequence[..., -1] = rng.integers(0, 2, sequence.shape[:2])
    return PackedTowers(
        users=NONE, items=NONE, requests=users, keys=np.arange(items, dtype=np.uint64), own=items - 1, drawn=drawn,
        event_time_ms=np.zeros(positives, np.int64),
        user_flat=rng.normal(size=(users, user.flat_width)).astype(np.float32), user_sequence=sequence,
        item_flat=rng.normal(size=(items, item.flat_width)).astype(np.float32),
        user_index=rng.integers(0, users, positives).astype(np.int32),
        item_index=rng.integers(0, items - 1, positives).astype(np.int32),
        weight=rng.random(positives).astype(np.float32) + 0.5,
    )  # fmt: skip


def test_a_step_has_the_gradients_of_a_softmax_over_logits_less_the_logarithms_of_chances() -> None:
    step, chances = packed(), np.linspace(0.1, 0.9, 5).astype(np.float32)
    learner = TowerLearner(FEATURES, Plain(), TrainerSettings(seed=1), 0.1)
    gradients = learner.learn(step, chances)
    assert gradients is not None
    users, items = step.user_flat[:, :DIM] * 2.0, step.item_flat[:, :DIM]
    logits = (users @ items.T - np.log(1 - (1 - chances) * (1 - 0.25))).astype(np.float64)
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    of_logits = np.zeros_like(logits)
    for user, item, weight in zip(step.user_index, step.item_index, step.weight, strict=True):
        of_logits[user] += weight * shares[user]
        of_logits[user, item] -= weight
    of_users, of_sequence, of_items = gradients
    assert of_users[:, :DIM] == pytest.approx(2.0 * of_logits @ items, abs=1e-5)
    assert of_items[:, :DIM] == pytest.approx(of_logits.T @ users, abs=1e-5)
    assert not of_users[:, DIM:].any()
    assert not of_sequence.any()
    # Adam's first step is as large as its rate, against the sign of the gradient.
    of_weight = ((of_logits @ items) * step.user_flat[:, :DIM]).sum(axis=0)
    assert learner.dense()["weight_0"] == pytest.approx(2.0 - 0.1 * np.sign(of_weight), abs=1e-5)
    assert learner.steps == 1


class Forsworn(Plain):
    """It says that vectors of items have no weights."""

    item_has_weights = False

    def item(self, weights: Any, inputs: Any) -> Any:
        return inputs.flat[:, :DIM] + weights[0]


def test_towers_that_say_items_have_no_weights_and_use_some_are_refused() -> None:
    with pytest.raises(SpecError, match="item of Forsworn uses weights, although item_has_weights is False"):
        TowerLearner(FEATURES, Forsworn(), TrainerSettings(), 0.1)


def test_an_item_competes_for_every_user_and_a_positive_never_with_itself() -> None:
    step = replace(packed(users=2, items=2, positives=2), own=2, drawn=0.0)
    step = replace(step, user_index=np.array([0, 1], np.int32), item_index=np.array([1, 1], np.int32))
    learner = TowerLearner(FEATURES, Plain(), TrainerSettings(), 0.1)
    gradients = learner.learn(step, np.ones(2, np.float32))
    assert gradients is not None
    assert np.abs(gradients[2][0]).max() > 0  # the other item
    assert gradients[2][1, :DIM] != pytest.approx(np.zeros(DIM))


def test_towers_learn_which_items_are_whose() -> None:
    learner = TowerLearner(FEATURES, TwoTower(), TrainerSettings(), 0.05)
    step = replace(packed(users=4, items=8, positives=4), own=8, drawn=0.0)
    step = replace(step, user_index=np.arange(4, dtype=np.int32), item_index=np.array([6, 1, 3, 0], np.int32))

    def ranks() -> list[int]:
        logits = learner.users(step.user_flat, step.user_sequence) @ learner.items(step.item_flat).T
        return [int((logits[user] > logits[user, item]).sum()) for user, item in enumerate(step.item_index)]

    before = ranks()
    for _ in range(150):
        assert learner.learn(step, np.ones(8, np.float32)) is not None
    assert sum(before) > 3 * sum(ranks())


def test_padding_changes_nothing() -> None:
    step, chances = packed(), np.full(5, 0.5, np.float32)

    def padded(array: np.ndarray, count: int) -> np.ndarray:
        return np.concatenate([array, np.zeros((count - len(array), *array.shape[1:]), array.dtype)])

    names = {"user_flat": 8, "user_sequence": 8, "item_flat": 16, "user_index": 8, "item_index": 8, "weight": 8}
    arrays: dict[str, Any] = {name: padded(getattr(step, name), count) for name, count in names.items()}
    wide = replace(step, **arrays)
    one, other = (TowerLearner(FEATURES, TwoTower(), TrainerSettings(xla=xla), 0.1) for xla in ("off", "on"))
    gradients, of_wide = one.learn(step, chances), other.learn(wide, chances)
    assert gradients is not None
    assert of_wide is not None
    for plain, padding in zip(gradients, of_wide, strict=True):
        assert padding[: len(plain)] == pytest.approx(plain, abs=1e-5)
        assert not padding[len(plain) :].any()
    for name, weight in one.dense().items():
        assert other.dense()[name] == pytest.approx(weight, abs=1e-4)


def test_what_is_not_finite_is_refused_and_changes_nothing() -> None:
    learner = TowerLearner(FEATURES, TwoTower(), TrainerSettings(), 0.1)
    before = learner.dense(), learner.optimizer_state()
    step = packed()
    assert learner.learn(replace(step, user_flat=step.user_flat * np.float32("inf")), np.ones(5, np.float32)) is None
    for saved, now in zip(before, (learner.dense(), learner.optimizer_state()), strict=True):
        assert all(np.array_equal(saved[name], now[name]) for name in saved)


def test_it_continues_from_what_it_saved_to_the_byte_and_begins_afresh_after_a_reset() -> None:
    first, second = (TowerLearner(FEATURES, TwoTower(), TrainerSettings(), 0.1) for _ in range(2))
    fresh = first.dense()
    for seed in range(3):
        first.learn(packed(seed=seed), np.ones(5, np.float32))
    second.load(first.dense(), first.optimizer_state())
    for learner in (first, second):
        learner.learn(packed(seed=9), np.ones(5, np.float32))
    for saved, now in ((first.dense(), second.dense()), (first.optimizer_state(), second.optimizer_state())):
        assert all(np.array_equal(saved[name], now[name]) for name in saved)
    first.reset()
    assert first.steps == 0
    assert all(np.array_equal(fresh[name], weight) for name, weight in first.dense().items())


def test_weights_of_other_towers_are_refused() -> None:
    learner = TowerLearner(FEATURES, TwoTower(), TrainerSettings(), 0.1)
    other = TowerLearner(FEATURES, TwoTower(hidden=16), TrainerSettings(), 0.1)
    with pytest.raises(UsageError, match="a version has other towers") as refused:
        learner.load(other.dense(), other.optimizer_state())
    assert refused.value.help


def test_the_ready_made_vectors_have_length_one_but_for_the_learned_temperature() -> None:
    learner, step = TowerLearner(FEATURES, TwoTower(), TrainerSettings(), 0.1), packed()
    assert np.linalg.norm(learner.items(step.item_flat), axis=1) == pytest.approx(np.ones(5), abs=1e-5)
    lengths = np.linalg.norm(learner.users(step.user_flat, step.user_sequence), axis=1)
    assert lengths == pytest.approx(np.full(3, np.exp(learner.dense()["scale"][0])), rel=1e-5)
    # An item is the sum of its rows, and a layer that has learned nothing leaves a user's alone.
    rows = step.item_flat[:, :DIM] + step.item_flat[:, DIM:]
    expected = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    assert learner.items(step.item_flat) == pytest.approx(expected, abs=1e-5)


def test_ready_made_towers_refuse_numbers_of_items() -> None:
    with pytest.raises(SpecError, match="dense column 'length'") as refused:
        TwoTower().build(replace(FEATURES, dense=(Dense("length", "item"),)), 0)
    assert refused.value.help


def test_vectors_of_another_length_are_refused() -> None:
    class Short(Plain):
        def item(self, weights: Sequence[Any], inputs: PackedSide) -> Any:
            return inputs.flat[:, : DIM - 1]

    learner = TowerLearner(FEATURES, Short(), TrainerSettings(), 0.1)
    with pytest.raises(SpecError, match=r"item of Short returns float32 of .*3") as refused:
        learner.learn(packed(), np.ones(5, np.float32))
    assert "(rows, 4)" in refused.value.help
