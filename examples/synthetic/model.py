"""A model that knows the shape of this world, and none of its numbers: what learning is measured with.

It is no model to copy: of a real world nobody knows which products matter. That is what ready-made models find out,
and what they pay for.
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
# Rows as near as this to another, by the square of its length, are of its key. One key's may be apart by a step, where
# one of them was pulled before a push and the other after.
_NEAR = 0.01


class Insider:
    """The sum of what `world` adds up, label by label.

    Those are each key's own numbers, the first channels of its row, one a label; products of the vectors after them, of
    the slots that matter together; taste times quality; and how many recent clicks are of the candidate's category.
    """

    any_length = True

    def build(self, features: FeatureSpec, labels: Sequence[str], seed: int) -> list[Tensor]:
        """The weights: what products and counts are weighed by."""
        self._pack, self._labels = features.pack, len(labels)
        widths = {f"{one}_{two}": features.slot(one).dim - len(labels) for one, two in _CROSSES}
        self._crosses, self._widths = tuple(widths), widths | _WIDTHS
        ones = [tf.ones((width, len(labels))) for width in widths.values()]
        return [*ones, *(tf.zeros((width, len(labels))) for width in _WIDTHS.values()), tf.zeros(len(labels))]

    @property
    def weight_names(self) -> tuple[str, ...]:
        """The names of the weights, in their order."""
        return (*self._widths, "bias")

    def user(self, weights: Sequence[Tensor], inputs: PackedSide) -> PackedSide:
        """What there is: nothing of it is the same for all candidates but a sum."""
        return inputs

    def score(self, weights: Sequence[Tensor], user: PackedSide, user_index: Tensor, inputs: PackedSide) -> Tensor:
        """The sum of all parts (N, labels)."""
        asked = _columns(self._pack.user, tf.gather(user.flat, user_index))
        shown = _columns(self._pack.item, inputs.flat)
        by_name = dict(zip(self.weight_names, weights, strict=True))
        dense = {"taste", "quality", "age"}
        found = [column[:, : self._labels] for name, column in (asked | shown).items() if name not in dense]
        for cross, (one, two) in zip(self._crosses, _CROSSES, strict=True):
            left, right = ((asked | shown)[name][:, self._labels :] for name in (one, two))
            found.append(tf.matmul(left * right, by_name[cross]))
        found.append(tf.matmul(asked["taste"] * shown["quality"], by_name["taste_quality"]))
        matches = self._matches(tf.gather(user.sequence, user_index), shown["category"])
        return tf.add_n(found) + matches * by_name["matches"] + by_name["bias"]

    def _matches(self, history: Tensor, category: Tensor) -> Tensor:
        """How many places of the history have the candidate's category (N, 1); nothing is learned by it."""
        at = next(column for column in self._pack.user.sequence if column.name == "recent_categories")
        vector = category[:, None, self._labels :]
        apart = history[..., at.at + self._labels : at.at + at.width] - vector
        is_same = tf.reduce_sum(tf.square(apart), 2) < _NEAR * tf.reduce_sum(tf.square(vector), 2)
        return tf.reduce_sum(tf.cast(is_same, tf.float32) * history[..., -1], 1, keepdims=True)


def _columns(side: PackSide, flat: Tensor) -> dict[str, Tensor]:
    return {column.name: flat[:, column.at : column.at + column.width] for column in side.flat}
