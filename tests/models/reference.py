"""What the ready-made models compute, said again in NumPy: a candidate at a time, nothing shared, nothing split."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from streamlearn.features import FeatureSpec, PackColumn, PackSide
from streamlearn.models import PackedSide
from tests.models.packed import Packed

__all__ = [
    "dcn_v2", "dcn_v2_own", "dcn_v2_shared", "deepfm", "deepfm_own", "deepfm_shared", "din", "logistic", "mmoe",
    "mmoe_own", "mmoe_shared", "ple",
]  # fmt: skip

# In float64, whatever the model's numbers are.
Numbers: TypeAlias = npt.NDArray[Any]
Weights: TypeAlias = Mapping[str, Numbers]


def logistic(features: FeatureSpec, weights: Weights, inputs: Packed, candidate: int) -> Numbers:
    """Channel j of every row, dense columns times their weights, a bias."""
    z: Numbers = weights["bias"].astype(np.float64)
    for vector in _vectors(features, inputs, candidate).values():
        z = z + vector[: len(z)]
    for side in ("user", "item"):
        if f"dense_{side}" in weights:
            z = z + _dense(features, inputs, candidate, side) @ weights[f"dense_{side}"]
    return z


def deepfm(features: FeatureSpec, weights: Weights, inputs: Packed, candidate: int) -> Numbers:
    """A linear part, all pairs of slots, a perceptron."""
    user, item = _whole(features, inputs, candidate, "user"), _whole(features, inputs, candidate, "item")
    x = np.concatenate([user, item])
    z = weights["bias"] + x @ _stacked(weights, "linear")
    vectors = [
        vector @ weights[f"fm_{name}"] if f"fm_{name}" in weights else vector
        for name, vector in _vectors(features, inputs, candidate).items()
    ]
    for first in range(len(vectors)):
        for second in range(first):
            z = z + (vectors[first] * vectors[second]) @ weights["fm"]
    first_layer = x @ _stacked(weights, "mlp_0") + _pairs(features, weights, inputs, candidate)
    deep: Numbers = _tower(weights, "mlp", first_layer) @ weights["out"]
    found: Numbers = z + deep
    return found


def dcn_v2(features: FeatureSpec, weights: Weights, inputs: Packed, candidate: int) -> Numbers:
    """Cross layers beside a perceptron."""
    user, item = _whole(features, inputs, candidate, "user"), _whole(features, inputs, candidate, "item")
    x0 = x = np.concatenate([user, item])
    layer = 0
    while f"cross_{layer}_bias" in weights:
        kernel = weights[f"cross_{layer}"] if layer else _stacked(weights, "cross_0")
        if f"cross_{layer}_back" in weights:
            kernel = kernel @ weights[f"cross_{layer}_back"]
        x = x0 * (x @ kernel + weights[f"cross_{layer}_bias"]) + x
        layer += 1
    deep = _tower(weights, "mlp", x0 @ _stacked(weights, "mlp_0") + _pairs(features, weights, inputs, candidate))
    out: Numbers = np.concatenate([weights["out_cross"], weights["out_mlp"]])
    z: Numbers = weights["bias"] + np.concatenate([x, deep]) @ out
    return z


def deepfm_own(features: FeatureSpec, weights: Weights, inputs: Packed, candidate: int) -> Numbers:
    """DeepFM of what is left of rows, and keys' own numbers."""
    return _own(deepfm, features, weights, inputs, candidate)


def dcn_v2_own(features: FeatureSpec, weights: Weights, inputs: Packed, candidate: int) -> Numbers:
    """DCN-v2 of what is left of rows, and keys' own numbers."""
    return _own(dcn_v2, features, weights, inputs, candidate)


def din(features: FeatureSpec, weights: Weights, inputs: Packed, candidate: int, softmax: bool = False) -> Numbers:
    """Attention of `video_id` over `watched`, beside which `watched_how` stands."""
    history = inputs.user.sequence[inputs.user_index[candidate]]
    c = _vectors(features, inputs, candidate)["video_id"]
    kernel = np.concatenate([weights[f"attention_0_{part}"] for part in ("history", "item", "product")])
    logits, rows = [], []
    for place in history[history[:, -1] == 1]:
        h = place[:-1]
        a = _tower(weights, "attention", np.concatenate([h, c, h[: len(c)] * c]) @ kernel)
        logits.append((a @ weights["attention_out"] + weights["attention_out_bias"])[0])
        rows.append(h)
    shares = np.array(logits)
    if softmax and rows:
        shares = np.exp(shares - shares.max()) / np.exp(shares - shares.max()).sum()
    attended = sum((share * row for share, row in zip(shares, rows, strict=True)), np.zeros(history.shape[1] - 1))
    x = [_flat(features, inputs, candidate, "user"), _flat(features, inputs, candidate, "item"), attended]
    kernel = np.concatenate([weights[f"mlp_0_{part}"] for part in ("user", "item", "history")])
    z: Numbers = weights["bias"] + _tower(weights, "mlp", np.concatenate(x) @ kernel) @ weights["out"]
    return z


def mmoe(features: FeatureSpec, weights: Weights, inputs: Packed, candidate: int, own: int = 0) -> Numbers:
    """Experts that gates weigh, level by level, and a tower for each label; each expert and each gate by itself."""
    x = np.concatenate([_whole(features, inputs, candidate, side) for side in ("user", "item")])
    labels, count = len(weights["bias"]), weights["gates_0_bias"].shape[1]
    owners = [None] * (count - labels * own) + [label for label in range(labels) for _ in range(own)]
    level, sums = 0, dict.fromkeys(range(labels + 1), x)
    while f"gates_{level}_bias" in weights:
        outputs, layers = [], len([name for name in weights if re.fullmatch(f"experts_{level}_._bias", name)])
        for expert, owner in enumerate(owners):
            if level:
                kernel = weights[f"experts_{level}_0"][:, expert]
            else:
                kernel = np.split(_stacked(weights, "experts_0"), count, axis=1)[expert]
            y = sums[labels if owner is None else owner] @ kernel
            for layer in range(layers):
                y = y @ weights[f"experts_{level}_{layer}"][:, expert] if layer else y
                y = _layer(weights, f"experts_{level}_{layer}", y, expert)
            outputs.append(y)
        kernels = weights[f"gates_{level}"] if level else _stacked(weights, "gates_0")
        new = {}
        for gate, bias in enumerate(weights[f"gates_{level}_bias"]):
            seen = [e for e, owner in enumerate(owners) if owner is None or gate in (owner, labels)]
            shares = np.exp(sums[gate] @ kernels[:, gate] + bias)[seen]
            new[gate] = sum(share * outputs[e] for share, e in zip(shares / shares.sum(), seen, strict=True))
        level, sums = level + 1, new
    z = []
    for label in range(labels):
        y, layer = sums[label], 0
        while f"tower_{layer}" in weights:
            y = _layer(weights, f"tower_{layer}", y @ weights[f"tower_{layer}"][:, label], label)
            layer += 1
        z.append(y @ weights["out"][:, label, 0] + weights["bias"][label])
    return np.array(z)


def ple(features: FeatureSpec, weights: Weights, inputs: Packed, candidate: int) -> Numbers:
    """The same with an expert of each label's own."""
    return mmoe(features, weights, inputs, candidate, own=1)


def mmoe_own(features: FeatureSpec, weights: Weights, inputs: Packed, candidate: int) -> Numbers:
    """Mixtures of what is left of rows, and keys' own numbers."""
    return _own(mmoe, features, weights, inputs, candidate)


def deepfm_shared(features: FeatureSpec, weights: Weights, inputs: Packed, candidate: int) -> Numbers:
    """DeepFM of what is left of rows, and a number of each key that labels share."""
    return _own(deepfm, features, weights, inputs, candidate)


def dcn_v2_shared(features: FeatureSpec, weights: Weights, inputs: Packed, candidate: int) -> Numbers:
    """DCN-v2 likewise."""
    return _own(dcn_v2, features, weights, inputs, candidate)


def mmoe_shared(features: FeatureSpec, weights: Weights, inputs: Packed, candidate: int) -> Numbers:
    """Mixtures likewise."""
    return _own(mmoe, features, weights, inputs, candidate)


def _own(
    of: Callable[..., Numbers], features: FeatureSpec, weights: Weights, inputs: Packed, candidate: int
) -> Numbers:
    """The scores of a spec whose rows lack their first channels, and the sum of those, or what labels make of it."""
    shared = weights.get("first_order")
    count = len(weights["bias"]) if shared is None else 1
    own = sum(vector[:count] for vector in _vectors(features, inputs, candidate).values())
    slots = [replace(slot, dim=slot.dim - count) for slot in features.slots if slot.dim > count]
    left = replace(features, slots=tuple(slots))
    user, item = _cut(features.pack.user, inputs.user, count), _cut(features.pack.item, inputs.item, count)
    found: Numbers = of(left, weights, Packed(user, inputs.user_index, item), candidate)
    return found + (own if shared is None else own @ shared)


def _cut(side: PackSide, block: PackedSide, labels: int) -> PackedSide:
    """A side's channels but for the first of each row."""

    def left(columns: Sequence[PackColumn]) -> list[int]:
        skips = [0 if column.pooling == "dense" else labels for column in columns]
        return [
            channel
            for column, skip in zip(columns, skips, strict=True)
            for channel in range(column.at + skip, column.at + column.width)
        ]

    flat = None if block.flat is None else block.flat[:, left(side.flat)]
    sequence = None if block.sequence is None else block.sequence[..., [*left(side.sequence), -1]]
    return PackedSide(flat, sequence)


def _tower(weights: Weights, name: str, first: Numbers) -> Numbers:
    found = _layer(weights, f"{name}_0", first)
    layer = 1
    while f"{name}_{layer}" in weights:
        found = _layer(weights, f"{name}_{layer}", found @ weights[f"{name}_{layer}"])
        layer += 1
    return found


def _layer(weights: Weights, name: str, sums: Numbers, number: int | None = None) -> Numbers:
    """A layer's outputs, of the expert or label of a number if there are several side by side."""
    bias, gain = weights[f"{name}_bias"], weights.get(f"{name}_gain")
    if number is not None:
        bias, gain = bias[number], None if gain is None else gain[:, number]
    if gain is not None:
        sums = (sums - sums.mean()) / np.sqrt(sums.var() + 1e-5) * gain
    outputs: Numbers = np.maximum(sums + bias, 0)
    return outputs


def _stacked(weights: Weights, name: str) -> Numbers:
    return np.concatenate([weights[f"{name}_{side}"] for side in ("user", "item") if f"{name}_{side}" in weights])


def _rows(inputs: Packed, candidate: int, side: str) -> tuple[Any, Any]:
    row = candidate if side == "item" else inputs.user_index[candidate]
    packed = inputs.item if side == "item" else inputs.user
    flat, sequence = (None if block is None else block[row] for block in packed)
    return flat, sequence


def _vectors(features: FeatureSpec, inputs: Packed, candidate: int) -> dict[str, Numbers]:
    """Each slot's vector; of a sequence the mean of its rows."""
    found = {}
    for side in ("user", "item"):
        flat, sequence = _rows(inputs, candidate, side)
        plan = getattr(features.pack, side)
        for column in plan.flat:
            if column.pooling != "dense":
                found[column.name] = flat[column.at : column.at + column.width]
        for column in plan.sequence:
            there = sequence[sequence[:, -1] == 1]
            part = there[:, column.at : column.at + column.width]
            found[column.name] = part.mean(axis=0) if len(part) else np.zeros(column.width)
    return found


def _pairs(features: FeatureSpec, weights: Weights, inputs: Packed, candidate: int) -> Numbers:
    """What the products of all vectors of one length, two by two, add to the first layer; nothing if it has none."""
    if not any(name.startswith("mlp_0_pairs") for name in weights):
        return np.zeros(1)
    vectors = _vectors(features, inputs, candidate)
    sides = {
        side: [column.name for column in (*plan.flat, *plan.sequence) if column.pooling != "dense"]
        for side, plan in (("user", features.pack.user), ("item", features.pack.item))
    }
    found: Numbers = np.zeros(1)
    for part, first, second in (("user", "user", "user"), ("item", "item", "item"), ("both", "user", "item")):
        products: list[float] = []
        for length in dict.fromkeys(len(vectors[name]) for name in sides[first]):
            left, right = ([n for n in sides[side] if len(vectors[n]) == length] for side in (first, second))
            if part == "both" or len(left) > 1:
                products += [float(vectors[one] @ vectors[other]) for one in left for other in right]
        assert (f"mlp_0_pairs_{part}" in weights) == bool(products)
        if products:
            found = found + np.array(products) @ weights[f"mlp_0_pairs_{part}"]
    return found


def _dense(features: FeatureSpec, inputs: Packed, candidate: int, side: str) -> Numbers:
    flat, _ = _rows(inputs, candidate, side)
    columns = [column for column in getattr(features.pack, side).flat if column.pooling == "dense"]
    numbers = [flat[column.at : column.at + column.width] for column in columns]
    plain = np.concatenate(numbers) if numbers else np.zeros(0)
    scaled: Numbers = np.where(plain < 0, -1, 1) * np.log(1 + np.abs(plain))
    return scaled


def _flat(features: FeatureSpec, inputs: Packed, candidate: int, side: str) -> Numbers:
    pooled = {column.name for column in getattr(features.pack, side).flat}
    vectors = [vector for name, vector in _vectors(features, inputs, candidate).items() if name in pooled]
    return np.concatenate([*vectors, _dense(features, inputs, candidate, side)])


def _whole(features: FeatureSpec, inputs: Packed, candidate: int, side: str) -> Numbers:
    """All of a side: pooled slots, dense columns, means of sequences."""
    sequences = [column.name for column in getattr(features.pack, side).sequence]
    vectors = _vectors(features, inputs, candidate)
    return np.concatenate([_flat(features, inputs, candidate, side), *(vectors[name] for name in sequences)])
