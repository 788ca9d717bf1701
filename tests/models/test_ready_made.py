"""The ready-made models: what they compute, against NumPy, and what holds of all of them."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from streamlearn.errors import SpecError, UsageError
from streamlearn.features import Dense, FeatureSpec, Slot
from streamlearn.models import DcnV2, DeepFm, Din, Mmoe, Model, PackedSide, Ple
from streamlearn.models.logistic import Logistic
from streamlearn.models.ready import ReadyModel
from streamlearn.models.weights import Weight, initial
from tests.models import reference
from tests.models.packed import (
    Floats,
    Packed,
    filled,
    most_of_all,
    no_sequence,
    only_items,
    packed,
    scores_of,
    tensors_of,
)

LABELS = ("click", "long_view")
SPECS = {"most_of_all": most_of_all, "no_sequence": no_sequence, "only_items": only_items}
KINDS: dict[str, Callable[..., ReadyModel]] = {
    "logistic": Logistic,
    "deepfm_own": lambda **more: DeepFm(hidden=(12, 8), first_order="labels", **more),
    "deepfm": lambda **more: DeepFm(hidden=(12, 8), **more),
    "dcn_v2": lambda **more: DcnV2(hidden=(12, 8), cross=2, rank=3, **more),
    "mmoe_shared": lambda **more: Mmoe(experts=2, expert=(6,), tower=(4,), first_order="shared", **more),
    "deepfm_shared": lambda **more: DeepFm(hidden=(12, 8), first_order="shared", **more),
    "dcn_v2_shared": lambda **more: DcnV2(hidden=(12, 8), cross=2, rank=3, first_order="shared", **more),
    "dcn_v2_own": lambda **more: DcnV2(hidden=(12, 8), cross=2, rank=3, first_order="labels", **more),
    "din": lambda **more: Din(hidden=(12, 8), attention=(6, 4), **more),
    "mmoe": lambda **more: Mmoe(experts=3, expert=(6, 5), tower=(4, 3), **more),
    "mmoe_own": lambda **more: Mmoe(experts=2, expert=(6,), tower=(4,), first_order="labels", **more),
    "ple": lambda **more: Ple(expert=(6, 5), tower=(4,), levels=3, **more),
}
KINDS |= {
    "deepfm_plain": lambda **more: KINDS["deepfm"](pairs=False, **more),
    "dcn_v2_plain": lambda **more: KINDS["dcn_v2"](pairs=False, **more),
    "deepfm_norm": lambda **more: KINDS["deepfm"](norm="layer", **more),
    "din_norm": lambda **more: KINDS["din"](norm="layer", **more),
    "ple_norm": lambda **more: KINDS["ple"](norm="layer", **more),
}
REFERENCES = {name: getattr(reference, name.removesuffix("_norm").removesuffix("_plain")) for name in KINDS}
CASES = [(kind, spec) for kind in KINDS for spec in SPECS if not kind.startswith("din") or spec == "most_of_all"]


def expected(kind: str, features: FeatureSpec, model: ReadyModel, weights: list[Floats], inputs: Packed) -> Floats:
    named = dict(zip(model.weight_names, weights, strict=True))
    rows = range(len(inputs.user_index))
    return np.array([REFERENCES[kind](features, named, inputs, row) for row in rows])


@pytest.mark.parametrize(("kind", "spec"), CASES)
def test_scores_are_those_of_the_formula(kind: str, spec: str) -> None:
    features = SPECS[spec]()
    model, inputs = KINDS[kind](), packed(features)
    weights = filled(model.build(features, LABELS, 0))
    scores = scores_of(model, weights, inputs)
    assert scores.dtype == np.float32
    assert scores.shape == (7, 2)
    np.testing.assert_allclose(scores, expected(kind, features, model, weights, inputs), rtol=2e-5, atol=2e-5)


def test_attention_is_brought_to_a_sum_of_one_where_it_is_asked_for() -> None:
    features = most_of_all()
    model, inputs = Din(hidden=(6, 5), attention=(4, 3), softmax=True), packed(features)
    weights = filled(model.build(features, LABELS, 0))
    named = dict(zip(model.weight_names, weights, strict=True))
    wanted = [reference.din(features, named, inputs, row, softmax=True) for row in range(7)]
    np.testing.assert_allclose(scores_of(model, weights, inputs), np.array(wanted), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("rank", [None, 10, 1])
def test_cross_layers_are_square_where_two_matrices_would_be_no_smaller(rank: int | None) -> None:
    features = no_sequence()  # ten channels
    model, inputs = DcnV2(hidden=(4,), cross=3, rank=rank), packed(features)
    weights = filled(model.build(features, LABELS, 0))
    assert ("cross_0_back" in model.weight_names) == (rank == 1)
    assert dict(zip(model.weight_names, weights, strict=True))["cross_1"].shape == (10, 1 if rank == 1 else 10)
    wanted = expected("dcn_v2", features, model, weights, inputs)
    np.testing.assert_allclose(scores_of(model, weights, inputs), wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("dim", [1, 7])
def test_pairs_are_multiplied_at_the_length_that_is_asked_for(dim: int) -> None:
    features = most_of_all()
    model, inputs = DeepFm(hidden=(4,), fm_dim=dim), packed(features)
    weights = filled(model.build(features, LABELS, 0))
    projected = {name for name in model.weight_names if name.startswith("fm_")}
    assert projected == {f"fm_{slot.name}" for slot in features.slots}
    wanted = expected("deepfm", features, model, weights, inputs)
    np.testing.assert_allclose(scores_of(model, weights, inputs), wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("kind", "spec"), CASES)
def test_users_once_a_request_score_as_users_for_every_candidate(kind: str, spec: str) -> None:
    features = SPECS[spec]()
    model, inputs = KINDS[kind](), packed(features)
    weights = filled(model.build(features, LABELS, 0))
    repeated = PackedSide(*(None if one is None else one[inputs.user_index] for one in inputs.user))
    each = Packed(repeated, np.arange(7, dtype=np.int32), inputs.item)
    scores = scores_of(model, weights, inputs)
    np.testing.assert_allclose(scores, scores_of(model, weights, each), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_mask_leaves_out_changes_nothing(kind: str) -> None:
    features = most_of_all()
    model, inputs = KINDS[kind](), packed(features)
    weights = filled(model.build(features, LABELS, 0))
    plain = scores_of(model, weights, inputs)
    other = inputs.user.sequence.copy()
    other[..., :-1] += 9 * (1 - other[..., -1:])
    garbage = inputs._replace(user=inputs.user._replace(sequence=other))
    assert np.array_equal(scores_of(model, weights, garbage), plain)
    longer = np.concatenate([inputs.user.sequence, np.zeros_like(inputs.user.sequence)], axis=1)
    padded = inputs._replace(user=inputs.user._replace(sequence=longer))
    np.testing.assert_allclose(scores_of(model, weights, padded), plain, rtol=1e-5, atol=1e-5)
    there = inputs.user.sequence.copy()
    there[1, 0, 0] += 1
    changed = scores_of(model, weights, inputs._replace(user=inputs.user._replace(sequence=there)))
    moved, of_second = np.abs(changed - plain).max(axis=1) > 1e-4, inputs.user_index == 1
    assert moved[of_second].any()
    assert not moved[~of_second].any()


def gradients(model: Model, weights: list[Floats], inputs: Packed) -> tuple[list[Any], list[Any]]:
    tensors = [tf.constant(weight) for weight in weights]
    blocks = [tf.constant(one) for one in (*inputs.user, *inputs.item) if one is not None]
    given = iter(blocks)
    user, item = (
        PackedSide(*(None if one is None else next(given) for one in side)) for side in (inputs.user, inputs.item)
    )
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(tensors + blocks)
        scores = model.score(tensors, model.user(tensors, user), tf.constant(inputs.user_index), item)
        loss = tf.reduce_sum(tf.square(scores + 1))
    found = tape.gradient(loss, tensors + blocks)
    return found[: len(tensors)], found[len(tensors) :]


@pytest.mark.parametrize(("kind", "spec"), CASES)
def test_gradients_flow_to_every_weight_and_every_channel(kind: str, spec: str) -> None:
    features = SPECS[spec]()
    model, inputs = KINDS[kind](), packed(features, users=12, candidates=60)
    weights = filled(model.build(features, LABELS, 0))
    of_weights, of_inputs = gradients(model, weights, inputs)
    for name, gradient in zip(model.weight_names, of_weights, strict=True):
        assert np.abs(gradient.numpy()).max() > 0, name
    for gradient in of_inputs:
        channels = np.abs(gradient.numpy()).reshape(-1, gradient.shape[-1]).max(axis=0) > 0
        if kind != "logistic":
            assert channels.all()
    if kind == "logistic":
        slot = features.pack.item.flat[0]
        row = np.abs(of_inputs[-1].numpy()).max(axis=0)[slot.at : slot.at + slot.width]
        assert (row > 0).tolist() == [channel < len(LABELS) for channel in range(slot.width)]


def test_a_gradient_is_the_slope_of_the_score() -> None:
    features = most_of_all()
    for kind, make in KINDS.items():
        model, inputs = make(), packed(features)
        weights = filled(model.build(features, LABELS, 0))
        of_weights, of_inputs = gradients(model, weights, inputs)
        step = 1e-1  # with a smaller one, the difference is lost in float32
        way = [np.sign(gradient.numpy()) for gradient in of_weights]
        norm = sum(float(np.abs(gradient.numpy()).sum()) for gradient in of_weights)

        losses = []
        for size in (step / norm, -step / norm):
            moved = [weight + size * one for weight, one in zip(weights, way, strict=True)]
            losses.append(float(((scores_of(model, moved, inputs).astype(np.float64) + 1) ** 2).sum()))
        slope = (losses[0] - losses[1]) / (2 * step / norm)
        assert slope == pytest.approx(norm, rel=2e-2), kind
        assert all(gradient is not None for gradient in of_inputs)


@pytest.mark.parametrize(("kind", "spec"), CASES)
def test_compiled_scores_are_the_uncompiled_ones(kind: str, spec: str) -> None:
    features = SPECS[spec]()
    model, inputs = KINDS[kind](), packed(features)
    weights = filled(model.build(features, LABELS, 0))

    @tf.function(jit_compile=True, autograph=False)  # type: ignore[untyped-decorator]
    def compiled(tensors: Any, user: Any, index: Any, item: Any) -> Any:
        return model.score(tensors, model.user(tensors, PackedSide(*user)), index, PackedSide(*item))

    found = compiled([tf.constant(one) for one in weights], tuple(inputs.user), inputs.user_index, tuple(inputs.item))
    np.testing.assert_allclose(found.numpy(), scores_of(model, weights, inputs), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("compute", ["bfloat16", "float16"])
@pytest.mark.parametrize("kind", KINDS)
def test_other_numbers_multiply_and_nothing_else_leaves_float32(kind: str, compute: str) -> None:
    features = most_of_all()
    exact, other, inputs = KINDS[kind](), KINDS[kind](compute=compute), packed(features)
    weights = filled(exact.build(features, LABELS, 0))
    assert all(one.dtype == tf.float32 for one in other.build(features, LABELS, 0))
    wanted, scores = scores_of(exact, weights, inputs), scores_of(other, weights, inputs)
    assert scores.dtype == np.float32
    off = np.abs(scores - wanted).max() / np.abs(wanted).max()
    assert 0 < off < (0.05 if compute == "bfloat16" else 0.01)
    user = other.user([tf.constant(one) for one in weights], PackedSide(*map(tf.constant, inputs.user)))
    assert user.flat.dtype == tf.float32


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_builds_the_same_weights_whatever_was_built_before(kind: str) -> None:
    features = most_of_all()
    tf.random.set_seed(3)
    first = KINDS[kind]().build(features, LABELS, 5)
    tf.random.set_seed(4)
    tf.random.uniform([3])
    KINDS[kind]().build(no_sequence() if not kind.startswith("din") else features, LABELS, 5)
    model = KINDS[kind]()
    again, other = model.build(features, LABELS, 5), KINDS[kind]().build(features, LABELS, 6)
    assert all(np.array_equal(one, two) for one, two in zip(first, again, strict=True))
    if kind != "logistic":  # whose weights all begin at zero
        assert not all(np.array_equal(one, two) for one, two in zip(first, other, strict=True))
    assert len(set(model.weight_names)) == len(again)
    for seed in (-1, 2**80):
        model.build(features, LABELS, seed)


def test_initial_values_are_those_of_tensorflows_uniform_numbers() -> None:
    for name, shape, seed in (("a", (3, 5), 7), ("b", (), -1), ("c", (64,), 2**62)):
        stream = tf.constant([seed % 2**63, zlib.crc32(name.encode())], tf.int64)
        expected = tf.random.stateless_uniform(shape, stream, -0.3, 0.7, tf.float32, alg="philox")
        (found,) = initial([Weight(name, shape, -0.3, 0.7)], seed)
        assert found.numpy().tobytes() == expected.numpy().tobytes()


@pytest.mark.parametrize(("pairs", "first"), [(True, 1 / 15), (False, 1.0)])
def test_a_factorisation_machine_begins_as_the_mean_of_all_pairs_or_as_their_sum(pairs: bool, first: float) -> None:
    model = DeepFm(pairs=pairs)
    weights = model.build(most_of_all(), LABELS, 0)
    numbers = dict(zip(model.weight_names, weights, strict=True))
    assert np.array_equal(numbers["fm"], np.full(numbers["fm"].shape, first, np.float32))


def test_a_kernel_begins_so_that_its_outputs_are_about_as_large_as_its_inputs() -> None:
    model = DcnV2(hidden=(64, 32))
    numbers = model.build(most_of_all(), LABELS, 0)
    weights = dict(zip(model.weight_names, numbers, strict=True))
    kernel = np.concatenate([weights["mlp_0_user"], weights["mlp_0_item"]])
    half = np.sqrt(6 / sum(kernel.shape))
    assert 0.9 * half < np.abs(kernel).max() <= half
    assert abs(kernel.mean()) < half / 10
    assert not weights["mlp_0_bias"].numpy().any()


def test_counts_of_any_size_come_near_to_one() -> None:
    features = FeatureSpec((Slot("video_id", "item", dim=1),), dense=(Dense("views", "item"),), item_id="video_id")
    weights = [np.ones((1, 1), np.float32), np.zeros(1, np.float32)]
    inputs = Packed(
        PackedSide(None, None), np.zeros(3, np.int32), PackedSide(np.array([[0, 0], [0, 1e6], [0, -7]], "f"), None)
    )
    for scale, wanted in (("log", [0, np.log(1e6 + 1), -np.log(8)]), ("none", [0, 1e6, -7])):
        model = Logistic(dense_scale=scale)  # type: ignore[arg-type]
        model.build(features, ["click"], 0)
        np.testing.assert_allclose(scores_of(model, weights, inputs)[:, 0], wanted, rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: DcnV2(hidden=()), "hidden is ()"),
        (lambda: DcnV2(hidden=(3, 0)), "hidden is (3, 0)"),
        (lambda: DeepFm(hidden=[3]), "hidden is [3]"),  # type: ignore[arg-type]
        (lambda: DeepFm(fm_dim=0), "fm_dim is 0"),
        (lambda: DcnV2(pairs=None), "pairs is None"),  # type: ignore[arg-type]
        (lambda: DcnV2(cross=0), "cross is 0"),
        (lambda: DcnV2(first_order=True), "first_order is True"),  # type: ignore[arg-type]
        (lambda: DeepFm(first_order=None), "first_order is None"),  # type: ignore[arg-type]
        (lambda: DcnV2(rank=True), "rank is True"),
        (lambda: Din(attention=()), "attention is ()"),
        (lambda: Din(softmax=1), "softmax is 1"),  # type: ignore[arg-type]
        (lambda: Mmoe(experts=0), "experts is 0"),
        (lambda: Mmoe(own=True), "own is True"),
        (lambda: Ple(levels=65), "levels is 65"),
        (lambda: Ple(expert=()), "expert is ()"),
        (lambda: Mmoe(tower=(0,)), "tower is (0,)"),
        (lambda: DeepFm(norm="batch"), "norm is 'batch'"),  # type: ignore[arg-type]
        (lambda: DcnV2(dropout=1.0), "dropout is 1.0"),
        (lambda: Mmoe(dropout=-0.1), "dropout is -0.1"),
        (lambda: Din(dropout=float("nan")), "dropout is nan"),
        (lambda: DeepFm(dropout=True), "dropout is True"),
        (lambda: Logistic(compute="int8"), "compute is 'int8'"),  # type: ignore[arg-type]
        (lambda: Logistic(dense_scale="square"), "dense_scale is 'square'"),  # type: ignore[arg-type]
    ],
)
def test_arguments_that_are_none_are_refused(make: Callable[[], Model], said: str) -> None:
    with pytest.raises(UsageError) as refused:
        make()
    assert said in refused.value.message
    assert refused.value.help


def test_logistic_needs_a_number_a_label() -> None:
    with pytest.raises(SpecError, match="slot 'user_id' has dim 3, and there are 4 labels") as refused:
        Logistic().build(no_sequence(), ["a", "b", "c", "d"], 0)
    assert "set dim=4" in refused.value.help


@pytest.mark.parametrize("make", [DeepFm, DcnV2, Mmoe])
def test_keys_with_numbers_of_their_own_need_a_number_a_label_and_each_side_a_vector(make: Any) -> None:
    with pytest.raises(SpecError, match="slot 'user_id' has dim 3, and there are 4 labels") as refused:
        make(first_order="labels").build(no_sequence(), ["a", "b", "c", "d"], 0)
    assert "set dim=4 or more" in refused.value.help
    with pytest.raises(SpecError, match="every slot of the user side has only the 3 first-order numbers") as refused:
        make(first_order="labels").build(no_sequence(), ["a", "b", "c"], 0)
    assert "set dim=11" in refused.value.help


@pytest.mark.parametrize("make", [DeepFm, DcnV2, Mmoe])
def test_rows_whose_numbers_labels_share_do_not_depend_on_the_labels(make: Any) -> None:
    shared, own = make(first_order="shared"), make(first_order="labels")
    for model in (shared, own):
        model.build(most_of_all(), LABELS, 0)
    assert (shared.rows_have_labels, own.rows_have_labels) == (False, True)
    labels = [(f"label {label}", 0) for label in LABELS]
    assert shared.weight_channels()["first_order"] == (None, labels)
    assert "first_order" not in own.weight_channels()


def test_own_numbers_of_a_side_without_slots_are_none() -> None:
    slots = (Slot("video_id", "item", dim=5),)
    features = FeatureSpec(slots, dense=(Dense("age", "user"),), item_id="video_id")
    for kind in ("deepfm_own", "dcn_v2_own", "mmoe_own"):
        model, inputs = KINDS[kind](), packed(features)
        weights = filled(model.build(features, LABELS, 0))
        wanted = expected(kind, features, model, weights, inputs)
        np.testing.assert_allclose(scores_of(model, weights, inputs), wanted, rtol=2e-5, atol=2e-5)


def test_din_needs_a_history_and_a_candidate_that_is_of_its_kind() -> None:
    with pytest.raises(SpecError, match="no slot is a sequence"):
        Din().build(no_sequence(), LABELS, 0)
    lone = Slot("watched", "user", multi=True, pooling="sequence", length=5)
    with pytest.raises(SpecError, match="no item slot shares its keys with 'watched'") as refused:
        Din().build(FeatureSpec((lone, Slot("video_id", "item")), item_id="video_id"), LABELS, 0)
    assert "keys_of='video_id'" in refused.value.help


def test_attention_begins_with_the_plain_sum_of_a_history() -> None:
    features = most_of_all()
    model, inputs = Din(hidden=(6,), attention=(4,)), packed(features)
    history = inputs.user.sequence * np.array([1e-4] * 6 + [1], np.float32)
    weights = model.build(features, LABELS, 0)
    named = dict(zip(model.weight_names, weights, strict=True))
    user = model.user(weights, PackedSide(tf.zeros_like(inputs.user.flat), tf.constant(history)))
    hidden = np.maximum(history[..., :-1].sum(axis=1) @ named["mlp_0_history"].numpy(), 0)
    scores = model.score(weights, user, tf.range(3), PackedSide(tf.zeros_like(inputs.item.flat[:3]), None))
    assert np.abs(scores).max() > 1e-6
    np.testing.assert_allclose(scores, hidden @ named["out"].numpy(), rtol=2e-3, atol=1e-9)


def test_din_takes_the_slot_the_keys_are_named_after() -> None:
    def spec(other: str | None) -> FeatureSpec:
        slots = (
            Slot("seen", "user", dim=2, multi=True, pooling="sequence", length=3, keys_of="video_id"),
            Slot("alike", "item", dim=2, multi=True, keys_of=other),
            Slot("video_id", "item", dim=2),
        )
        return FeatureSpec(slots, item_id="video_id")

    inputs, scores = packed(spec(None)), []
    for other in (None, "video_id"):
        model = Din(hidden=(4,), attention=(3,))
        scores.append(scores_of(model, filled(model.build(spec(other), LABELS, 0)), inputs))
    assert np.array_equal(scores[0], scores[1])
    weights = filled(model.build(spec(None), LABELS, 0))
    assert model.user(weights, tensors_of(inputs.user)).flat is None


def test_a_model_that_was_not_built_says_so() -> None:
    with pytest.raises(UsageError, match="has no features yet"):
        Logistic().user([], PackedSide(None, None))
