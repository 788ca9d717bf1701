"""A model with the structure of this world, without its numbers, to measure learning.

Do not copy it: in a real world the relevant products are unknown. Ready-made models find them, at a cost.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from streamlearn.features import FeatureSpec, PackSide
from streamlearn.models import PackedSide
from streamlearn.models.protocol import Tensor

__all__ = ["Insider"]

_CROSSES = (("cohort", "category"), ("device", "length_band"), ("category", "length_band"))
_WIDTHS = {"taste_quality": 16, "matches": 1}
# Rows closer than this, relative to the squared length, belong to one key. Two rows of a key can differ by one step, if
# one was pulled before a push and the other after it.
_NEAR = 0.01


class Insider:
    """The sum of the terms of `world`, label by label.

    The terms are each key's biases (the first channels of its row, one per label), products of the vectors after them
    for certain pairs of slots, taste times quality, and the number of recent clicks in the candidate's category.
    """

    any_length = True

    def build(self, features: FeatureSpec, labels: Sequence[str], seed: int) -> list[Tensor]:
        """Return the weights of products and counts."""
        self._pack, self._labels = features.pack, len(labels)
        widths = {f"{left}_{right}": features.slot(left).dim - len(labels) for left, right in _CROSSES}
        self._crosses, self._widths = tuple(widths), widths | _WIDTHS
        ones = [tf.ones((width, len(labels))) for width in widths.values()]
        return [*ones, *(tf.zeros((width, len(labels))) for width in _WIDTHS.values()), tf.zeros(len(labels))]

    @property
    def weight_names(self) -> tuple[str, ...]:
        """The names of the weights, in order."""
        return (*self._widths, "bias")

    def user(self, weights: Sequence[Tensor], inputs: PackedSide) -> PackedSide:
        """Return the inputs: only a sum of them is the same for all candidates."""
        return inputs

    def score(self, weights: Sequence[Tensor], user: PackedSide, user_index: Tensor, inputs: PackedSide) -> Tensor:
        """Return the sum of all terms (N, labels)."""
        user_columns = _columns(self._pack.user, tf.gather(user.flat, user_index))
        item_columns = _columns(self._pack.item, inputs.flat)
        by_name = dict(zip(self.weight_names, weights, strict=True))
        dense = {"taste", "quality", "age"}
        columns = user_columns | item_columns
        terms = [column[:, : self._labels] for name, column in columns.items() if name not in dense]
        for cross, pair in zip(self._crosses, _CROSSES, strict=True):
            left, right = (columns[name][:, self._labels :] for name in pair)
            terms.append(tf.matmul(left * right, by_name[cross]))
        terms.append(tf.matmul(columns["taste"] * columns["quality"], by_name["taste_quality"]))
        matches = self._matches(tf.gather(user.sequence, user_index), columns["category"])
        return tf.add_n(terms) + matches * by_name["matches"] + by_name["bias"]

    def _matches(self, history: Tensor, category: Tensor) -> Tensor:
        """Return the number of clicks in the history with the candidate's category (N, 1); it has no gradient."""
        at = next(column for column in self._pack.user.sequence if column.name == "recent_categories")
        vector = category[:, None, self._labels :]
        apart = history[..., at.at + self._labels : at.at + at.width] - vector
        is_same = tf.reduce_sum(tf.square(apart), 2) < _NEAR * tf.reduce_sum(tf.square(vector), 2)
        return tf.reduce_sum(tf.cast(is_same, tf.float32) * history[..., -1], 1, keepdims=True)


def _columns(side: PackSide, flat: Tensor) -> dict[str, Tensor]:
    return {column.name: flat[:, column.at : column.at + column.width] for column in side.flat}
