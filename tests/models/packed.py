"""Packed inputs of a spec, filled by chance, and a model's scores of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from streamlearn.features import Dense, FeatureSpec, PackSide, Slot
from streamlearn.models import Graphs, Model, PackedSide

__all__ = [
    "Floats",
    "Packed",
    "filled",
    "most_of_all",
    "no_sequence",
    "only_items",
    "packed",
    "scores_of",
    "tensors_of",
]

Floats = npt.NDArray[np.float32]


class Packed(NamedTuple):
    """Some users and candidates."""

    user: PackedSide
    user_index: npt.NDArray[np.int32]
    item: PackedSide


def most_of_all() -> FeatureSpec:
    """Slots of several dims and poolings, two sequences of one history, dense columns on both sides."""
    return FeatureSpec(
        slots=(
            Slot("user_id", "user", dim=4),
            Slot("country", "user", table="text", dim=2, value="str"),
            Slot("watched", "user", dim=4, multi=True, pooling="sequence", length=5, keys_of="video_id"),
            Slot("watched_how", "user", table="text", dim=2, multi=True, pooling="sequence", length=5),
            Slot("video_id", "item", dim=4),
            Slot("tags", "item", table="text", dim=2, value="str", multi=True, pooling="mean"),
        ),
        dense=(Dense("age", "user"), Dense("vector", "item", width=3)),
        item_id="video_id",
    )


def no_sequence() -> FeatureSpec:
    """Three slots of one dim, no history, a dense column of the item."""
    slots = (Slot("user_id", "user", dim=3), Slot("city", "user", dim=3), Slot("video_id", "item", dim=3))
    return FeatureSpec(slots, dense=(Dense("age", "item"),), item_id="video_id")


def only_items() -> FeatureSpec:
    """No user side, and nothing dense."""
    return FeatureSpec((Slot("video_id", "item", dim=3), Slot("maker", "item", dim=3)), item_id="video_id")


def packed(features: FeatureSpec, users: int = 3, candidates: int = 7, seed: int = 0) -> Packed:
    """Numbers as a step has them; the first user has an empty history, the second a whole one."""
    rng = np.random.default_rng(seed)
    index = np.sort(rng.integers(0, users, candidates)).astype(np.int32)
    return Packed(_side(features.pack.user, users, rng), index, _side(features.pack.item, candidates, rng))


def filled(weights: Sequence[Any], seed: int = 1) -> list[Floats]:
    """Weights of the same shapes, none of whose numbers is one that models begin with."""
    rng = np.random.default_rng(seed)
    return [rng.normal(0, 0.5, one.shape).astype(np.float32) for one in weights]


def scores_of(model: Model | Graphs, weights: Sequence[Any], inputs: Packed) -> Floats:
    """A model's scores, the user graph run once a request."""
    tensors = [tf.constant(weight) for weight in weights]
    user = model.user(tensors, tensors_of(inputs.user))
    scores: Floats = model.score(tensors, user, tf.constant(inputs.user_index), tensors_of(inputs.item)).numpy()
    return scores


def tensors_of(side: PackedSide) -> PackedSide:
    """One side as tensors."""
    return PackedSide(*(None if one is None else tf.constant(one) for one in side))


def _side(side: PackSide, rows: int, rng: np.random.Generator) -> PackedSide:
    flat = rng.normal(0, 1, (rows, side.flat_width)).astype(np.float32) if side.flat_width else None
    if not side.sequence_length:
        return PackedSide(flat, None)
    sequence = rng.normal(0, 1, (rows, side.sequence_length, side.sequence_width)).astype(np.float32)
    lengths = np.array([0, side.sequence_length, *rng.integers(1, side.sequence_length, max(rows - 2, 0))])[:rows]
    mask = (np.arange(side.sequence_length) < lengths[:, None]).astype(np.float32)
    sequence *= mask[..., None]
    sequence[..., -1] = mask
    return PackedSide(flat, sequence)
