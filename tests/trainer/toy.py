"""A model small enough to be checked by hand: a bilinear form of both sides, and a layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from streamlearn.features import FeatureSpec
from streamlearn.models import PackedSide

__all__ = ["Toy"]


class Toy:
    """Logits of a layer over everything, the sequence as the mean of its rows."""

    def __init__(self, hidden: int = 8) -> None:
        self._hidden = hidden

    def build(self, features: FeatureSpec, labels: Sequence[str], seed: int) -> Sequence[Any]:
        pack = features.pack
        width = pack.user.flat_width + pack.item.flat_width + max(0, pack.user.sequence_width - 1)
        seeds = [(seed, number) for number in range(2)]
        return [
            tf.random.stateless_normal((width, self._hidden), seeds[0], stddev=width**-0.5),
            tf.zeros(self._hidden),
            tf.random.stateless_normal((self._hidden, len(labels)), seeds[1], stddev=self._hidden**-0.5),
            tf.zeros(len(labels)),
        ]

    def user(self, weights: Sequence[Any], inputs: PackedSide) -> PackedSide:
        del weights
        parts = [] if inputs.flat is None else [inputs.flat]
        if inputs.sequence is not None:
            mask = inputs.sequence[..., -1:]
            total = tf.reduce_sum(inputs.sequence[..., :-1] * mask, axis=1)
            parts.append(total / tf.maximum(tf.reduce_sum(mask, axis=1), 1.0))
        return PackedSide(tf.concat(parts, axis=1), None)

    def score(self, weights: Sequence[Any], user: PackedSide, user_index: Any, inputs: PackedSide) -> Any:
        first, first_bias, last, last_bias = weights
        parts = tf.concat([tf.gather(user.flat, user_index), inputs.flat], axis=1)
        return tf.nn.relu(parts @ first + first_bias) @ last + last_bias
