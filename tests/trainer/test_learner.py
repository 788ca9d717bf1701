"""Loss and learner against closed forms in NumPy: what a step costs, and how dense weights follow it."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlearn.errors import UsageError
from streamlearn.features import FeatureSpec, Number
from streamlearn.features.labels import Output
from streamlearn.models import PackedSide, dropout
from streamlearn.models.tower import learning
from streamlearn.settings.trainer import TrainerSettings
from streamlearn.trainer.learner import Learned, Learner, Packed
from streamlearn.trainer.loss import loss_of
from tests.campaign import examples
from tests.trainer.stream import learnable_app

_APP = learnable_app()
_PLAN = _APP.features.pack
_USERS, _ROWS, _LABELS = 5, 12, 2
_SHAPES = ((_PLAN.user.flat_width, _LABELS), (_PLAN.item.flat_width, _LABELS), (_LABELS,))
Numbers = npt.NDArray[Any]


class Linear:
    """Logits that are linear in both sides; sequences are not looked at."""

    def build(self, features: FeatureSpec, labels: Sequence[str], seed: int) -> Sequence[Any]:
        return [tf.random.stateless_normal(shape, (seed, at), stddev=0.3) for at, shape in enumerate(_SHAPES)]

    def user(self, weights: Sequence[Any], inputs: PackedSide) -> PackedSide:
        return PackedSide(inputs.flat @ weights[0], None)

    def score(self, weights: Sequence[Any], user: PackedSide, user_index: Any, inputs: PackedSide) -> Any:
        return tf.gather(user.flat, user_index) + inputs.flat @ weights[1] + weights[2]


def packed(seed: int, rows: int = _ROWS, padded: int = _ROWS) -> Packed:
    rng = np.random.default_rng(seed)
    user, item = _PLAN.user, _PLAN.item

    def numbers(*shape: int) -> Numbers:
        return rng.normal(0, 1, shape).astype(np.float32)

    targets = np.zeros((padded, _LABELS, 4), np.float32)
    positive = rng.integers(0, 2, (rows, _LABELS))
    corrects = rng.random((rows, _LABELS)) < 0.3
    targets[:rows, :, 0] = positive
    weight = rng.uniform(0, 2, (rows, _LABELS))
    targets[:rows, :, 1] = np.where(corrects, 0, weight)
    targets[:rows, :, 2] = np.where(corrects, weight, 0)
    targets[:rows, :, 3] = np.log(rng.uniform(0.1, 1, (rows, _LABELS)))
    item_flat, index = np.zeros((padded, item.flat_width), np.float32), np.zeros(padded, np.int32)
    item_flat[:rows] = numbers(rows, item.flat_width)
    index[:rows] = np.sort(rng.integers(0, _USERS, rows))
    return Packed(
        user_flat=numbers(_USERS, user.flat_width),
        user_sequence=numbers(_USERS, user.sequence_length, user.sequence_width),
        item_flat=item_flat,
        item_sequence=np.zeros((padded, item.sequence_length, item.sequence_width), np.float32),
        user_index=index,
        targets=targets,
        rows=rows,
    )


def sigmoid(numbers: Numbers) -> Numbers:
    found: Numbers = 1 / (1 + np.exp(-numbers))
    return found


def plainly(weights: Sequence[Numbers], given: Packed) -> tuple[Numbers, float, list[Numbers], list[Numbers]]:
    """Logits, loss, and the gradients of the loss by weights and by sides, in float64."""
    by_user, by_item, bias = (one.astype(np.float64) for one in weights)
    index, (positive, learn, correct, log_rate) = given.user_index, np.moveaxis(given.targets.astype(np.float64), -1, 0)
    user, item = given.user_flat.astype(np.float64), given.item_flat.astype(np.float64)
    logits = (user @ by_user)[index] + item @ by_item + bias
    shifted = logits - log_rate
    chance = sigmoid(shifted)
    cost = -learn * (positive * np.log(chance) + (1 - positive) * np.log1p(-chance)) - correct * shifted
    slope = learn * (chance - positive) - correct
    by_user_row = np.zeros((len(user), _LABELS))
    np.add.at(by_user_row, index, slope)
    of_sides = [
        by_user_row @ by_user.T, np.zeros(given.user_sequence.shape),
        slope @ by_item.T, np.zeros(given.item_sequence.shape),
    ]  # fmt: skip
    return logits, float(cost.sum()), [user.T @ by_user_row, item.T @ slope, slope.sum(0)], of_sides


def learner(**given: Any) -> Learner:
    return Learner(_APP, Linear(), msgspec.convert({"device": "cpu", "seed": 3} | given, TrainerSettings))


def states(learning: Learner) -> list[Any]:
    return [learning.weights(), *(state for _, state in sorted(learning.optimizer_state().items()))]


def near(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5)


def flat(arrays: Sequence[Numbers]) -> Numbers:
    return np.concatenate([one.reshape(-1) for one in arrays])


def cost(logit: float, label: int, log_rate: float) -> float:
    """What one label costs."""
    targets = tf.constant([[[float(label), 1.0, 0.0, log_rate]]])
    return float(loss_of(tf.constant([[logit]]), targets, [Output()]))


@settings(max_examples=examples(50))
@given(st.floats(-8, 8), st.integers(0, 1), st.floats(0.01, 1))
def test_a_label_costs_the_entropy_of_the_logit_less_the_logarithm_of_its_rate(z: float, label: int, r: float) -> None:
    chance = sigmoid(np.array(z - np.log(r)))
    expected = -np.log(chance if label else 1 - chance)
    np.testing.assert_allclose(cost(z, label, float(np.log(r))), expected, rtol=1e-3, atol=1e-4)


@settings(max_examples=examples(50))
@given(st.floats(-8, 8), st.floats(0.01, 1), st.floats(0, 3))
def test_a_correction_costs_what_a_positive_does_less_what_the_negative_did(z: float, r: float, weight: float) -> None:
    log_rate = float(np.log(r))
    logit = tf.Variable([[z]], dtype=tf.float32)
    with tf.GradientTape() as tape:
        found = loss_of(logit, tf.constant([[[1.0, 0.0, weight, log_rate]]]), [Output()])
    expected = weight * (cost(z, 1, log_rate) - cost(z, 0, log_rate))
    np.testing.assert_allclose(float(found), expected, rtol=1e-3, atol=1e-4)
    # Learned as negative and then corrected, a label has pulled as if it had been learned as positive.
    near(tape.gradient(found, logit).numpy(), [[-weight]])


@settings(max_examples=examples(50))
@given(st.floats(-3, 3), st.floats(0, 9), st.floats(0, 9), st.floats(0, 3), st.sampled_from(["squared", "poisson"]))
def test_a_corrected_number_costs_what_it_is_less_what_it_was_learned_as(
    z: float, now: float, before: float, weight: float, loss: Any
) -> None:
    output, said = Output(number=Number(missing=0, loss=loss, scale=2.0)), tf.Variable([[z]], dtype=tf.float32)

    def slope(target: float, learn: float, correct: float, learned_as: float) -> Any:
        with tf.GradientTape() as tape:
            found = loss_of(said, tf.constant([[[target, learn, correct, learned_as]]]), [output])
        return tape.gradient(found, said).numpy()

    near(slope(before, weight, 0.0, 0.0) + slope(now, 0.0, weight, before), slope(now, weight, 0.0, 0.0))


@pytest.mark.parametrize("how", ["sum", "mean"])
def test_a_step_gives_logits_loss_and_gradients_of_before_it(how: str) -> None:
    one = learner(row_gradients=how)
    weights, given = list(one.dense().values()), packed(1)
    logits, loss, _, of_sides = plainly(weights, given)
    found = one.learn(given)
    near(found.logits, logits)
    near(found.loss, loss)
    share = 1 / _ROWS if how == "mean" else 1.0
    for gradient, expected in zip(found.gradients, of_sides, strict=True):
        near(gradient, share * expected)
    assert found.is_finite
    assert one.steps == 1


def test_rows_that_fill_a_step_up_cost_nothing_and_pull_nothing() -> None:
    for optimizer in ("adam", "adagrad", "sgd"):
        tight, padded = learner(optimizer=optimizer), learner(optimizer=optimizer)
        for number in range(3):
            one, other = packed(number), packed(number, padded=_ROWS + 9)
            assert len(other.item_flat) == _ROWS + 9
            found, same = tight.learn(one), padded.learn(other)
            near(found.logits, same.logits)
            near(found.loss, same.loss)
            assert len(same.logits) == _ROWS
            assert not same.gradients[2][_ROWS:].any()
            for gradient, expected in zip(same.gradients, found.gradients, strict=True):
                near(gradient[: len(expected)], expected)
        near(padded.weights(), tight.weights())


def adam(state: list[Numbers], gradient: Numbers, number: int) -> Numbers:
    state[0] = 0.9 * state[0] + 0.1 * gradient
    state[1] = 0.999 * state[1] + 0.001 * gradient**2
    mean, square = state[0] / (1 - 0.9**number), state[1] / (1 - 0.999**number)
    found: Numbers = mean / (np.sqrt(square) + 1e-8 / np.sqrt(1 - 0.999**number))
    return found


def adagrad(state: list[Numbers], gradient: Numbers, number: int) -> Numbers:
    del number
    state[0] = state[0] + gradient**2
    found: Numbers = gradient / (np.sqrt(state[0] + 0.1) + 1e-10)
    return found


def sgd(state: list[Numbers], gradient: Numbers, number: int) -> Numbers:
    del state, number
    return gradient


_OPTIMIZERS = {"adam": adam, "adagrad": adagrad, "sgd": sgd}
_HOW: list[dict[str, Any]] = [
    {},
    {"l2": 0.3},
    {"clip_norm": 0.05},
    {"warmup_steps": 3},
    {"decay_steps": 2},
    {"warmup_steps": 2, "decay_steps": 3, "clip_norm": 0.2, "l2": 0.1},
]


@pytest.mark.parametrize("how", _HOW, ids=lambda one: "-".join(one) or "plain")
@pytest.mark.parametrize("optimizer", sorted(_OPTIMIZERS))
def test_dense_weights_learn_as_written_down(optimizer: str, how: dict[str, Any]) -> None:
    rate = 0.05
    one = learner(optimizer=optimizer, rate=rate, **how)
    weights = [part.astype(np.float64) for part in one.dense().values()]
    state = [np.zeros(len(flat(weights))) for _ in range(2)]
    for number in range(1, 6):
        given = packed(number)
        gradient = flat(plainly(weights, given)[2]) / _ROWS + how.get("l2", 0.0) * flat(weights)
        if how.get("clip_norm"):
            gradient *= min(1.0, how["clip_norm"] / np.linalg.norm(gradient))
        warm = min(1.0, number / how["warmup_steps"]) if "warmup_steps" in how else 1.0
        halved = 0.5 ** ((number - 1) / how["decay_steps"]) if "decay_steps" in how else 1.0
        assert one.rate_scale == pytest.approx(warm * halved)
        assert one.learn(given).is_finite
        whole = flat(weights) - rate * warm * halved * _OPTIMIZERS[optimizer](state, gradient, number)
        near(one.weights(), whole)
        cuts = np.cumsum([np.prod(shape, dtype=int) for shape in _SHAPES])[:-1]
        weights = [part.reshape(shape) for part, shape in zip(np.split(whole, cuts), _SHAPES, strict=True)]
    assert one.steps == 5


def _spoilt(given: Packed, what: str) -> Packed:
    if what == "item":
        broken = given.item_flat.copy()
        broken[2, 1] = np.nan
        return replace(given, item_flat=broken)
    if what == "user":
        broken = given.user_flat.copy()
        broken[given.user_index[0], 0] = np.inf
        return replace(given, user_flat=broken)
    broken = given.targets.copy()
    broken[1, 0, 1:] = (1, 0, -np.inf)
    return replace(given, targets=broken)


@pytest.mark.parametrize("optimizer", sorted(_OPTIMIZERS))
def test_a_step_without_numbers_changes_nothing(optimizer: str) -> None:
    one, other = learner(optimizer=optimizer, decay_steps=2), learner(optimizer=optimizer, decay_steps=2)
    one.learn(packed(1))
    other.learn(packed(1))
    for number, what in enumerate(("item", "user", "rate"), 3):
        before = {**one.dense(), **one.optimizer_state()}
        found = one.learn(_spoilt(packed(2), what))
        assert not found.is_finite, what
        after = {**one.dense(), **one.optimizer_state()}
        for name, numbers in before.items():
            np.testing.assert_array_equal(after[name], numbers)
        assert one.rate_scale == other.rate_scale, what
        same(one.learn(packed(number)), other.learn(packed(number)))
        np.testing.assert_array_equal(one.weights(), other.weights())


def same(found: Learned, expected: Learned) -> None:
    """To the bit."""
    assert found.loss == expected.loss
    for one, other in zip((found.logits, *found.gradients), (expected.logits, *expected.gradients), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("optimizer", sorted(_OPTIMIZERS))
def test_what_was_saved_goes_on_to_the_bit(optimizer: str) -> None:
    how = {"optimizer": optimizer, "rate": 0.02, "warmup_steps": 4, "decay_steps": 3}
    one, other = learner(**how), learner(seed=9, **how)
    for number in range(3):
        one.learn(packed(number))
    other.load(one.dense(), one.optimizer_state())
    for number in range(3, 6):
        same(other.learn(packed(number)), one.learn(packed(number)))
    np.testing.assert_array_equal(other.weights(), one.weights())
    for name, numbers in one.optimizer_state().items():
        np.testing.assert_array_equal(other.optimizer_state()[name], numbers)


def test_what_is_given_out_is_a_copy() -> None:
    one = learner(optimizer="adagrad")
    weights, dense, state = one.weights(), one.dense(), one.optimizer_state()
    kept = [array.copy() for array in (weights, *dense.values(), *state.values())]
    one.learn(packed(1))
    for array, before in zip((weights, *dense.values(), *state.values()), kept, strict=True):
        np.testing.assert_array_equal(array, before)


def test_scoring_learns_nothing_and_takes_weights_of_another_time() -> None:
    one, given = learner(), packed(1)
    first, weights = one.weights(), list(one.dense().values())
    one.learn(packed(2))
    near(one.score(given, first), plainly(weights, given)[0])
    now = list(one.dense().values())
    np.testing.assert_array_equal(one.score(packed(1, padded=40)), one.score(given))
    near(one.score(given), plainly(now, given)[0])
    assert one.steps == 1


def test_steps_of_other_numbers_of_users_need_no_other_graph_unless_they_are_small() -> None:
    traces = []

    class Counted(Linear):
        def user(self, weights: Sequence[Any], inputs: PackedSide) -> PackedSide:
            traces.append(inputs.flat.shape[0])
            return super().user(weights, inputs)

    for rows in (12, 100):
        learning = Learner(_APP, Counted(), TrainerSettings(device="cpu", xla="off"))
        for users in (5, 7, 5, 9):
            step = packed(users, rows=rows, padded=rows)
            sides = (np.resize(one, (users, *one.shape[1:])) for one in (step.user_flat, step.user_sequence))
            flat, sequence = sides
            learning.learn(replace(step, user_flat=flat, user_sequence=sequence))
    assert [one for one in traces if one is not None] == [5, 7, 9]
    assert traces.count(None) == 1


class Noisy(Linear):
    """`Linear` whose logits are left out at random while it learns."""

    rate = 0.4

    def score(self, weights: Sequence[Any], user: PackedSide, user_index: Any, inputs: PackedSide) -> Any:
        return dropout(super().score(weights, user, user_index, inputs), self.rate)


def noisy(**given: Any) -> Learner:
    return Learner(_APP, Noisy(), msgspec.convert({"device": "cpu", "seed": 3} | given, TrainerSettings))


def left_out(found: Learned) -> npt.NDArray[np.bool_]:
    """Rows that are left out of both logits, which have no slope."""
    found_out: npt.NDArray[np.bool_] = np.all(found.gradients[2] == 0, axis=1)
    return found_out


@pytest.mark.parametrize("optimizer", ["adam", "adagrad", "sgd"])
@pytest.mark.parametrize("xla", ["off", "on"])
def test_a_step_that_is_prepared_learns_nothing_and_then_as_it_would_have(optimizer: str, xla: str) -> None:
    prepared, other = learner(xla=xla, optimizer=optimizer), learner(xla=xla, optimizer=optimizer)
    prepared.learn(packed(1)), other.learn(packed(1))
    more = replace(
        packed(2), user_flat=packed(2).user_flat.repeat(2, 0), user_sequence=packed(2).user_sequence.repeat(2, 0)
    )
    prepared.prepare(more)
    assert prepared.steps == other.steps
    for one, expected in zip(states(prepared), states(other), strict=True):
        np.testing.assert_array_equal(one, expected)
    found, expected = prepared.learn(more), other.learn(more)
    np.testing.assert_array_equal(found.logits, expected.logits)
    for one, expected in zip(states(prepared), states(other), strict=True):
        np.testing.assert_array_equal(one, expected)


def test_steps_with_a_few_more_or_fewer_users_are_compiled_before_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared: queue.SimpleQueue[int] = queue.SimpleQueue()
    learning = learner(xla="on", step_rows=200)
    monkeypatch.setattr(learning, "prepare", lambda given: prepared.put(len(given.user_flat)))

    def learn(users: int) -> None:
        given = packed(1)
        user, sequence = (np.resize(side, (users, *side.shape[1:])) for side in given.sides[:2])
        learning.learn(replace(given, user_flat=user, user_sequence=sequence))

    learn(80)
    assert {prepared.get(timeout=60), prepared.get(timeout=60)} == {64, 100}
    learn(80)
    learn(100)
    assert prepared.get(timeout=60) == 125
    assert prepared.empty()


@pytest.mark.parametrize("xla", ["off", "on"])
def test_what_is_left_out_changes_no_prediction_and_follows_from_the_step_and_the_seed(xla: str) -> None:
    rows = 4_000
    one, same_seed, other_seed = noisy(xla=xla), noisy(xla=xla), noisy(xla=xla, seed=4)
    given = packed(1, rows, rows)
    given = replace(given, targets=np.tile(np.array([1, 1, 0, 0], np.float32), (rows, _LABELS, 1)))
    exact = plainly(list(one.dense().values()), given)[0]
    steps = [one.learn(given) for _ in range(2)]
    near(steps[0].logits, exact)
    shares = [left_out(step).mean() for step in steps]
    assert shares == pytest.approx([Noisy.rate**2] * 2, abs=0.03), "each label of a row is left out for itself"
    np.testing.assert_array_equal(left_out(same_seed.learn(given)), left_out(steps[0]))
    assert (left_out(steps[0]) != left_out(steps[1])).any()
    assert (left_out(other_seed.learn(given)) != left_out(steps[0])).any()
    same_seed.load(one.dense(), one.optimizer_state())
    same(same_seed.learn(given), one.learn(given))


def test_each_of_all_the_slices_that_a_step_may_have_leaves_out_other_outputs() -> None:
    learning, rows = noisy(seed=0xFFFFFF), 400
    given = packed(1, rows, rows)
    given = replace(given, targets=np.tile(np.array([1, 1, 0, 0], np.float32), (rows, _LABELS, 1)))
    numbers = (0, 1, 127, 128, 255, 256, 512, 1_023)
    found = {
        np.all(learning.gradients(given, one, rows, learning.weights()).of_rows[2] == 0, axis=1).tobytes()
        for one in numbers
    }
    assert len(found) == len(numbers)
    assert left_out(learning.learn(given)).tobytes() in found, "the first slice leaves out what a whole step does"


def test_outputs_that_stay_are_enlarged_so_that_their_mean_is_kept() -> None:
    with learning(tf.constant([7, 1])) as drops:
        first, second = (dropout(tf.ones([200, 500]), 0.2).numpy() for _ in range(2))
        assert dropout(tf.ones([2]), 0.0).numpy().tolist() == [1, 1]
    assert drops.layers == 2
    assert np.unique(first).tolist() == pytest.approx([0, 1.25])
    assert first.mean() == pytest.approx(1, abs=0.01)
    assert 0.6 < (first == second).mean() < 0.76, "layers are left out independently"
    assert (dropout(tf.ones([9]), 0.9).numpy() == 1).all(), "outside of a step nothing is left out"


def test_labels_that_follow_are_predicted_by_the_product_and_learn_what_they_are_after_the_other() -> None:
    click, order = _APP.labels
    app = replace(_APP, labels=(click, replace(order, follows=click.name)))
    following = Learner(app, Linear(), msgspec.convert({"device": "cpu", "seed": 3}, TrainerSettings))
    plain, given = learner(), packed(1)
    logits = plainly(list(plain.dense().values()), given)[0]
    near(sigmoid(following.score(given)[:, 1]), sigmoid(logits[:, 0]) * sigmoid(logits[:, 1]))
    found, alone = following.learn(given), plain.learn(given)
    near(sigmoid(found.logits[:, 1]), sigmoid(logits[:, 0]) * sigmoid(logits[:, 1]))
    near(found.logits[:, 0], logits[:, 0])
    # The product has no part in what is learned.
    same(replace(found, logits=alone.logits), alone)


def test_weights_of_another_model_or_optimizer_are_refused() -> None:
    one = learner(optimizer="adam")
    dense, state = one.dense(), one.optimizer_state()
    with pytest.raises(UsageError, match="has shape"):
        one.load({name: part[:1] for name, part in dense.items()}, state)
    with pytest.raises(UsageError, match=r"2 optimizer slots, but trainer\.optimizer has 1"):
        learner(optimizer="adagrad").load(dense, state)


class Astray(Linear):
    """Looks up what is not there, which only running it shows."""

    def score(self, weights: Sequence[Any], user: PackedSide, user_index: Any, inputs: PackedSide) -> Any:
        astray = tf.gather(tf.constant([1.0, 2.0]), tf.cast(inputs.flat[:, 0] * 100, tf.int32))
        return super().score(weights, user, user_index, inputs) + astray[:, None]


def test_a_model_that_fails_while_it_runs_is_named_with_its_line() -> None:
    learner = Learner(_APP, Astray(), msgspec.convert({"device": "cpu", "xla": "off"}, TrainerSettings))
    before = learner.weights()
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"test_learner\.py\", line \d+, in score"):
        learner.learn(packed(1))
    assert np.array_equal(learner.weights(), before)


def test_a_step_is_lowered_with_weights_and_slots_after_its_arrays() -> None:
    learner = Learner(_APP, Linear(), TrainerSettings(xla="on"))
    hlo, operations = learner.lowered(packed(1), "hlo")
    parameters = sum(array.size > 0 for array in learner.arrays(packed(1))) + 3  # weights, and both slots of Adam
    layout = hlo.decode().partition("entry_computation_layout={(")[2].partition(")->")[0]
    assert layout.count("[") == parameters
    assert operations.count("MatMul") >= 2
    assert learner.steps == 0
